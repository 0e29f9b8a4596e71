"""`diag completion SHELL`, judged by the shells themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from diag.cli.completion import SHELLS, script
from diag.cli.main import VERBS, main
from diag.outputs import manual
from tests.cli.shells import ASK, SCRIPT_OF, installed

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(params=sorted(ASK))
def shell(request: pytest.FixtureRequest) -> str:
    if not installed(request.param):
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


@pytest.fixture
def ask(shell: str, tmp_path: Path):
    file = tmp_path / "script" / SCRIPT_OF[shell]
    file.parent.mkdir()
    file.write_text(script(shell) + "\n")
    here = tmp_path / "here"
    (here / "rules-of-mine").mkdir(parents=True)
    (here / "run.log").write_text("")

    def complete(line: str) -> set[str]:
        return {word.rstrip("/ ") for word in ASK[shell](file, line, here)}

    return complete


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("diag du", {"dump"}),
        ("diag rules ", {"test", "list", "schema"}),
        ("diag run --no-i", {"--no-inject"}),
        ("diag flame --format s", {"svg", "speedscope"}),
        ("diag explain host-", {"host-oom", "host-oom-forecast"}),
        ("diag completion z", {"zsh"}),
        ("diag run --nodes a", {"auto"}),
        ("diag replay r", {"rules-of-mine", "run.log"}),
        ("diag run --rules r", {"rules-of-mine"}),
        ("diag run --port 0 -- cat r", {"rules-of-mine", "run.log"}),
    ],
)
def test_shell_completes(ask, line: str, wanted: set[str]) -> None:
    assert ask(line) == wanted


def test_every_verb_and_every_finding_is_offered(ask) -> None:
    assert set(VERBS) <= ask("diag ")
    assert set(manual.ids()) <= ask("diag explain ")


def test_word_after_two_dashes_is_a_command(ask) -> None:
    found = ask("diag run -- unam")

    assert "uname" in found
    assert not [word for word in found if word.startswith("--")]


def test_option_of_the_command_that_diag_has_too_changes_nothing(ask) -> None:
    # given an option after `--` that diag has too, and that takes a value there
    assert "run.log" in ask("diag run -- cat --nodes r")


def test_bash_asks_the_commands_own_completion_where_bash_completion_is_loaded(tmp_path: Path) -> None:
    # given bash-completion's function for commands that run commands, which is told where the command begins
    file = tmp_path / "diag.bash"
    file.write_text('_command_offset() { COMPREPLY=("asked-from-$1"); }\n' + script("bash") + "\n")

    assert ASK["bash"](file, "diag run -q -- torchrun --nn", tmp_path) == ["asked-from-4"]


@pytest.mark.parametrize("name", SHELLS)
def test_script_is_one_that_the_shell_reads(name: str, tmp_path: Path) -> None:
    if not installed(name):
        pytest.skip(f"{name} is not installed")
    file = tmp_path / "script"
    file.write_text(script(name) + "\n")
    # tcsh -n does not look into `complete`
    words = [name, "-f", str(file)] if name == "tcsh" else [name, "-n", str(file)]

    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", SHELLS)
def test_script_says_where_it_belongs_and_names_no_other_program(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", name]) == 0

    text = capsys.readouterr().out
    assert f"diag completion {name} > " in text
    assert "Copy this to" not in text
