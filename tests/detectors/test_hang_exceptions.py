"""The exception behind a wait is shown with the line that raised it: that in whose handler the rank waits, and that which what it
waits at keeps; where there is none, or the rank has gone on, nothing is said."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from diag.model.observations import FrameVariables, Raised, VariablesRead
from diag.model.observations.waits import Wait
from tests.detectors.test_hang_endless_waits import GET, RANK, Job
from tests.facts import TRAIN, Story, frames

JOIN = (
    *TRAIN,
    "Saver.close /app/saver.py:46",
    "Queue.join /usr/lib/python3.11/queue.py:90",
    "Condition.wait /usr/lib/python3.11/threading.py:327",
)
ASKS = (*TRAIN, "fetch /app/net.py:12", "recv_into /usr/lib/python3.11/socket.py:706")
SILENT = Wait("tcp_receive", "recvfrom", 9, peer="10.0.0.5:443", silent_seconds=70.0)
# As recorded of a thread that wrote checkpoints (b05 of the eleventh round of first sight).
MISSING = Raised(
    "self.error",
    "FileNotFoundError: [Errno 2] No such file or directory: 'checkpoints/step-100.pt'",
    frames(
        "Saver._work /app/saver.py:40",
        "Saver._write /app/saver.py:34",
        "Path.stat /usr/lib/python3.11/pathlib.py:1013",
    ),
)
SAID = f"{MISSING.error}, raised in Saver._write (/app/saver.py:34)"


@dataclass
class Failed(Job):
    raised: tuple[Raised, ...] = ()
    handled: Raised | None = None
    at: str = ""  # the function in which it was when its variables were read

    def begun(self, story: Story) -> None:
        own = frames(*self.main)[len(TRAIN)]
        place = self.at or own.function, own.file, own.line
        handled = ((RANK, self.handled),) if self.handled is not None else ()
        read = FrameVariables(RANK, *place, False, (), self.raised)
        story.tell(VariablesRead(1, RANK, (read,), handled=handled))


def test_exception_of_the_thread_that_took_from_a_joined_queue_is_shown_with_its_line() -> None:
    hang = Failed(JOIN, raised=(MISSING,)).told()

    assert hang.cause == "nobody_takes"
    assert (
        f"no thread is left that takes from that queue and `self.error` keeps the exception {SAID}"
        in hang.summary
    )
    assert hang.summary.count("keeps the exception") == 1
    assert (
        "Mend what raised the exception that is shown above" in hang.advice and "Look for" not in hang.advice
    )
    assert any(one.excerpt.startswith(f"{MISSING.error}: Path.stat (") for one in hang.evidence)


def test_queue_whose_taker_left_no_exception_says_to_look_for_it() -> None:
    hang = Failed(JOIN).told()

    assert hang.cause == "nobody_takes" and "exception" not in hang.summary
    assert "Look for its exception (also one that it caught and only logged)" in hang.advice


def test_exception_in_whose_handler_the_rank_waits_is_shown() -> None:
    caught = replace(MISSING, name="", error="OSError: [Errno 27] File too large")
    hang = Failed(ASKS, wait=SILENT, handled=caught).told()

    assert hang.cause == "peer_is_silent"
    said = "the exception that it has caught is OSError: [Errno 27] File too large, raised in Saver._write ("
    assert said in hang.summary


def test_exception_of_a_future_that_nobody_asks_is_shown() -> None:
    failed = Raised("results[1]._exception", "ValueError: row 805")
    hang = Failed(ASKS, wait=SILENT, raised=(failed,)).told()

    assert "`results[1]._exception` keeps the exception ValueError: row 805" in hang.summary


@pytest.mark.parametrize(
    "job",
    [
        Failed(
            ASKS, wait=SILENT, raised=(replace(MISSING, name="error"),)
        ),  # a variable of its own: it was handled
        Failed(ASKS, wait=SILENT, raised=(MISSING,), at="load"),  # of a function in which it no longer is
        Failed(ASKS, wait=SILENT, handled=MISSING, at="load"),
        Failed(ASKS, wait=SILENT),
        Failed((*TRAIN, "take /app/reader.py:9", *GET)),
    ],
)
def test_nothing_is_said_of_what_was_handled_or_of_another_place(job: Failed) -> None:
    assert "exception" not in job.told().summary
