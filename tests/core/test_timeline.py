"""The job's whole life in few points: bounded, the same however it is told, right at the edges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.engine.replay import replay
from diag.model.observations import GpuSample, HostMemory
from diag.state.job import JobState
from diag.state.timeline import BUCKETS, Timeline

CAPTURES = Path(__file__).parent.parent / "captures"


def gpu(index: int, ratio: float, used: int) -> GpuSample:
    return GpuSample(
        None, index, f"GPU-{index}", f"0000:0{index}", "H200", ratio, used, 100, None, None, None, None
    )


def told(*samples: tuple[float, GpuSample]) -> dict[str, dict[str, object]]:
    line, job = Timeline(), JobState()
    for at, fact in samples:
        line.observe(at, fact, job)
    shown = line.to_json(job)
    return {"all": shown, **{f"{one['name']} {one.get('gpu')}": one for one in shown["series"]}}


def test_mean_of_a_moment_and_the_highest_where_a_limit_counts() -> None:
    shown = told(
        (1000.0, gpu(0, 0.2, 10)),
        (1000.4, gpu(0, 0.4, 30)),
        (1000.8, gpu(0, 0.6, 20)),
        (1002.0, gpu(0, 1.0, 5)),
    )

    assert shown["gpu_utilization_ratio 0"]["values"] == [0.4, None, 1.0]
    assert shown["gpu_memory_bytes 0"]["values"] == [30.0, None, 5.0]
    assert shown["all"]["limits"] == {"gpu_memory_bytes": 100}


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 1.0)), min_size=1, max_size=60))
def test_a_week_takes_no_more_than_a_minute_and_nothing_is_lost(samples: list[tuple[float, float]]) -> None:
    moments = sorted(samples)
    shown = told(*((1e9 + at, gpu(0, ratio, int(ratio * 1000))) for at, ratio in moments))
    values = shown["gpu_memory_bytes 0"]["values"]

    assert len(values) == shown["all"]["count"] <= BUCKETS
    span = moments[-1][0] - moments[0][0]
    assert shown["all"]["count"] * shown["all"]["width_seconds"] >= span * 0.999
    assert shown["all"]["width_seconds"] <= max(1.0, 2 * span / BUCKETS * 1.01)
    highest = max(int(ratio * 1000) for _, ratio in moments)
    assert max(value for value in values if value is not None) == pytest.approx(highest, rel=1e-3)


def test_many_members_are_told_as_their_range() -> None:
    shown = told(*((1000.0, gpu(index, index / 100, index)) for index in range(40)))[
        "gpu_utilization_ratio None"
    ]

    assert (shown["members"], shown["low"], shown["high"], shown["values"]) == (40, [0.0], [0.39], [0.195])


def test_log_without_times_has_no_line() -> None:
    line, job = Timeline(), JobState()
    line.observe(0.0, HostMemory(None, 100, 50), job)

    assert line.to_json(job)["series"] == [] and line.to_json(job)["began"] is None


def test_recorded_run_shows_its_phases_steps_and_gpus() -> None:
    engine = replay([CAPTURES / "h200-live/healthy-saves"])[0]
    shown = engine.timeline.to_json(engine.job)
    names = [one["name"] for one in shown["series"]]

    assert [phase["phase"] for phase in shown["phases"]][:2] == [
        "launch",
        "rendezvous",
    ] and "ckpt_save" in str(shown["phases"])
    assert names.count("gpu_memory_bytes") == 2 and {"step_seconds", "loss", "memory_bytes"} <= set(names)
    assert json.dumps(shown, allow_nan=False)


def test_steps_that_were_learned_from_lines_of_a_plain_loop_are_drawn_too() -> None:
    engine = replay([CAPTURES / "plain-loops/text.jsonl.gz"])[0]
    (steps,) = [one for one in engine.timeline.to_json(engine.job)["series"] if one["name"] == "step_seconds"]

    assert sum(value is not None for value in steps["values"]) > 20
