"""Recorded runs that got slower, or whose loss became nan: replay says what was injected, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay, replay_records

FOLDER = Path(__file__).parents[1] / "captures" / "steps"


def test_rank_that_gets_slow_in_the_midst_of_a_real_run_is_said_after_a_minute_and_named_soon_after() -> None:
    engine, changes = replay_records(JournalReader(segments(FOLDER / "slow-from-step")))

    told = [change for change in changes if change.finding.id == "throughput-drop"]
    drop = told[-1].finding
    assert (drop.cause, drop.ranks, drop.waiting_ranks, drop.severity.value) == (
        "straggler",
        (1,),
        (0,),
        "warning",
    )
    assert "2.7 times the 0.4 s before" in drop.summary and "since iteration 561" in drop.summary
    assert 55 < told[0].at - drop.since < 70 and told[-1].at - drop.since < 90
    straggler = next(change for change in changes if change.finding.id == "straggler")
    assert "slow_part (/job/train.py:7)" in straggler.finding.summary
    assert {change.finding.id for change in changes} == {"throughput-drop", "straggler"}
    assert engine.job.progress.steps.median() == pytest.approx(0.4, rel=0.05)


def test_loss_of_a_real_run_that_becomes_nan_is_said_once() -> None:
    engine, changes, _ = replay([FOLDER / "nan_loss.log"])

    assert [(change.finding.id, change.kind.value) for change in changes] == [("loss-nan", "opened")]
    assert "the loss is nan at iteration 11" in engine.active()[0].summary
    assert "the last good value was 0.69577 at iteration 10" in engine.active()[0].summary
