"""A full disk, and errors of a save that have another reason: named with what is full, silent elsewhere."""

from __future__ import annotations

import pytest

from diag.model.observations import (
    Iteration,
    MemoryEstimated,
    RunStarted,
    SaveStarted,
)
from tests.detectors.ckptfacts import FRAME, GIB, ROOT, died, disk, folder, ids, said, seen
from tests.facts import Story

# --- disk-full
# -----------------------------------------------------------------------------------------------


def test_full_disk_is_of_the_rank_that_wrote_not_of_the_one_that_tells_it() -> None:
    # megatron-core 0.16.1 on two ranks, rank 1 on a full tmpfs, 2026-11-21
    story = Story()
    story.tell(Iteration(None, 6, 20, "6/20"))
    said(
        story,
        FRAME,
        '[rank0]:     raise CheckpointException("write", node_failures)',
        "[rank0]: Traceback (most recent call last): (RANK 1)",
        "[rank0]: RuntimeError: Worker failure: [Errno 28] No space left on device",
    )
    died(story)

    finding = story.the("disk-full")
    assert (finding.ranks, finding.cause, finding.severity.value) == ((1,), "no_space", "critical")
    assert "rank 1 could not write a checkpoint after iteration 6" in finding.summary
    assert "checkpoint-write-error" not in ids(story)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "OSError: [Errno 28] No space left on device: '/out/v0-20261121-194515/checkpoint-4/optimizer.pt'",
            "no_space",
        ),
        # safetensors 0.8.0 on a full tmpfs, 2026-11-21
        (
            "safetensors._safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device "
            "(os error 28)",
            "no_space",
        ),
        (
            "OSError: [Errno 122] Disk quota exceeded: '/out/v0-20261121-194515/checkpoint-4/optimizer.pt'",
            "quota",
        ),
    ],
)
def test_lines_of_a_full_disk_name_what_is_full(line: str, cause: str) -> None:
    story = Story()
    story.tell(disk(0 if cause == "no_space" else 50 * GIB, total=64 * GIB))
    said(story, FRAME, line)
    died(story)

    finding = story.the("disk-full")
    assert (finding.cause, finding.severity.value) == (cause, "critical")
    assert "of 64 GiB free (ext4)" in finding.summary


def test_no_space_with_bytes_free_and_no_inodes_is_of_inodes() -> None:
    story = Story()
    story.tell(disk(500 * GIB, inodes=0))
    said(
        story, FRAME, "OSError: [Errno 28] No space left on device: '/out/v0-20261121-194515/checkpoint-4/a'"
    )
    died(story)

    assert story.the("disk-full").cause == "inodes"


def test_failed_write_of_torch_is_a_full_disk_only_where_the_disk_is_full() -> None:
    # torch 2.13 on a full tmpfs, 2026-11-21
    line = "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"
    full, free = Story(), Story()
    for story, space in ((full, disk(0)), (free, disk(500 * GIB))):
        story.tell(space)
        said(story, FRAME, line)
        died(story)

    assert (full.the("disk-full").cause, full.the("disk-full").confidence.value) == ("no_space", "medium")
    assert (ids(free), free.the("checkpoint-write-error").cause) == (
        {"checkpoint-write-error"},
        "write_failed",
    )


def test_full_shared_memory_and_a_full_pip_cache_that_the_job_survives_are_not_a_critical_full_disk() -> None:
    story = Story()
    said(
        story,
        "[rank1]: RuntimeError: unable to write to file </torch_4242_3_0>: No space left on device (28)",
    )
    story.wait(2)
    shared = ids(story)
    said(
        story,
        "WARNING: cache not written:",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.11/site-packages/pip/_internal/cache.py", line 52, in set',
        "OSError: [Errno 28] No space left on device: '/root/.cache/x'",
    )
    story.wait(2)

    assert "disk-full" not in shared
    assert story.the("disk-full").severity.value == "warning"


