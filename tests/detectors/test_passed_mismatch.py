"""Calls that did not fit together and that NCCL let pass: seen in the recorders while nobody waits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from diag.detectors.training.passed_mismatch import PassedMismatchDetector
from diag.engine.replay import replay
from diag.model.observations import CollectiveEntry, CollectiveGroup, FlightRecorder
from tests.core.test_waitgraph import call, recorder
from tests.facts import Story

CAPTURES = Path(__file__).parents[1] / "captures"


def calls(
    rank: int, *kinds: tuple[str, int], members: tuple[int, ...] = (0, 1), desc: str = "undefined"
) -> FlightRecorder:
    """Calls that are over, in this order: an operation and a number of elements each."""
    entries: list[CollectiveEntry] = [
        dataclasses.replace(
            call("1", seq, op),
            backend="nccl",
            input_sizes=((size,),),
            output_sizes=((size,),),
            pending=False,
            desc=desc,
        )
        for seq, (op, size) in enumerate(kinds, 1)
    ]
    made = recorder(rank, entries)
    group = CollectiveGroup("nccl", "1", desc, members, len(kinds), len(kinds))
    return dataclasses.replace(made, groups=(group,), backends=("nccl",))


def told(*recorders: FlightRecorder) -> Story:
    story = Story([PassedMismatchDetector()], world=len(recorders))
    for one in recorders:
        story.tell(one)
    story.wait(2.0)
    return story


def test_sizes_that_differ_and_that_nobody_waits_for_are_a_warning() -> None:
    """2 x H200, NCCL 2.28.9: 4M against 3M elements, and the job went on."""
    good = ("all_reduce", 8)
    story = told(calls(0, good, ("all_reduce", 4 << 20), good), calls(1, good, ("all_reduce", 3 << 20), good))

    found = story.the("rank-desync")
    assert (found.severity.value, found.cause, found.ranks) == ("warning", "collectives_differ", (0, 1))
    assert "rank 0 called all_reduce [4194304]" in found.summary
    assert "(call 2 of group 1 of ranks 0-1)" in found.summary and "1 of 3 calls" in found.summary


def test_the_one_that_calls_something_else_is_named() -> None:
    other, usual = ("all_gather", 8), ("all_reduce", 8)
    everybody = (0, 1, 2)
    story = told(
        calls(0, usual, usual, members=everybody),
        calls(1, other, other, members=everybody),
        calls(2, usual, usual, members=everybody),
    )

    found = story.the("rank-desync")
    assert (found.ranks, found.waiting_ranks, found.confidence.value) == ((1,), (0, 2), "high")


@pytest.mark.parametrize(
    "second",
    [
        [("all_reduce", 8), ("all_reduce", 8)],
        [("all_reduce", 8)],  # one call behind
        [("all_reduce", 8), ("all_to_all", 9)],
    ],
)
def test_calls_that_fit_or_may_differ_or_are_not_there_say_nothing(second: list[tuple[str, int]]) -> None:
    last = "all_to_all" if len(second) > 1 and second[1][0] == "all_to_all" else "all_reduce"

    assert told(calls(0, ("all_reduce", 8), (last, 8)), calls(1, *second)).findings() == []


@pytest.mark.parametrize(
    "name", ["gpu-drills/starved-rank", "h200-live/missed-collective-recorder", "h200-live/loop-slow"]
)
def test_recorders_of_real_jobs_have_nothing_that_does_not_fit(name: str) -> None:
    _, changes, _ = replay([CAPTURES / name])

    assert "rank-desync" not in {change.finding.id for change in changes}
