"""Ranks that wait for a send or receive which they began before, by the program's text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import ProgramRead
from diag.sources.host.job_files import Files
from diag.sources.stacks import program
from tests.detectors.test_hang import steady
from tests.facts import frames, pid_of
from tests.programs import line_of

TEXT = """
def swap(flat, other, peer):
    requests = dist.batch_isend_irecv([P2POp(dist.isend, flat, peer), P2POp(dist.irecv, other, peer)])
    for one in requests:
        one.wait()  # swap


def wait_for(event):
    event.wait()  # event


def train(peer):
    while True:
        load()  # loads
        swap(flat, other, peer)  # swaps
        wait_for(started)  # waits


train(1)  # top
"""
SWAPS, LOADS, WAITS = ("swaps", "swap"), ("loads",), ("waits", "event")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TEXT)
    return tmp_path / "train.py"


def told(path: Path, *places: tuple[str, ...], seconds: float = 90.0) -> Finding:
    names = {"event": "wait_for", "swap": "swap"}
    story = steady(world=len(places))
    stacks = {
        rank: [
            f"<module> {path}:{line_of(TEXT, 'top')}",
            f"train {path}:{line_of(TEXT, marks[0])}",
            *(f"{names[mark]} {path}:{line_of(TEXT, mark)}" for mark in marks[1:]),
        ]
        for rank, marks in enumerate(places)
    }
    story.still(10.0, stacks)
    for rank, stacked in stacks.items():
        wanted = {frame.line: frame.function for frame in frames(*stacked)}
        found = program.read(Files(), str(path), wanted, time.time() + 1).get("places", ())
        places_read = tuple(program._place_of(str(path), row) for row in found)
        story.tell(ProgramRead(rank, pid_of(rank), places_read))
    story.still(seconds, stacks)
    return story.the("held-up")


def test_ranks_that_all_wait_for_messages_have_no_partners_that_match(path: Path) -> None:
    found = told(path, SWAPS, SWAPS, SWAPS)

    assert (found.klass, found.cause) == ("collective_mismatch", "message_not_met")
    assert (found.ranks, found.waiting_ranks) == ((), (0, 1, 2))
    assert "rank 0 waits for what `requests = dist.batch_isend_irecv([" in found.summary
    assert "who sends to whom in this round" in found.advice and "lock" not in found.advice


def test_rank_elsewhere_is_whom_the_messages_are_awaited_from(path: Path) -> None:
    found = told(path, SWAPS, LOADS, SWAPS)

    assert (found.cause, found.ranks, found.waiting_ranks) == ("not_in_collective", (1,), (0, 2))


def test_wait_for_something_else_is_none_for_a_message(path: Path) -> None:
    assert told(path, WAITS, WAITS).cause == "not_in_collective"


def test_text_that_was_not_read_tells_nothing_of_messages(path: Path) -> None:
    path.unlink()

    assert told(path, SWAPS, SWAPS).cause == "not_in_collective"