def test_next_checkpoint_that_does_not_fit_is_warned_of_before_it_with_numbers() -> None:
    story = Story()
    story.tell(Iteration(None, 500, 2000, "500/2000"), seen(folder(500)), disk(3 * GIB))
    story.wait(2)

    finding = story.the("disk-full")
    assert (finding.cause, finding.severity.value) == ("next_save", "warning")
    assert "the next checkpoint (5 GiB, like checkpoint-500) will not fit" in finding.summary
    assert "3 GiB of 1000 GiB free" in finding.summary and "--save_total_limit" in finding.advice


def test_quota_counts_before_the_free_space_and_the_estimate_where_nothing_was_saved_yet() -> None:
    story = Story()
    story.tell(MemoryEstimated(None, (), (), (), checkpoint_bytes=40 * GIB), disk(900 * GIB, quota=20 * GIB))
    story.wait(2)

    assert "20 GiB left of the user's quota" in story.the("disk-full").summary


@pytest.mark.parametrize("case", ["enough", "unknown size", "in the save", "last step", "other disk"])
def test_forecast_is_silent(case: str) -> None:
    story = Story()
    story.tell(Iteration(None, 500, 500 if case == "last step" else 2000, "it"))
    if case != "unknown size":
        story.tell(seen(folder(500)))
    story.tell(
        disk(500 * GIB if case == "enough" else 3 * GIB, path="/other" if case == "other disk" else ROOT)
    )
    if case == "in the save":
        story.tell(SaveStarted(None, "saving checkpoint"))
    story.wait(5)

    assert ids(story) == set()


def test_forecast_is_taken_back_when_space_was_freed() -> None:
    story = Story()
    story.tell(Iteration(None, 500, 2000, "it"), seen(folder(500)), disk(3 * GIB))
    story.wait(2)
    before = ids(story)
    story.tell(disk(300 * GIB))
    story.wait(90)

    assert (before, ids(story)) == ({"disk-full"}, set())


# --- checkpoint-write-error
# ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("OSError: [Errno 30] Read-only file system: '/out/checkpoint-4'", "read_only"),
        ("PermissionError: [Errno 13] Permission denied: '/out/checkpoint-4'", "permission"),
        ("OSError: [Errno 116] Stale file handle: '/out/checkpoint-4/a.pt'", "stale_handle"),
        ("OSError: [Errno 5] Input/output error", "io_error"),
        ("OSError: [Errno 108] Cannot send after transport endpoint shutdown", "not_connected"),
        ("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/juicefs/out'", "not_connected"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/out/checkpoint-4/scheduler.pt'", "gone"),
        (
            "RuntimeError: [enforce fail at inline_container.cc:764] . PytorchStreamWriter failed writing file data/1: "
            "file write failed",
            "write_failed",
        ),
    ],
)
def test_error_below_frames_of_a_save_is_a_write_error_of_its_cause(line: str, cause: str) -> None:
    story = Story()
    said(story, FRAME, line)
    died(story)

    assert (
        story.the("checkpoint-write-error").cause,
        story.the("checkpoint-write-error").severity.value,
    ) == (cause, "critical")


def test_the_same_errors_outside_of_a_save_are_no_checkpoints() -> None:
    story = Story()
    story.tell(Iteration(None, 5, 20, "it"))
    said(story, '  File "/app/data.py", line 3, in read_record', "OSError: [Errno 5] Input/output error")
    died(story)

    assert ids(story) == {"io-blocked"}, "a rule's: reading failed"


def test_job_that_is_told_to_save_nothing_needs_no_room_for_a_checkpoint() -> None:
    story = Story()
    story.tell(
        RunStarted(None, ("swift", "sft", "--save_strategy", "no", "--output_dir", ROOT), 999, "node-0", 2)
    )
    story.tell(MemoryEstimated(None, (), (), (), checkpoint_bytes=40 * GIB), disk(30 * GIB))
    story.wait(2)

    assert story.findings() == []
