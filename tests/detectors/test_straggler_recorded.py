"""Stragglers and healthy jobs that were recorded on two H200."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.detectors.training.straggler import StragglerDetector
from diag.model import Placement
from diag.model.observations import Iteration, RankFound, StackSample, ThreadStack
from tests.detectors.test_straggler import gpu_sample
from tests.facts import TICKS, Story, frames

RECORDED = Path(__file__).parents[1] / "captures" / "gpu"


def recorded(name: str) -> Story:
    """A capture of two H200: its samples of the GPUs, the steps that rank 1 printed, and a stack of each
    rank."""
    data = json.loads((RECORDED / f"{name}.json").read_text())
    story = Story([StragglerDetector()], start=data["start"])
    for rank, pid in enumerate(data["pids"]):
        story.tell(RankFound(rank, Placement(rank, rank, 2, "gpu-node-0", pid, TICKS, 0, 2, "local")))
    for at, kind, *rest in data["events"]:
        story.wait(max(0.0, at - story.now))
        if kind == "gpu":
            index, busy, watts, clock, pids = rest
            story.tell(
                gpu_sample(
                    index, busy / 100, watts, clock=clock * 1_000_000, pids=tuple(pids), limit=data["limit"]
                )
            )
        elif kind == "step":
            story.tell(Iteration(1, rest[0], rest[1], "", (("loss", 0.05),)))
        else:
            main = ThreadStack(data["pids"][rest[0]], "MainThread", frames(*rest[1]))
            story.tell(StackSample(rest[0], data["pids"][rest[0]], (main,), "pyspy", at))
    return story


def test_recorded_straggler_is_named_by_the_gpus_that_wait_and_the_line_it_sleeps_in() -> None:
    story = recorded("straggler")

    (change,) = [change for change in story.engine.history() if change.kind.value == "opened"]
    assert change.finding.ranks == (1,)
    assert change.finding.waiting_ranks == (0,)
    assert change.finding.confidence.value in ("low", "medium")
    assert any("131 W of 700 W" in item.excerpt for item in change.finding.evidence)


@pytest.mark.parametrize("name", ["healthy", "healthy__twohosts", "megatron_healthy"])
def test_recorded_healthy_jobs_give_nothing(name: str) -> None:
    assert recorded(name).engine.opened_total == {}
