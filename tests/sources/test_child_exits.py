"""Children of another process end, and how they did is told though their parent reaps them at once."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from diag.model import Record
from diag.model.observations import ChildEnded, Unparsed
from diag.sources.host.child_exits import SOURCE, ChildExits, parse

# Starts two, tells their pids, and waits for both as a pool does; the line that is read lets the first end.
PARENT = """
import subprocess, sys
code = "import os, signal, sys\\nsys.stdin.readline()\\n" + sys.argv[1]
children = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in range(2)]
print(*(child.pid for child in children), flush=True)
sys.stdin.readline()
children[0].communicate(b"end\\n")
print("reaped", flush=True)
sys.stdin.readline()
children[1].kill(); children[1].wait()
"""


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("signal.alarm(1); signal.pause()", (None, 14)),
        ("os.kill(os.getpid(), 9)", (None, 9)),
        ("sys.exit(3)", (3, None)),
        ("pass", None),
    ],
)
def test_end_of_a_child_is_told_unless_it_ended_well(
    code: str, found: tuple[int | None, int | None] | None
) -> None:
    words = [sys.executable, "-c", PARENT, code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        first, second = map(int, parent.stdout.readline().split())
        exits = ChildExits()
        exits.watch([first, second])
        parent.stdin.write("go on\n")
        parent.stdin.flush()
        payloads, until = [], time.monotonic() + 20
        while first in exits.watched and time.monotonic() < until:
            payloads += exits.ended(1.0)
        facts = [fact for one in payloads for fact in parse(Record(SOURCE, one, 1))]
        exits.watch([first, second])  # as long as an older look names it
        assert exits.watched == {second} and exits.ended(0.0) == []
        exits.close()
        parent.stdin.write("end\n")

    known = [(one.pid, one.exit_code, one.signal) for one in facts if isinstance(one, ChildEnded)]
    assert known == ([(first, *found)] if found is not None else [])


def test_process_that_is_gone_before_it_was_watched_says_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    exits = ChildExits()
    for _ in range(2):
        exits.watch([gone.pid])
        assert exits.ended(0.0) == [] and not exits.watched


def test_torn_record_is_unparsed() -> None:
    assert all(isinstance(one, Unparsed) for one in parse(Record(SOURCE, {"pid": 7}, 1)))
