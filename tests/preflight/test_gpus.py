"""GPUs before a job: held by others, waiting for a reset, with links missing; and sound ones, of which
nothing is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diag.model import Record
from diag.preflight.gpus import gpu_lines
from diag.sources.gpu import nvml
from tests.detectors.gpufacts import GIB, health, links, sample

CAPTURE = Path(__file__).parents[1] / "captures" / "gpu" / "nvml_health.json"


def idle(index: int, **changes: Any) -> Any:
    return sample(
        index,
        **{"memory_used_bytes": 644_939_776, "memory_total_bytes": 150_754_820_096, "pids": (), **changes},
    )


def test_sound_h200_gives_no_line() -> None:
    facts = nvml.parse(Record("nvml", json.loads(CAPTURE.read_text())))

    assert list(gpu_lines([*facts, idle(0), idle(1)], None)) == []


def test_memory_that_an_earlier_run_left_in_use_is_told_with_its_processes() -> None:
    (line,) = gpu_lines(
        [idle(0), idle(1, memory_used_bytes=130 * GIB, pids=(11748,)), health(0), health(1)], None
    )

    assert (line.what, line.status, line.id) == ("GPU 1", "problem", "cuda-oom")
    assert line.said == "130 GiB of its 140 GiB are in use before the job starts, by process 11748"


def test_memory_of_processes_that_are_not_shown_is_told_too() -> None:
    (line,) = gpu_lines([idle(0, memory_used_bytes=40 * GIB)], None)

    assert "no process is shown (another container" in line.said


@pytest.mark.parametrize("visible", ["0", "GPU-0", " 0 "])
def test_gpu_that_the_job_will_not_see_does_not_matter(visible: str) -> None:
    facts = [
        idle(0),
        idle(1, memory_used_bytes=130 * GIB),
        health(0),
        health(1, remap_failed=True, nvlinks=links(1)),
    ]

    assert list(gpu_lines(facts, visible)) == []


@pytest.mark.parametrize(
    ("changes", "finding", "words"),
    [
        ({"remap_pending": True}, "ecc-error", "--gpu-reset -i 1"),
        ({"retired_pages_pending": True}, "ecc-error", "--gpu-reset -i 1"),
        ({"remap_failed": True}, "ecc-error", "has to be replaced"),
        ({"recovery_action": "drain_reset"}, "gpu-fault", "dmesg"),
        ({"nvlinks": links(3, 4)}, "nvlink-fault", "fabric manager"),
    ],
)
def test_gpu_that_needs_care_is_told_before_the_job_starts(
    changes: dict[str, Any], finding: str, words: str
) -> None:
    (line,) = gpu_lines([idle(0), idle(1), health(0), health(1, **changes)], None)

    assert (line.what, line.status, line.id) == ("GPU 1", "problem", finding)
    assert words in line.remedy


def test_memory_errors_that_go_unseen_are_a_note() -> None:
    (line,) = gpu_lines([idle(0), health(0, ecc_enabled=False)], None)

    assert (line.status, line.id) == ("note", "")


def test_old_errors_are_no_line() -> None:
    old = health(0, ecc_uncorrected_aggregate=12, remapped_rows_uncorrected=2, ecc_corrected_volatile=40)

    assert list(gpu_lines([idle(0), old], None)) == []
