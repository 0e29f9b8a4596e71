"""The command line: every verb has help, mistakes are usage errors in one line, and help is quick."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import diag
from diag.cli.main import VERBS, main, make_parser

LOG = Path(__file__).parents[1] / "captures" / "logs" / "megatron_dpo_4.6.0.log"


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "diag", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env,
    )


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help_with_every_option_explained(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])

    assert end.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: diag {verb}")
    parser = make_parser(verb)._subparsers._group_actions[0].choices[verb]  # type: ignore[union-attr, index]
    assert all(action.help for action in parser._actions)


def test_help_names_every_verb_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])

    text = capsys.readouterr().out
    assert all(f"\n    {verb} " in text for verb in VERBS)
    assert "10 findings of level warning or above" in text


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version_is_that_of_the_package(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([option])

    assert (end.value.code, capsys.readouterr().out) == (0, f"diag {diag.__version__}\n")


@pytest.mark.parametrize(
    "words",
    [
        ["fly"],
        ["run", "--fly"],
        ["--fly"],
        ["dump", "--run-dir", "x", "--endpoint", "y"],
        ["replay"],
        ["run", "--port", "x", "--", "true"],
    ],
)
def test_mistake_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(words)
    except SystemExit as end:
        code = end.code

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and "\n\nhint: " in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "no command"),
        (["run", "--"], "no command"),
        (["watch", "--pid", "99999999"], "no process has pid 99999999"),
        (["explain", "hagn"], "no finding, class, cause, rule, variable or code is called 'hagn'"),
        (["replay", "/nowhere/at/all"], "does not exist"),
        (["dump", "--endpoint", "not-an-address"], "not a hub address"),
        (["dump", "--endpoint", "file:///etc/passwd"], "not a hub address"),
    ],
)
def test_mistake_that_argparse_cannot_see_is_said_with_a_hint(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words)

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and said in err


@pytest.mark.parametrize("words", [[], [""]])
def test_nothing_said_shows_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(words) == 2
    except SystemExit as end:
        assert end.code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["replay", "--help"],
        ["watch", "--help"],
        ["top", "--help"],
    ],
)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom diag.cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "heavy = {'pydantic', 'pydantic_settings', 'fastapi', 'uvicorn', 'torch', 'psutil', 'prometheus_client', 'asyncio',\n"
        "    'textual', 'rich'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_dump_loads_nothing_that_a_person_would_wait_for() -> None:
    slow = (
        "{'http.client', 'urllib.request', 'ssl', 'dataclasses', 'diag.model', 'diag.launch.rundir',"
        " 'diag.outputs', 'diag.settings'}"
    )
    code = (
        "import sys\nfrom diag.cli.main import main\nmain(['dump', '--endpoint', 'http://127.0.0.1:1'])\n"
        f"sys.exit(','.join(sorted({slow} & set(sys.modules))) or 0)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "does not answer" in done.stderr


def test_explain_without_an_id_lists_every_finding_and_each_has_its_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from diag.outputs import manual

    assert main(["explain", "--lang", "en"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]

    assert listed == manual.ids()
    for name in listed:
        assert main(["explain", name, "--lang", "en"]) == 0
        text = capsys.readouterr().out
        assert all(heading in text for heading in ("Meaning", "Evidence", "What to do", "False alarms")), name


def test_typing_error_in_a_finding_gets_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "rank-dyed"])

    assert "did you mean rank-died" in capsys.readouterr().err


def test_output_that_nobody_reads_on_is_no_error() -> None:
    # given `diag replay LOG --changes | head -0`, also where all of the output fits into Python's buffer
    read, write = os.pipe()
    os.close(read)

    done = subprocess.run(
        [sys.executable, "-m", "diag", "explain", "hang"],
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)

    assert (done.returncode, done.stderr) == (1, b"")


def test_text_that_the_terminal_cannot_show_is_no_error(tmp_path: Path) -> None:
    # given a failed rank with words of another alphabet, and a terminal of ASCII
    log = tmp_path / "job.log"
    log.write_text("OSError: [Errno 24] Too many open files: '/数据/\udcff'\n", errors="surrogateescape")

    done = run("replay", str(log), env={**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"})

    assert done.returncode in (0, 10), done.stderr
    assert done.stderr == ""


def test_closed_stdout_is_no_error() -> None:
    done = subprocess.run(
        f'"{sys.executable}" -m diag explain hang >&-',
        shell=True,
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_words_after_two_dashes_are_the_commands_own(tmp_path: Path) -> None:
    args = make_parser("run").parse_args(["run", "-q", "--", "sh", "-c", "x", "--", "--port", "7"])

    assert args.command == ["--", "sh", "-c", "x", "--", "--port", "7"]
    assert args.port is None


def test_command_without_dashes_keeps_its_own_options() -> None:
    args = make_parser("run").parse_args(["run", "--port", "0", "torchrun", "--host", "x", "train.py"])

    assert (args.command, args.host, args.port) == (["torchrun", "--host", "x", "train.py"], None, 0)
