"""A rank that waits in one call, or in one after another at the same line: what proves that it is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model.observations import Iteration
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_left_early import asleep
from tests.facts import ALL_REDUCE, TRAIN, stack, tree

_COMPUTES = (*TRAIN, "until /app/train.py:8")


@pytest.mark.parametrize(
    ("wakes", "held"),
    [
        pytest.param(0, True, id="one-call"),
        # A step takes two seconds and 0.2 ms of the waiting thread's CPU, which no tick of the kernel shows.
        pytest.param(5, False, id="a-call-each-step"),
        pytest.param(None, True, id="switches-cannot-be-read"),
    ],
)
def test_a_thread_that_wakes_is_in_another_call(wakes: int | None, held: bool) -> None:
    story = steady()
    for turn in range(30):
        at = story.now
        switches = None if wakes is None else 1000 + turn * wakes
        story.tell(
            replace(tree(0, at), switches=switches),
            stack(0, at, ALL_REDUCE),
            tree(1, at, state="R", cpu=at),
            stack(1, at, _COMPUTES),
        )
        story.wait(2.0)

    assert [finding.id for finding in story.findings()] == (["held-up"] if held else [])


def test_rank_that_is_found_at_one_line_of_its_loop_for_a_while_keeps_holding_the_others_up() -> None:
    """A loop that tries again: its samples alternate for a minute, and then all fall on the sleep."""
    story = steady()
    for number in (11, 12):  # every step of this job may take ten seconds
        story.still(10.0, {0: ALL_REDUCE, 1: ALL_REDUCE})
        story.tell(Iteration(1, number, 100, f"iteration {number}"))
    ids = []
    for turn in range(60):
        at = story.now
        line = 38 if turn < 30 and turn % 2 else 42
        story.tell(
            replace(tree(0, at), switches=1000),
            stack(0, at, ALL_REDUCE),
            tree(1, at),
            stack(1, at, (*TRAIN, f"add /app/catalog.py:{line}")),
            asleep(1),
        )
        story.wait(2.0)
        ids.append([finding.id for finding in story.findings()])

    first = ids.index(["held-up"])
    assert first < 30 and [one for one in ids[first:] if one != ["held-up"]] == []
