"""Recorded runs whose saves grow in a real memory cgroup: replay says what was said live, before the kernel
killed."""

from __future__ import annotations

from pathlib import Path

from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay_records

RUNS = Path(__file__).parents[1] / "captures" / "memory"
MIB = 1 << 20


def test_the_save_that_is_killed_was_forecast_before_it() -> None:
    engine, changes = replay_records(JournalReader(segments(RUNS / "save-too-large")))

    warning = next(change for change in changes if change.finding.id == "host-oom-forecast")
    killed = next(change for change in changes if change.finding.id == "host-oom")
    assert warning.kind.value == "opened"
    assert warning.at < killed.at
    assert "the save that runs after iteration 15 will need" in warning.finding.summary
    assert engine.job.iteration == 15


def test_the_shape_of_each_save_is_learnt_from_the_readings() -> None:
    engine, _ = replay_records(JournalReader(segments(RUNS / "save-too-large")))

    limit = next(limit for path, limit in engine.job.save_memory.limits.items() if path.endswith("/trainer"))

    assert [shape.iteration for shape in limit.shapes] == [5, 10]
    first, second = limit.shapes
    assert first.after - first.base > 300 * MIB  # Megatron's Manager processes stay
    assert second.fall > 1.1 * first.fall  # and the staging grows


def test_saves_that_fit_are_not_feared_though_memory_leaks() -> None:
    engine, changes = replay_records(JournalReader(segments(RUNS / "saves-that-fit")))

    assert engine.job.returncode == 0
    assert not [change for change in changes if change.finding.id.startswith("host-oom")]
