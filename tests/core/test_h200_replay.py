"""Runs recorded live on H200 GPUs: replay must give what was said then, and the culprit that was injected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay_records
from diag.outputs.report import job_status

HANGS = ("hang", "held-up")
RUNS = sorted(
    path.parent for path in (Path(__file__).parents[1] / "captures" / "h200-live").glob("*/expected.json")
)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_recorded_gpu_run_is_judged_as_it_was_injected(run: Path) -> None:
    expected = [
        tuple(map(_tuple, row)) for row in json.loads((run / "expected.json").read_text())["findings"]
    ]

    engine, changes = replay_records(JournalReader(segments(run)))

    hangs = [finding for finding in engine.active() if finding.id in HANGS]
    assert [(f.id, f.klass, f.ranks, f.waiting_ranks) for f in hangs] == expected
    assert all(finding.confidence.value == "high" for finding in hangs)
    assert len(engine.job.machine.gpus) == 2
    assert len(engine.job.ranks) == 2
    if run.name == "loop-slow":
        slow = next(finding for finding in engine.all_findings() if finding.id == "straggler")
        assert (slow.ranks, slow.waiting_ranks) == ((1,), (0,)) and "write_report" in slow.summary
    if run.name.endswith("rank-killed"):
        assert [(finding.id, finding.ranks, finding.waiting_ranks) for finding in engine.active()] == [
            ("rank-died", (1,), (0,))
        ]
    if run.name.startswith("healthy"):
        assert changes == []
        assert job_status(engine) == "finished"
        assert engine.job.iteration == 30


@pytest.mark.parametrize(
    "name", ["loop-skip-collective", "loop-data-hang", "loop-gil-held", "loop-dump-pipe", "data-hang-ras"]
)
def test_verdict_joins_stacks_recorder_ras_and_gpus(name: str) -> None:
    """On real NCCL; of loop-dump-pipe (--no-inject) the recorder's answer came through torch's dump pipe."""
    engine, _ = replay_records(JournalReader(segments(next(run for run in RUNS if run.name == name))))

    hang = next(finding for finding in engine.active() if finding.id in HANGS)
    assert {item.kind for item in hang.evidence} >= {"remote_stack", "flight_recorder", "nccl_ras", "nvml"}
    said = " ".join(item.excerpt for item in hang.evidence)
    assert "rank 1 has not entered it" in said and " launched " in said


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("loop-cuda-oom", [("cuda-oom", "capacity", (1,)), ("rank-died", "exit_1", (1,))]),
        ("loop-device-assert", [("gpu-fault", "device_assert", (1,)), ("rank-died", "exit_1", (1,))]),
        ("loop-pinned-memory", [("host-oom", "pinned_host", (1,)), ("rank-died", "exit_1", (1,))]),
        ("async-saves", []),
        ("healthy-saves", []),
    ],
)
def test_want_of_memory_and_failing_kernels_are_told_apart_on_real_gpus(
    name: str, found: list[tuple[str, str, tuple[int, ...]]]
) -> None:
    engine, _ = replay_records(JournalReader(segments(next(run for run in RUNS if run.name == name))))

    assert [(finding.id, finding.cause, finding.ranks) for finding in engine.active()] == found
    died = [finding for finding in engine.active() if finding.id == "rank-died"]
    assert all(f"See finding {found[0][0]} for why rank 1 failed" in finding.advice for finding in died)


@pytest.mark.parametrize(
    ("name", "iterations", "size"),
    [
        ("healthy-saves", [10, 20, 30], 93_746_238),
        ("async-saves", [8, 16, 24], 81_811_456),
    ],
)
def test_saves_of_the_real_job_are_seen_and_their_size_was_estimated(
    name: str, iterations: list[int], size: int
) -> None:
    """ms-swift says nothing when a save begins: stacks tell, or its end."""
    engine, _ = replay_records(JournalReader(segments(next(run for run in RUNS if run.name == name))))
    job = engine.job

    assert [save.iteration for save in job.saves.log.saves] == iterations
    assert all(save.written is not None and not save.cut_off for save in job.saves.log.saves)
    last = max(job.saves.folders)  # the folder of an earlier run is there too
    folders = job.saves.folders[last].folders
    assert [(folder.kind, folder.missing) for folder in folders] == [("torch_dist", ())] * 3
    assert folders[-1].size_bytes == pytest.approx(size, rel=0.01)
    assert (
        job.machine.memory_estimate is not None and job.machine.memory_estimate.checkpoint_bytes is not None
    )
    assert job.machine.memory_estimate.checkpoint_bytes == pytest.approx(size, rel=0.02)


def test_hang_was_found_within_a_minute_of_the_last_progress() -> None:
    for run in RUNS:
        _, changes = replay_records(JournalReader(segments(run)))
        for change in changes:
            if change.finding.id in HANGS and change.kind.value == "opened":
                assert 15 <= change.at - change.finding.since <= 40, run.name


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
