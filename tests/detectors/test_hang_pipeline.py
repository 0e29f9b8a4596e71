"""Whom a pipeline stage waits for, by its stack alone."""

from __future__ import annotations

import pytest

from diag.detectors.hang.pipeline import pipeline_fronts
from tests.detectors.test_hang import started
from tests.facts import SLEEP, TRAIN, stack

FILE = "megatron/core/pipeline_parallel/p2p_communication.py"


@pytest.mark.parametrize(
    ("calls", "stages", "missing"),
    [
        ({2: "recv_forward"}, 2, {2: (0,)}),
        ({0: "P2PCommunicator.recv_backward"}, 2, {0: (2,)}),  # a method, in newer versions
        ({0: "send_forward", 2: "recv_forward"}, 2, {0: (), 2: ()}),
        ({2: "recv_forward", 3: "recv_forward"}, 2, {2: (0,), 3: (1,)}),
        ({1: "send_forward_recv_forward"}, 4, {1: (0, 2)}),
        ({2: "recv_forward"}, 3, {}),  # no such layout
        ({2: "_communicate"}, 2, {}),  # of which it is not known with whom
        ({}, 2, {}),
    ],
)
def test_stage_waits_for_those_that_do_not_exchange_with_it(
    calls: dict[int, str], stages: int, missing: dict[int, tuple[int, ...]]
) -> None:
    story = started(4)
    for rank in range(4):
        inside = (*TRAIN, f"{calls[rank]} {FILE}:100") if rank in calls else SLEEP
        story.tell(stack(rank, story.now, inside))
    fronts = pipeline_fronts(list(story.engine.job.ranks.values()), 4, stages)

    assert {front.waiting[0]: front.missing for front in fronts} == missing


def test_call_is_megatrons_and_the_one_that_names_the_stages() -> None:
    story = started(4)
    story.tell(stack(1, story.now, (*TRAIN, "recv_forward /app/pipe.py:9", "sleep /app/pipe.py:20")))
    story.tell(stack(2, story.now, (*TRAIN, f"wrapped {FILE}:9", f"recv_forward {FILE}:100")))
    fronts = pipeline_fronts(list(story.engine.job.ranks.values()), 4, 2)

    assert [(front.waiting, front.op) for front in fronts] == [((2,), "recv_forward")]
