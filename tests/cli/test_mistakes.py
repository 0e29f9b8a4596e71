"""What a person typed wrong is answered with what was meant, where something is near, and with nothing made
up where not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from diag.cli.main import main
from diag.settings import load, unread_variables
from diag.text.errors import DiagError
from diag.text.suggest import command_in_path, file_beside


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The error and the hint, of a line that is a usage error."""
    try:
        code: object = main(words)
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    error, _, hint = err.rstrip("\n").partition("\n\nhint: ")
    assert error.startswith("error: ") and hint and "\n" not in error + hint
    return error.removeprefix("error: "), hint


@pytest.mark.parametrize("verb", ["doctor", "estimate"])
def test_empty_word_is_no_command(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said([verb, "--", ""], capsys)[0] == "the command after `--` is empty"


@pytest.mark.parametrize(
    "words", [["help", "run", "sh", "-c", "exit 9"], ["help", "doctor", "--", "sh"], ["help", "help"]]
)
def test_help_runs_nothing(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)

    assert end.value.code == 0 and capsys.readouterr().out.startswith("usage: diag")


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("dmup", "unknown command 'dmup'", "did you mean `diag dump`?"),
        ("doc", "unknown command 'doc'", "did you mean `diag doctor`?"),
        (
            "xyzzy-not-a-command",
            "unknown command 'xyzzy-not-a-command'",
            "see diag --help",
        ),
        ("sh -c x y z", "unknown command 'sh'", "to run it under diag: diag run -- sh -c x ..."),
        ("--verison", "diag: unknown option --verison", "did you mean --version?"),
        ("run --prot 9 -- true", "diag run: unknown option --prot", "did you mean --port?"),
        ("run --prot=9 -- true", "diag run: unknown option --prot", "did you mean --port?"),
        ("rules list --jsno", "diag rules: unknown option --jsno", "did you mean --json?"),
        ("watch --xyzzy", "diag watch: unknown option --xyzzy", "diag watch --help lists them"),
        ("dump now", "'now' is neither a run directory nor the id of a run", "`diag runs` lists them"),
        ("dump . now", "diag dump: unexpected argument 'now'", "diag dump --help"),
        (
            "explain hnag",
            "no finding, class, cause, rule, variable or code is called 'hnag'",
            "did you mean hang?",
        ),
        (
            "explain hang/data_laoding",
            "no finding, class, cause, rule, variable or code is called 'hang/data_laoding'",
            "did you mean diag explain hang/data_loading?",
        ),
        (
            "explain slow/xyzzy",
            "no finding, class, cause, rule, variable or code is called 'slow/xyzzy'",
            "diag explain slow lists its causes",
        ),
        ("hepl", "unknown command 'hepl'", "did you mean `diag help`?"),
        ("help dmup", "unknown command 'dmup'", "did you mean `diag dump`?"),
        ("run --colour never -- true", "diag run: unknown option --colour", "did you mean --color?"),
        ("rules list --color never", "diag rules: unknown option --color", "diag rules --help lists them"),
        (
            "explain --color never hang",
            "diag explain: unknown option --color",
            "diag explain --help lists them",
        ),
        (
            "run --color sometimes -- true",
            "argument --color: invalid choice: 'sometimes' (choose from 'auto', 'always', 'never')",
            "diag run --help",
        ),
        ("-- true", "a diag command is missing before `--`", "diag run -- true"),
        ("rules", "diag rules needs WHAT: test, list or schema", "diag rules --help"),
        (
            "doctor --wait soon -- true",
            "argument --wait: 'soon' is not a number of seconds between 0 and 3600",
            "diag doctor --help",
        ),
        (
            "doctor --wait 1e9 -- true",
            "argument --wait: '1e9' is not a number of seconds between 0 and 3600",
            "diag doctor --help",
        ),
        (
            "doctor --manifest",
            "--manifest FILE: the FILE is missing (one that begins with a dash: --manifest=...)",
            "diag doctor --help",
        ),
        (
            "estimate --gpus-per-node many -- x",
            "argument --gpus-per-node: 'many' is not a whole number",
            "diag estimate --help",
        ),
        ("run --stack-seconds x -- true", "argument --stack-seconds: 'x' is not a number", "diag run --help"),
        (
            "explain the model is slow",
            "no finding, class, cause, rule, variable or code is called 'the model is slow', "
            "and diag does not recognise it as a line of a log",
            "diag explain lists the findings; for a whole log: diag replay LOG",
        ),
        (
            "completion bahs",
            "argument SHELL: invalid choice: 'bahs' (choose from 'bash', 'zsh', 'fish', 'tcsh')",
            "did you mean bash?",
        ),
        (
            "run -- --port 9 true",
            "--port is an option of diag: put it before `--`",
            "diag run --port ... -- CMD",
        ),
        (
            "run --port 0 -- -q true",
            "-q is an option of diag: put it before `--`",
            "diag run -q ... -- CMD",
        ),
        (
            "run --nproc_per_node 8 train.py",
            "diag run: unknown option --nproc_per_node",
            "options of CMD go after `--`: diag run [options] -- CMD ...",
        ),
    ],
)
def test_mistake_is_answered(line: str, error: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    if sys.version_info >= (3, 12):  # lists choices without quotes
        error = re.sub(r"(?<=from ).*(?=\))", lambda choices: choices[0].replace("'", ""), error)

    assert said(line.split(), capsys) == (error, hint)


def test_capture_of_a_near_name_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train-2026.log").write_text("x\n")

    _, hint = said(["replay", str(tmp_path / "train-2062.log")], capsys)

    assert hint == f"did you mean {tmp_path}/train-2026.log?"


def test_folder_that_is_not_there_is_named_and_not_the_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()

    assert file_beside(tmp_path / "rnus" / "a" / "train.log") == f"did you mean {tmp_path}/runs?"
    assert file_beside(tmp_path / "elsewhere" / "train.log") == f"there is no {tmp_path}/elsewhere either"
    assert file_beside(tmp_path / "zzz") == ""


def test_command_of_a_near_name_is_looked_for_in_path(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text("")

    assert command_in_path("trochrun", f"/nowhere:{tmp_path}") == "torchrun"
    assert command_in_path("deepspeed", f"/nowhere:{tmp_path}") == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["unmae"], "did you mean uname?"),
        (["train.py"], "(python train.py)"),
        (["./trian.py"], "did you mean train.py?"),
    ],
)
def test_command_that_is_not_there_ends_as_in_a_shell(words: list[str], hint: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")

    done = subprocess.run(
        [sys.executable, "-m", "diag", "run", "--no-http", "--run-root", str(tmp_path / "r"), "--", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PATH": "/usr/bin"},
    )

    assert done.returncode == 127
    assert "cannot run" in done.stderr and hint in done.stderr


def test_unknown_key_of_diag_toml_is_an_error_with_the_near_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "diag.toml").write_text("prot = 9100\nxyzzy = 1\n")

    with pytest.raises(DiagError) as error:
        load()

    assert "prot: unknown setting, did you mean port?" in str(error.value)
    assert "xyzzy: unknown setting" in str(error.value) and "xyzzy: unknown setting," not in str(error.value)


OTHERS = (
    "DIAG_RUN_DIR",
    "DIAG_FAULT",
    "DIAG_STACK_SIGNAL",
    "DIAG_OUR_TEAM",
    "diag_port",
    "DIAGNOSE",
    "DIAG_X",
)


@pytest.mark.parametrize("name", OTHERS)
def test_variable_of_somebody_else_is_left_alone(name: str) -> None:
    assert unread_variables({name: "x"}) == []


def test_variable_that_nothing_reads_is_said_once_and_the_job_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "diag", "run", "-q", "--no-http", "--run-root", str(tmp_path), "--", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"DIAG_STACK_SECOND": "3"},
    )

    assert (done.returncode, done.stdout) == (0, "")
    assert (
        done.stderr == "diag: DIAG_STACK_SECOND is not a setting of diag: did you mean DIAG_STACK_SECONDS?\n"
    )
