"""A rank that asks again and again whether a call of its own is over waits in it as well as one that blocks there."""

from __future__ import annotations

from diag.model.observations import CollectiveEntry, CollectiveGroup, FlightRecorder
from tests.detectors.test_hang import steady
from tests.facts import TRAIN, Story, pid_of, stack, tree

_GROUP = CollectiveGroup("gloo", "0", "default_pg", (0, 1))
BUSY = (*TRAIN, "count /app/tally.py:8")
LOOKS = (*TRAIN, "poll /app/work.py:{}")  # `while not work.is_completed():` and the sleep below it


def recorded(story: Story, rank: int, seq: int, *, pending: bool) -> None:
    call = CollectiveEntry(
        "gloo", "0", "default_pg", seq, seq, False, "all_reduce", ((4,),), ((4,),), ("float",), "scheduled", not pending,
        pending, seq, 900.0,
    )  # fmt: skip
    story.tell(FlightRecorder(rank, story.now, "2.13", ("gloo",), (_GROUP,), (call,), pid_of(rank)))


def goes_on(story: Story, seconds: int, *, begun: bool, looking: float = 0.01) -> None:
    """Rank 0 computes at one line, rank 1 is found at the two lines of its loop by turns. `begun`: it has begun a call."""
    for second in range(seconds):
        if second % 10 == 5:
            recorded(story, 0, 40, pending=False)
            recorded(story, 1, 41 if begun else 40, pending=begun)
        story.tell(
            tree(0, story.now, cpu=0.3 * story.now), stack(0, story.now, BUSY),
            tree(1, story.now, cpu=looking * story.now),
            stack(1, story.now, [frame.format(10 + second // 3 % 2) for frame in LOOKS]),
        )  # fmt: skip
        story.wait(1.0)


def test_rank_that_computes_is_reported_by_whoever_looks_whether_its_call_is_over() -> None:
    story = steady()
    goes_on(story, 150, begun=True)
    found = story.the("held-up")
    assert (found.ranks, found.waiting_ranks) == ((0,), (1,))


def test_nobody_is_reported_where_no_call_was_begun() -> None:
    story = steady()
    goes_on(story, 100, begun=False)
    assert story.findings() == []


def test_nobody_is_reported_while_the_other_one_works_beside_its_call() -> None:
    story = steady()
    goes_on(story, 100, begun=True, looking=0.6)
    assert story.findings() == []
