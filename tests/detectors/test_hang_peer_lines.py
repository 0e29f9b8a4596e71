"""What the program's text says of a process that a rank asks: the lock that it takes twice, the loop in which it waits for
the rank; silence of one that does neither."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from diag.model import Finding
from diag.model.observations import FrameVariables, ProgramRead, ThreadStack, Variable, VariablesRead
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait
from diag.sources.host.job_files import Files
from diag.sources.stacks import program
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_waits_that_end import ASKED, ASKS, FROM_RANK, LISTENS, reads
from tests.facts import frames, stack, tree
from tests.programs import line_of

COLLECTOR = """
class Journal:
    def write(self, line):
        with self.lock:
            self.file.write(line)
            self.roll()  # Journal.write

    def roll(self):
        with self.lock:  # Journal.roll
            self.file.close()

    def close(self):
        with self.other:
            self.roll()  # Journal.close


def read_exact(conn):
    return conn.recv(4)  # read_exact


def serve(conn):
    while True:
        while room < BATCH:
            room += read_exact(conn)  # serve
        conn.send(b"ok")
        room -= BATCH
"""
LOCK = Wait("condition", "futex", of_python=True)
REQUEST = Wait(
    "tcp_receive", "recvfrom", 9, peer="127.0.0.1:8000", silent_seconds=20.0,
    others=(Party(ASKED, 0, "python collector.py"),),
)  # fmt: skip


def asked(path: Path, marks: Sequence[str], wait: Wait, values: dict[str, str] | None = None) -> Finding:
    script = path / "collector.py"
    script.write_text(COLLECTOR)
    lines = [f"{mark} {script}:{line_of(COLLECTOR, mark)}" for mark in marks]
    wanted = {frame.line: frame.function for frame in frames(*lines)}
    found = program.read(Files(), str(script), wanted, time.time() + 1)
    places = tuple(program._place_of(str(script), row) for row in found["places"])
    threads = (ThreadWait(ASKED, "main", "S", "", LISTENS), ThreadWait(ASKED + 1, "worker", "S", "", wait))
    service = ProcessWaits(ASKED, 1, "python collector.py", threads, job=False)
    story = steady()
    for at in range(0, 60, 2):
        for rank in range(2):
            story.tell(tree(rank, story.now), stack(rank, story.now, ASKS), reads(rank, REQUEST, service))
            told = stack(rank, story.now, lines, pid=ASKED)
            worker = replace(told.threads[0], thread_id=ASKED + 1, name="worker")
            main = ThreadStack(
                ASKED, "MainThread", frames("serve_forever /usr/lib/python3.11/socketserver.py:235")
            )
            story.tell(replace(told, threads=(main, worker)))
            if at == 4:
                story.tell(ProgramRead(rank, ASKED, places))
                read = tuple(
                    FrameVariables(
                        ASKED + 1, one.function, one.file, one.line, False,
                        tuple(Variable(name, text) for name, text in (values or {}).items()),
                    )
                    for one in frames(*lines)
                )  # fmt: skip
                story.tell(VariablesRead(rank, ASKED, read))
        story.wait(2.0)
    return story.hang()


def test_lock_that_a_thread_of_the_process_takes_twice_is_named(tmp_path: Path) -> None:
    hang = asked(tmp_path, ("Journal.write", "Journal.roll"), LOCK)

    assert hang.cause == "service_is_idle"
    assert (
        f"thread worker (tid {ASKED + 1}) is inside of `with self.lock:` already, in Journal.write"
        in hang.summary
    )
    assert hang.advice.startswith("The process that was asked has locked itself out")


def test_lock_of_another_name_is_not_the_same(tmp_path: Path) -> None:
    hang = asked(tmp_path, ("Journal.close", "Journal.roll"), LOCK)

    assert "already" not in hang.summary and "locked itself out" not in hang.advice


def test_loop_in_which_it_waits_for_the_rank_is_shown_with_its_values(tmp_path: Path) -> None:
    hang = asked(tmp_path, ("serve", "read_exact"), replace(FROM_RANK), {"room": "28", "BATCH": "32"})

    assert "is in the loop `while room < BATCH:`" in hang.summary
    assert "whose condition changes by `room += read_exact(conn)`" in hang.summary
    assert "`room` was 28 and `BATCH` was 32 when read" in hang.summary


def test_thread_that_waits_for_a_lock_once_is_not_shown(tmp_path: Path) -> None:
    hang = asked(tmp_path, ("Journal.roll",), LOCK)

    assert "already" not in hang.summary and "is in the loop" not in hang.summary
