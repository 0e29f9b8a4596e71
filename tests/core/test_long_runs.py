"""What is kept of a run of weeks does not depend on how many weeks."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.checkpoint.folders import Folders
from diag.detectors.network.unlogged import Unlogged
from diag.model.observations import CheckpointFolder, CheckpointsSeen, GpuSample
from diag.state.saves import SAVE_SECONDS, SaveLog
from tests.labs.soak.sizes import held

ROOT = "/out/v0-20261121-194515"


def test_checkpoints_that_were_rotated_away_are_forgotten_but_not_that_the_job_wrote_there() -> None:
    folders = Folders()
    for step in range(0, 3000, 10):
        kept = tuple(
            CheckpointFolder(
                f"{ROOT}/checkpoint-{number}", "torch_dist", number, 15, 1 << 30, 1000.0 + number, ()
            )
            for number in (step - 10, step)
            if number > 0
        )
        folders.observe(1000.0 + step, CheckpointsSeen(None, ROOT, kept, None, 1000.0, "save", True, ""))

    assert sum(held(folders).entries.values()) < 20
    assert folders.wrote_tracker(ROOT)


def test_durations_of_thousands_of_saves_take_no_more_room_than_those_of_some_hundred() -> None:
    log, sizes = SaveLog(), []
    for number in range(3000):
        at = 1000.0 + 100 * number
        log.began(at, number, at - 1, "stacks")
        log.ended(at + (number % 2) * 20 + 4.0, number, at)
        if number in (600, 2999):
            sizes.append(held(log).size)

    counts, total = log.histogram()
    assert counts[-1] == 3000 and counts[SAVE_SECONDS.index(5.0)] == 1500
    assert total == 1500 * 4.0 + 1500 * 24.0
    assert sizes[1] < sizes[0] + 2000


def test_processes_that_held_a_gpu_once_are_not_all_remembered() -> None:
    unlogged = Unlogged()
    sample = GpuSample(
        None, 0, "GPU-0", "0000:06:00.0", "NVIDIA H200", None, None, None, None, None, None, None
    )
    for pid in range(0, 40_000, 8):
        unlogged.observe(float(pid), replace(sample, pids=tuple(range(pid, pid + 8))))

    assert sum(held(unlogged).entries.values()) < 5000
