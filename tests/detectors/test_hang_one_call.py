"""A rank that waits in one call, or in one after another at the same line: what proves that it is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.detectors.test_hang import steady
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
