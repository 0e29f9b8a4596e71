"""The head of `diag` and `diag --help`: what to type now, by what has happened."""

from __future__ import annotations

import re
import shlex

import pytest

from diag.cli.main import VERBS, main, make_parser
from diag.text.columns import columns

_COMMAND = re.compile(r"^  (diag .+?)(?:  +(\S.*))?$")


def _doors(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Of what `diag` alone prints before the list of commands: the commands of each door."""
    assert main([]) == 2
    doors: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.partition("\n    run ")[0].splitlines():
        if found := _COMMAND.match(line):
            assert columns(line) <= 80 and found[2]
            doors[next(reversed(doors))].append(found[1])
        elif line.endswith((":", "：")):
            doors[line] = []
    return {door: commands for door, commands in doors.items() if commands}


def test_three_doors_stand_before_the_verbs_and_each_command_is_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    doors = _doors(capsys)

    assert list(doors) == ["it hangs now:", "it died:", "before the run:"]
    commands = [command for door in doors.values() for command in door]
    assert len(commands) <= 9
    for command in commands:
        words = shlex.split(command.replace(" PID", " 812"))[1:]
        assert words[0] in VERBS
        make_parser(words[0]).parse_args(words)  # an option that the verb has not ends this


def test_doors_are_the_same_in_chinese(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    english = _doors(capsys)
    monkeypatch.setenv("DIAG_LANG", "zh")

    chinese = _doors(capsys)

    assert list(chinese.values()) == list(english.values())
    assert not set(chinese) & set(english)
