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
    if run.name == "rank-killed":
        assert [(finding.id, finding.ranks, finding.waiting_ranks) for finding in engine.active()] == [("rank-died", (1,), (0,))]
    if run.name.startswith("healthy"):
        assert changes == []
        assert engine.job_word() == "finished"
        assert engine.job.iteration == 30


def test_hang_was_found_within_a_minute_of_the_last_progress() -> None:
    for run in RUNS:
        _, changes = replay_records(JournalReader(segments(run)))
        for change in changes:
            if change.finding.id == "hang" and change.kind.value == "opened":
                assert 15 <= change.at - change.finding.since <= 40, run.name


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
