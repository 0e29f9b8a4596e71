"""Where a script stops others by a signal; silence of one that only handles signals, speaks of them, or was written since."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from diag.sources.host.job_files import Files
from diag.sources.stacks import stops

GUARD = """
import os, signal
# os.kill(pid, signal.SIGSTOP) is too harsh
signal.signal(signal.SIGTSTP, signal.SIG_IGN)
while True:
    for pid in pids():
        if size(pid) > HIGH:
            os.kill(pid, signal.SIGSTOP)
"""
HOUSE = """#!/bin/bash
# kill -STOP is what this does
for pid in "$@"; do
    [ "$1" = x ] && kill -s STOP "$pid"
done
"""


def found(path: Path, argv: list[str], text: str, *, age: float = 1.0) -> list[tuple[int, str, list[str]]]:
    (path / "script").write_text(text)
    read = stops.read(Files(), argv, str(path), time.time() + age)
    rows = read["files"][str(path / "script")]["statements"] if read is not None else []
    return [(row["line"], row["text"], [one["text"] for one in row["around"]]) for row in rows]


def test_signal_is_found_in_python_with_its_condition(tmp_path: Path) -> None:
    told = found(tmp_path, ["/usr/bin/python3.11", "-u", "script", "--high", "900"], GUARD)

    assert told == [(8, "os.kill(pid, signal.SIGSTOP)", ["if size(pid) > HIGH:"])]


@pytest.mark.parametrize(
    "line", ["proc.suspend()", 'run(["kill", "-STOP", str(pid)])', "proc.send_signal(SIGSTOP)"]
)
def test_other_ways_to_stop_a_process_are_known(tmp_path: Path, line: str) -> None:
    assert [text for _, text, _ in found(tmp_path, ["python", "script"], line)] == [line]


def test_signal_is_found_in_a_shell_script(tmp_path: Path) -> None:
    assert found(tmp_path, ["bash", "script"], HOUSE) == [(4, '[ "$1" = x ] && kill -s STOP "$pid"', [])]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["python", "script"], "signal.signal(signal.SIGTSTP, stop)"),
        (["python", "script"], "os.kill(pid, signal.SIGCONT)"),
        (["bash", "script"], "kill -CONT $pid; kill $pid"),
        (["sleep", "script"], "kill -STOP 1"),
        (["bash", "-c", "script"], "kill -STOP 1"),
    ],
)
def test_script_that_stops_nothing_has_none(tmp_path: Path, argv: list[str], text: str) -> None:
    assert found(tmp_path, argv, text) == []


def test_text_that_is_newer_than_the_process_is_not_what_it_runs(tmp_path: Path) -> None:
    assert found(tmp_path, ["python", "script"], GUARD, age=-60.0) == []


def test_command_has_no_secret(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(GUARD)
    read = stops.read(
        Files(), ["python", "script", "--api-key=abcd1234efgh5678"], str(tmp_path), time.time() + 1
    )

    assert read is not None and "abcd1234" not in read["command"]
