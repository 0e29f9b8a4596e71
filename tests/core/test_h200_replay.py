"""Runs recorded live on H200 GPUs: replay must give what was said then, and the culprit that was injected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.capture import JournalReader, segments
from diag.replay import replay_records

RUNS = sorted(path.parent for path in (Path(__file__).parents[1] / "captures" / "h200-live").glob("*/expected.json"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_recorded_gpu_run_is_judged_as_it_was_injected(run: Path) -> None:
    expected = [tuple(map(_tuple, row)) for row in json.loads((run / "expected.json").read_text())["findings"]]

    engine, changes = replay_records(JournalReader(segments(run)))

    hangs = [finding for finding in engine.active() if finding.id == "hang"]
    assert [(f.id, f.klass, f.ranks, f.waiting_ranks) for f in hangs] == expected
    assert all(finding.confidence.value == "high" for finding in hangs)
    assert len(engine.job.gpus) == 2
    assert engine.job.ranks_seen == 2
    if run.name == "loop-slow":
        slow = next(finding for finding in [*engine.active(), *engine.resolved()] if finding.id == "straggler")
        assert (slow.ranks, slow.waiting_ranks) == ((1,), (0,)) and "write_report" in slow.summary
    if run.name.endswith("rank-killed"):
        assert [(finding.id, finding.ranks, finding.waiting_ranks) for finding in engine.active()] == [("rank-died", (1,), (0,))]
    if run.name.startswith("healthy"):
        assert changes == []
        assert engine.job_word() == "finished"
        assert engine.job.iteration == 30


@pytest.mark.parametrize("name", ["loop-skip-collective", "loop-data-hang", "loop-gil-held", "loop-dump-pipe", "data-hang-ras"])
def test_verdict_joins_stacks_recorder_ras_and_gpus(name: str) -> None:
    """On real NCCL; of loop-dump-pipe (--no-inject) the recorder's answer came through torch's dump pipe."""
    engine, _ = replay_records(JournalReader(segments(next(run for run in RUNS if run.name == name))))

    hang = next(finding for finding in engine.active() if finding.id == "hang")
    assert {item.kind for item in hang.evidence} >= {"remote_stack", "flight_recorder", "nccl_ras", "nvml"}
    said = " ".join(item.excerpt for item in hang.evidence)
    assert "rank 1 has not come to it" in said and " launched " in said


def test_hang_was_found_within_a_minute_of_the_last_progress() -> None:
    for run in RUNS:
        _, changes = replay_records(JournalReader(segments(run)))
        for change in changes:
            if change.finding.id == "hang" and change.kind.value == "opened":
                assert 15 <= change.at - change.finding.since <= 40, run.name


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
