"""Who decides whether diag's lines are coloured: --color, NO_COLOR, FORCE_COLOR, the terminal; and that CMD
is none of it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.cli import main
from diag.text import colour


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    (tmp_path / "a.yaml").write_text("kind: Service\nmetadata: {name: a}\n")
    return str(tmp_path / "a.yaml")


def printed(*words: str, **env: str) -> str:
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE")
    }
    done = subprocess.run(
        [sys.executable, "-m", "diag", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**clean, **env},
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "env", "coloured"),
    [
        ((), {}, False),  # a pipe
        (("--color", "always"), {}, True),
        (("--color=always",), {"NO_COLOR": "1", "TERM": "dumb"}, True),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"CLICOLOR_FORCE": "1"}, True),
        ((), {"FORCE_COLOR": "0"}, False),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": ""}, True),  # an empty one says nothing: no-color.org
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
        (("--color", "auto"), {"FORCE_COLOR": "1"}, True),
    ],
)
def test_who_decides(options: tuple[str, ...], env: dict[str, str], coloured: bool, manifest: str) -> None:
    assert ("\x1b[" in printed("doctor", *options, "--manifest", manifest, **env)) == coloured


@pytest.mark.parametrize(
    ("terminal", "term", "wanted"), [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)]
)
def test_without_a_word_the_terminal_decides(terminal: bool, term: str, wanted: bool) -> None:
    assert colour.is_wanted("auto", {"TERM": term}, is_terminal=terminal) == wanted


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in main.make_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def test_commands_that_colour_have_the_option_and_the_others_have_not() -> None:
    having = {name for name, parser in commands() if "--color" in parser._option_string_actions}

    assert having == set(colour.COMMANDS)


def test_no_other_place_asks_the_environment_whether_to_colour() -> None:
    package = Path(main.__file__).parents[1]
    asking = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "NO_COLOR" in path.read_text()
    }

    # launch/command.py and software/ask.py set it for the processes that they start; cli/main.py names it in its help.
    assert asking == {"text/colour.py", "cli/main.py", "launch/command.py", "preflight/software/ask.py"}


def test_cmd_inherits_nothing_of_it(tmp_path: Path) -> None:
    show = "import os; print([name for name in os.environ if 'COLOR' in name])"

    out = printed(
        "run", "--no-http", "--color", "always", "--run-root", str(tmp_path), "--", sys.executable, "-c", show
    )

    assert "[]" in out.splitlines()


@pytest.mark.parametrize(
    ("line", "same"), [("help rules list", "rules list --help"), ("help", "--help"), ("version", "--version")]
)
def test_words_that_say_the_same_as_an_option(
    line: str, same: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def out(words: str) -> str:
        with pytest.raises(SystemExit) as end:
            main.main(words.split())
        assert end.value.code == 0
        return capsys.readouterr().out

    assert out(line) == out(same) != ""
