"""What the program's text says of a process that a rank asks: the lock that it takes twice, the loop in which it waits for
the rank, the way to its next request without an answer; how much the rank waits for; and silence of one that does none of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import (
    FrameVariables,
    ProgramPlace,
    ProgramRead,
    ThreadStack,
    Variable,
    VariablesRead,
)
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait
from diag.sources.host.job_files import Files
from diag.sources.stacks import program
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_waits_that_end import ASKED, ASKS, FROM_RANK, LISTENS, reads
from tests.facts import TRAIN, frames, pid_of, stack, tree
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


def normalise(conn):
    for line in conn:  # normalise
        if not line.strip():
            continue
        conn.write(norm(line))


def scores(conn):
    while True:
        row = conn.recv()  # scores
        try:
            score = judge(row)
        except ValueError:
            continue
        conn.send(score)


def echo(conn):
    for line in conn:  # echo
        conn.write(line)
"""
CLIENT = """
def fetch(stream):
    size = int(stream.readline())  # head
    return stream.read(size)  # fetch
"""
OTHER = ASKED + 100
LOCK = Wait("condition", "futex", of_python=True)
REQUEST = Wait(
    "tcp_receive", "recvfrom", 9, peer="127.0.0.1:8000", silent_seconds=20.0,
    others=(Party(ASKED, 0, "python collector.py"),),
)  # fmt: skip


def read(script: Path, text: str, lines: Sequence[str]) -> tuple[ProgramPlace, ...]:
    script.write_text(text)
    wanted = {frame.line: frame.function for frame in frames(*lines)}
    found = program.read(Files(), str(script), wanted, time.time() + 1)
    return tuple(program._place_of(str(script), row) for row in found["places"])


def variables(thread: int, lines: Sequence[str], values: dict[str, str]) -> tuple[FrameVariables, ...]:
    known = tuple(Variable(name, text) for name, text in values.items())
    return tuple(
        FrameVariables(thread, one.function, one.file, one.line, False, known) for one in frames(*lines)
    )


def asked(
    path: Path,
    marks: Sequence[str],
    wait: Wait,
    values: dict[str, str] | None = None,
    *,
    size: str = "",
    line: str = "fetch",
    second: Wait | None = None,
) -> Finding:
    """`size`: the rank is in CLIENT at the line of this mark, where that is what it has read. `second`: what another process
    waits for that may answer too."""
    script, client = path / "collector.py", path / "client.py"
    lines = [f"{mark} {script}:{line_of(COLLECTOR, mark)}" for mark in marks]
    places = read(script, COLLECTOR, lines)
    own = [f"fetch {client}:{line_of(CLIENT, line)}"] if size else []
    places += read(client, CLIENT, own)
    asks = (*TRAIN, *own, *ASKS[-1:]) if size else ASKS
    worker = ThreadWait(ASKED + 1, "worker", "S", "", wait)
    threads = (ThreadWait(ASKED, "main", "S", "", LISTENS if second is None else LOCK), worker)
    processes = [ProcessWaits(ASKED, 1, "python collector.py", threads, job=False)]
    request = REQUEST
    if second is not None:
        main = ThreadWait(OTHER, "main", "S", "", second)
        processes.append(ProcessWaits(OTHER, 1, "python collector.py", (main,), job=False))
        request = replace(REQUEST, others=(*REQUEST.others, Party(OTHER, 0, "python collector.py")))
    story = steady()
    for at in range(0, 60 if second is None else 240, 2):
        for rank in range(2):
            story.tell(tree(rank, story.now), stack(rank, story.now, asks), reads(rank, request, *processes))
            told = stack(rank, story.now, lines, pid=ASKED)
            working = replace(told.threads[0], thread_id=ASKED + 1, name="worker")
            serving = ThreadStack(
                ASKED, "MainThread", frames("serve_forever /usr/lib/python3.11/socketserver.py:235")
            )
            story.tell(replace(told, threads=(serving, working)))
            if at == 4:
                story.tell(ProgramRead(rank, ASKED, places))
                told_values = variables(ASKED + 1, lines, values or {})
                story.tell(VariablesRead(rank, ASKED, told_values))
                story.tell(VariablesRead(rank, pid_of(rank), variables(pid_of(rank), own, {"size": size})))
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


def test_way_to_the_next_request_without_an_answer_is_shown_with_the_last_one(tmp_path: Path) -> None:
    hang = asked(tmp_path, ("normalise",), FROM_RANK, {"line": "''"})

    assert "waits for the next request, to which `if not line.strip():` (" in hang.summary
    assert "leads without its answer, `conn.write(norm(line))` (" in hang.summary
    assert "`line` was '' when read" in hang.summary
    assert hang.advice.startswith("A process that is asked has to answer each request")


def test_process_that_answers_each_request_is_not_said_to_leave_one_out(tmp_path: Path) -> None:
    hang = asked(tmp_path, ("echo",), FROM_RANK, {"line": "''"})

    assert "without its answer" not in hang.summary and "answer each request" not in hang.advice


def test_process_that_works_on_the_request_is_not_said_to_leave_it_out(tmp_path: Path) -> None:
    hang = asked(tmp_path, ("normalise",), LOCK, {"line": "''"})

    assert "without its answer" not in hang.summary


def test_length_that_the_rank_waits_for_is_shown_where_both_ends_wait(tmp_path: Path) -> None:
    hang = asked(tmp_path, ("echo",), FROM_RANK, size="6412")

    assert "returns once `size` bytes have come, 6412 when read, and fewer have" in hang.summary
    assert "announce the number of bytes of what is sent" in hang.advice


def test_line_that_waits_for_no_number_of_bytes_says_nothing_of_it(tmp_path: Path) -> None:
    hang = asked(tmp_path, ("echo",), FROM_RANK, size="6412", line="head")

    assert "bytes have come" not in hang.summary


def test_last_request_is_shown_where_a_handler_leads_past_the_answer(tmp_path: Path) -> None:
    hang = asked(tmp_path, ("scores",), FROM_RANK, {"row": "'bad'"})

    assert "to which `except ValueError:` (" in hang.summary
    assert "`conn.send(score)` (" in hang.summary and "`row` was 'bad' when read" in hang.summary


@pytest.mark.parametrize(("second", "said"), [(LOCK, True), (Wait("running"), False)])
def test_one_of_several_is_shown_only_where_none_of_them_works(
    tmp_path: Path, second: Wait, said: bool
) -> None:
    hang = asked(tmp_path, ("scores",), FROM_RANK, {"row": "'bad'"}, second=second)

    assert ("to which `except ValueError:` (" in hang.summary) is said
    assert "`row` was" not in hang.summary  # whichever had it
