"""Who calls destroy_process_group while others wait is to blame, not they; who ends with all the others is not said
to have left."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.detectors.test_hang_evidence import GPU_WAIT, quiet, steady
from tests.facts import ALL_REDUCE, TRAIN, Story

DESTROY = (
    *TRAIN,
    "leave /app/train.py:120",
    "destroy_process_group torch/distributed/distributed_c10d.py:2300",
)


def hung(stacks: dict[int, Sequence[str]]) -> Story:
    story = steady(len(stacks))
    quiet(story, stacks, lambda _: [])
    return story


@pytest.mark.parametrize("wait", [GPU_WAIT, ALL_REDUCE], ids=["gpu", "collective"])
def test_rank_that_leaves_while_the_others_wait_is_to_blame(wait: Sequence[str]) -> None:
    hang = hung({0: wait, 1: DESTROY, 2: wait}).hang()

    assert (hang.klass, hang.cause) == ("teardown", "left_before_the_others")
    assert (hang.ranks, hang.waiting_ranks) == ((1,), (0, 2))
    assert (
        "rank 1 has been leaving the process group in leave (/app/train.py:120), inside destroy_process_group"
        in hang.summary
    )
    assert "a loop that is shorter there" in hang.advice


def test_ranks_that_all_end_have_left_nobody() -> None:
    found = hung({0: DESTROY, 1: DESTROY}).findings()

    assert not any(finding.cause == "left_before_the_others" for finding in found)
