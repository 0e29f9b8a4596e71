"""disk-full and the four checkpoint findings: found with the real words and the real files' facts, silent
otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model.observations import (
    CgroupMemory,
    CheckpointFolder,
    CheckpointsSeen,
    DiskSpace,
    Iteration,
    LogLine,
    MemoryEstimated,
    RunEnded,
    RunStarted,
    SaveFinished,
    SaveStarted,
)
from diag.outputs.report import report
from diag.outputs.view.sentence import job_sentence
from tests.facts import ALL_REDUCE, TRAIN, Story

GIB = 1 << 30
ROOT = "/out/v0-20261121-194515"
FRAME = (
    '[rank0]:   File "/env/megatron/core/dist_checkpointing/strategies/state_dict_saver.py", line 258, '
    "in save_state_dict_async_finalize"
)


def folder(
    step: int, *missing: str, at: float = 1000.0, files: int = 15, damaged: tuple[str, ...] = ()
) -> CheckpointFolder:
    return CheckpointFolder(
        f"{ROOT}/checkpoint-{step}", "torch_dist", step, files, 5 * GIB, at, missing, damaged=damaged
    )


def seen(
    *folders: CheckpointFolder,
    tracker: tuple[str, str] | None = None,
    root: str = ROOT,
    role: str = "save",
    exists: bool = True,
    flag: str = "",
) -> CheckpointsSeen:
    return CheckpointsSeen(None, root, folders, tracker, 1000.0, role, exists, flag)


def disk(
    free: int,
    *,
    total: int = 1000 * GIB,
    quota: int | None = None,
    inodes: int | None = 10_000,
    path: str = ROOT,
    purpose: str = "save",
) -> DiskSpace:
    return DiskSpace(None, path, purpose, total, free, 1_000_000, inodes, quota, "ext4")


def said(story: Story, *lines: str, rank: int | None = 0) -> None:
    story.tell(*(LogLine(rank, "stderr", line) for line in lines))


def died(story: Story, rank: int = 0, code: int = 1) -> None:
    story.wait(2)
    for number in range(story.world):
        story.exit(number, code if number == rank else None, None if number == rank else 15)
    story.wait(2)


def ids(story: Story) -> set[str]:
    return {finding.id for finding in story.findings()} - {"rank-died"}


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


# --- checkpoint-corrupt and checkpoint-missing
# ---------------------------------------------------------------


def killed_in_save(
    story: Story, *folders: CheckpointFolder, tracker: tuple[str, str] | None = None, whole: bool = True
) -> None:
    before = (folder(2),) if whole else ()
    story.tell(
        Iteration(None, 4, 20, "it"), seen(*before), Iteration(None, 6, 20, "it"), SaveStarted(None, "saving")
    )
    story.tell(seen(*before, *folders, tracker=tracker))
    story.wait(2)
    story.exit(1, signal=9)
    story.exit(0, signal=15)
    story.tell(seen(*before, *folders, tracker=tracker), RunEnded(None, 1))
    story.wait(2)


def test_save_that_was_cut_off_is_named_with_what_is_missing_and_where_to_go_on_from() -> None:
    story = Story()
    killed_in_save(story, folder(6, "iter_0000006/.metadata", files=4))

    finding = story.the("checkpoint-corrupt")
    assert (finding.cause, finding.severity.value, finding.ranks) == ("incomplete", "critical", ())
    assert (
        "checkpoint-6 is not whole (missing iter_0000006/.metadata; 4 files, 5 GiB): rank 1 was killed"
        in finding.summary
    )
    assert f"--mcore_model {ROOT}/checkpoint-2 --finetune false" in finding.advice


def test_save_that_was_cut_off_between_two_parts_is_told_by_the_checkpoint_before_it() -> None:
    # ms-swift 4.6.0: torch_dist is whole, and model.safetensors was to come
    story = Story()
    killed_in_save(story, folder(6, files=8))

    assert "8 files where checkpoint-2 has 15" in story.the("checkpoint-corrupt").summary
    assert story.the("checkpoint-corrupt").confidence.value == "medium"


def test_what_was_seen_while_the_ranks_lived_does_not_count_when_they_are_dead() -> None:
    story = Story()
    story.tell(
        Iteration(None, 6, 20, "it"), SaveStarted(None, "saving"), seen(folder(6, "iter_0000006/.metadata"))
    )
    story.wait(2)
    story.exit(0, signal=9)
    story.exit(1, signal=15)
    story.wait(5)
    unseen = ids(story)
    story.tell(seen(folder(6)))
    story.wait(5)

    assert (unseen, ids(story)) == (set(), set())


def test_save_under_way_is_never_broken_however_long_it_takes() -> None:
    story = Story()
    story.tell(
        Iteration(None, 6, 20, "it"), SaveStarted(None, "saving"), seen(folder(6, "iter_0000006/.metadata"))
    )
    story.wait(3000)

    assert ids(story) == set()


def test_asynchronous_save_is_left_alone_while_it_may_still_end_though_the_tracker_names_it() -> None:
    # ms-swift 4.6.0 writes latest_checkpointed_iteration.txt before the save is scheduled
    story = Story()
    story.tell(
        RunStarted(None, ("megatron", "rlhf", "--async_save", "true"), 999, "node-0", 2), seen(folder(2))
    )
    story.tell(Iteration(None, 4, 20, "it"), SaveStarted(None, "seen in the stacks"))
    story.wait(2)
    story.tell(Iteration(None, 5, 20, "it"))
    story.tell(
        seen(folder(2), folder(4, "iter_0000004/.metadata"), tracker=("last-checkpoint", "checkpoint-4"))
    )
    story.wait(1200)
    waiting = ids(story)
    story.tell(SaveFinished(None, "saved", f"{ROOT}/checkpoint-4"))
    story.tell(seen(folder(2), folder(4), tracker=("last-checkpoint", "checkpoint-4")))
    story.wait(1200)

    assert (waiting, ids(story)) == (set(), set())


def test_asynchronous_save_whose_job_died_is_broken_and_so_is_the_tracker() -> None:
    story = Story()
    story.tell(RunStarted(None, ("megatron", "rlhf", "--async_save", "true"), 999, "node-0", 2))
    killed_in_save(story, folder(6, "iter_0000006/.metadata"), tracker=("last-checkpoint", "checkpoint-6"))

    assert story.the("checkpoint-corrupt").cause == "incomplete"
    missing = story.the("checkpoint-missing")
    assert missing.cause == "tracker_broken"
    assert (
        "last-checkpoint in /out/v0-20261121-194515 names checkpoint-6, which is not whole" in missing.summary
    )


def test_second_asynchronous_save_that_began_before_the_first_was_whole_leaves_none() -> None:
    # ms-swift 4.6.0, --async_save true on a slow machine, 2026-11-22: checkpoint-4 had no .metadata when 8
    # was cut off
    story = Story()
    story.tell(RunStarted(None, ("megatron", "rlhf", "--async_save", "true"), 999, "node-0", 2))
    killed_in_save(
        story, folder(3, "iter_0000003/.metadata"), folder(6, "iter_0000006/.metadata"), whole=False
    )

    finding = story.the("checkpoint-corrupt")
    assert "checkpoint-6 is not whole" in finding.summary and finding.summary.endswith(
        "checkpoint-3 beside it is not whole either"
    )
    assert "There is no whole checkpoint beside it" in finding.advice
    assert [item.excerpt.partition(":")[0] for item in finding.evidence] == [
        f"{ROOT}/checkpoint-6",
        f"{ROOT}/checkpoint-3",
    ]


def test_tracker_of_megatron_that_names_a_folder_which_is_not_there() -> None:
    story = Story()
    tracker = ("latest_checkpointed_iteration.txt", "1000")
    whole = replace(folder(500), path="/save/iter_0000500")
    story.tell(seen(whole, root="/save"))
    story.wait(2)
    story.tell(seen(whole, root="/save", tracker=tracker))
    story.wait(700)
    alive = ids(story)
    died(story)

    assert alive == set()
    assert story.the("checkpoint-missing").cause == "tracker_absent_dir"
    assert "write 500 into it" in story.the("checkpoint-missing").advice


def test_broken_checkpoint_of_an_earlier_run_is_not_this_jobs() -> None:
    story = Story(start=900_000.0)
    story.tell(seen(folder(2), folder(4, "iter_0000004/.metadata", at=1000.0)))
    story.wait(2000)
    died(story)

    assert ids(story) == set()


def test_healthy_end_with_whole_checkpoints_says_nothing() -> None:
    story = Story()
    story.tell(Iteration(None, 8, 8, "it"), disk(500 * GIB))
    story.tell(seen(folder(4), folder(8), tracker=("last-checkpoint", "checkpoint-8")))
    story.exit(0, 0)
    story.exit(1, 0)
    story.tell(RunEnded(None, 0))
    story.wait(5)

    assert story.findings() == []


def test_truncated_shard_of_what_the_job_begins_from_is_named_before_it_is_loaded() -> None:
    story = Story()
    damaged = ("model-00002-of-00003.safetensors (1000 of 2000 bytes)",)
    bad = CheckpointFolder("/model", "safetensors", None, 4, GIB, 10.0, damaged=damaged)
    story.tell(seen(bad, root="/model", role="load", flag="--model"))
    story.wait(2)

    finding = story.the("checkpoint-corrupt")
    assert (finding.cause, finding.severity.value) == ("truncated", "warning")
    assert (
        "(--model /model) is not whole: damaged model-00002-of-00003.safetensors (1000 of 2000 bytes)"
        in finding.summary
    )


def test_model_is_read_for_its_weights_and_a_missing_optimizer_beside_them_is_none_of_its_faults() -> None:
    story = Story()
    bad = CheckpointFolder(
        "/out/checkpoint-4",
        "torch_dist",
        4,
        9,
        GIB,
        10.0,
        ("iter_0000004/.metadata",),
        damaged=("optimizer.pt (empty)",),
    )
    story.tell(seen(bad, root="/out/checkpoint-4", role="load", flag="--model"))
    story.wait(2)
    as_model = ids(story)
    story.tell(seen(replace(bad, path="/out/b"), root="/out/b", role="load", flag="--mcore_model"))
    story.wait(2)

    assert (as_model, ids(story)) == (set(), {"checkpoint-corrupt"})


def test_other_checkpoints_beside_the_one_that_is_loaded_may_be_broken() -> None:
    story = Story()
    story.tell(
        seen(
            replace(folder(4, ".metadata"), path="/save/iter_0000004"),
            replace(folder(2), path="/save/iter_0000002"),
            root="/save",
            role="load",
            flag="--load",
            tracker=("latest_checkpointed_iteration.txt", "2"),
        )
    )
    story.wait(2)

    assert ids(story) == set()


@pytest.mark.parametrize(
    "line",
    [
        # torch 2.13, torch.load of a cut-off file, 2026-11-21
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory. This is an internal "
        "miniz error.",
        # safetensors 0.8.0, 2026-11-21
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully "
        "covered",
        "FileNotFoundError: [Errno 2] No such file or directory: '/out/iter_0000004/.metadata'",
        "megatron.core.dist_checkpointing.core.CheckpointingException: /out/iter_0000004 is not a distributed checkpoint",
    ],
)
def test_line_of_a_checkpoint_that_cannot_be_read_counts_when_the_job_dies_of_it(line: str) -> None:
    story = Story()
    said(story, line)
    story.wait(2)
    alive = ids(story)
    died(story)

    assert (alive, ids(story)) == (set(), {"checkpoint-corrupt"})


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        # Megatron-LM core_r0.13, megatron/training/checkpointing.py: sys.exit() without a status
        ("could not load the checkpoint", "checkpoint-corrupt"),
        (">> '--exit-on-missing-checkpoint' set ... exiting. <<", "checkpoint-missing"),
        (
            "Unable to load rng state from checkpoint /save/iter_0000500. Specify --no-load-rng or --finetune to prevent "
            "attempting to "
            "load the rng state, exiting ...",
            "checkpoint-args-mismatch",
        ),
    ],
)
def test_job_that_ended_with_status_0_because_it_could_not_load_is_no_success(
    line: str, finding: str
) -> None:
    story = Story()
    said(story, line)
    story.exit(0, 0)
    story.exit(1, 0)
    story.tell(RunEnded(None, 0))
    story.wait(2)

    assert "status 0 all the same" in story.the(finding).summary


def started(story: Story, *words: str) -> None:
    story.tell(RunStarted(None, ("torchrun", "pretrain_gpt.py", *words), 999, "node-0", 2))


def test_start_from_random_weights_is_told_where_others_were_asked_for_and_not_at_a_first_start() -> None:
    # Megatron-LM core_r0.13, megatron/training/checkpointing.py
    line = "WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt"
    asked, first, none = Story(), Story(), Story()
    started(asked, "--load", "/ckpt", "--save", "/save")
    started(first, "--load", "/ckpt", "--save", "/ckpt")
    started(none, "--save", "/save")
    for story in (asked, first, none):
        nothing = "WARNING: could not find the metadata file because load directory is not defined"
        said(story, nothing if story is none else line)
        story.wait(2)

    assert (asked.the("checkpoint-missing").cause, asked.the("checkpoint-missing").severity.value) == (
        "from_random",
        "warning",
    )
    assert (ids(first), ids(none)) == (set(), set())


def test_path_to_load_that_is_not_there_is_told_at_the_start_except_where_the_job_saves_to_it_itself() -> (
    None
):
    absent, first = Story(), Story()
    started(absent, "--load", "/ckpt")
    absent.tell(seen(root="/ckpt", role="load", exists=False, flag="--load"))
    started(first, "--load", "/ckpt", "--save", "/ckpt")
    first.tell(seen(root="/ckpt", role="load", exists=False, flag="--load"))
    for story in (absent, first):
        story.wait(2)

    assert absent.the("checkpoint-missing").summary == "--load /ckpt: there is nothing at this path"
    assert ids(first) == set()


# --- checkpoint-args-mismatch
# --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "AssertionError: num_layers value from checkpoint (48) is not equal to the input argument value (24).",
            "arguments",
        ),
        (
            "RuntimeError: (TP, PP) mismatch after resume ((2, 1) vs (1, 1) from checkpoint): not supported for "
            "DistributedOptimizer with "
            "sharding type dp_zero_gather_scatter. Please use `--ckpt-fully-parallel-save` flag during checkpoint "
            "saving.",
            "layout",
        ),
        (
            "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP world size of 4 "
            "but the current world "
            "size is 1. Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not "
            "currently supported.",
            "layout",
        ),
        (
            "\tsize mismatch for a.weight: copying a param with shape torch.Size([4, 2]) from checkpoint, the shape in "
            "current model is "
            "torch.Size([4, 3]).",
            "shape",
        ),
        (
            "megatron.core.dist_checkpointing.core.CheckpointingException: Global shape mismatch for loaded "
            "(torch.Size([64])) and expected "
            "((128,)) tensor for key decoder.weight",
            "shape",
        ),
        ('\tMissing key(s) in state_dict: "b.weight", "b.bias". ', "keys"),
    ],
)
def test_checkpoint_that_does_not_fit_is_told_with_its_cause_when_the_job_dies_of_it(
    line: str, cause: str
) -> None:
    story = Story()
    said(story, line)
    story.wait(2)
    alive = ids(story)
    died(story)

    assert (alive, story.the("checkpoint-args-mismatch").cause) == (set(), cause)


def test_mismatch_of_the_layout_that_ms_swift_goes_on_from_is_none() -> None:
    # ms-swift 4.6.0, megatron_lm_utils.py
    story = Story()
    said(
        story,
        "[INFO:swift] (TP, PP) mismatch after resume ((2, 1) vs (1, 1) from checkpoint): RNG state will be ignored",
    )
    died(story)

    assert ids(story) == set()


# --- the save under way
# --------------------------------------------------------------------------------------


def saves(story: Story, *durations: float) -> None:
    for number, seconds in enumerate(durations, 1):
        story.tell(Iteration(None, 100 * number, 9999, "it"), SaveStarted(None, "saving", "/save"))
        story.wait(seconds)
        story.tell(SaveFinished(None, "saved", "/save"))
        story.wait(1)


def test_save_that_takes_five_times_as_long_as_any_before_it_is_called_slow_until_it_ends() -> None:
    story = Story()
    saves(story, 20, 25, 22)
    story.tell(Iteration(None, 400, 9999, "it"), SaveStarted(None, "saving", "/save"))
    story.wait(120)
    early = ids(story)
    story.tell(seen(folder(300), root="/save"))
    story.wait(20)
    slow = story.the("slow")
    story.tell(SaveFinished(None, "saved", "/save"))
    story.wait(2)

    assert early == set()
    assert (slow.klass, slow.severity.value) == ("checkpoint_save", "warning")
    assert "the longest of 3 before it took 25 s" in slow.summary
    assert ids(story) == set()


@pytest.mark.parametrize("earlier", [(), (20.0, 25.0), (100.0, 30.0, 30.0)])
def test_long_save_is_not_called_slow_by_too_few_or_by_longer_ones_before(earlier: tuple[float, ...]) -> None:
    story = Story()
    saves(story, *earlier)
    story.tell(Iteration(None, 900, 9999, "it"), SaveStarted(None, "saving", "/save"))
    story.wait(400)

    assert "slow" not in ids(story)


def test_save_whose_folder_grows_is_not_hung_though_no_rank_here_moves_and_one_that_stands_is_with_its_bytes_told() -> (
    None
):
    # other nodes write: only the folder on shared storage tells of it
    grows, stands = Story(), Story()
    write = (
        *TRAIN,
        "save_checkpoint /env/megatron/training/checkpointing.py:400",
        "write /env/torch/serialization.py:900",
    )
    for story in (grows, stands):
        story.tell(Iteration(None, 100, 9999, "it"), SaveStarted(None, "saving", "/save"))
        for number in range(1, 60):
            size = number * GIB if story is grows else GIB
            story.tell(
                seen(
                    replace(folder(100), path="/save/iter_0000100", size_bytes=size, changed_at=1000.0),
                    root="/save",
                )
            )
            story.still(5.0, {0: write, 1: ALL_REDUCE})

    assert ids(grows) == set()
    assert stands.the("hang").klass == "checkpoint_io"
    assert any(
        item.kind == "checkpoint" and "1 GiB on disk, and not a byte more for" in item.excerpt
        for item in stands.the("hang").evidence
    )
    save = grows.engine.job.saves.log.current
    assert save is not None and save.bytes_per_second == pytest.approx(GIB / 6)


def test_report_has_the_save_under_way_in_numbers_and_in_words_and_none_afterwards() -> None:
    story = Story()
    saves(story, 20)
    story.tell(Iteration(None, 400, 9999, "it"), SaveStarted(None, "saving", "/save"))
    for size in (GIB, 3 * GIB):
        story.tell(seen(replace(folder(400), path="/save/iter_0000400", size_bytes=size), root="/save"))
        story.wait(4)
    document = report(story.engine)
    story.tell(SaveFinished(None, "saved", "/save"))

    save = document["job"]["save"]
    assert (save["seconds"], save["usual_seconds"], save["written_bytes"], save["asynchronous"]) == (
        8.0,
        20.0,
        3 * GIB,
        False,
    )
    assert "saving for 8 s (usually 20 s), 3 GiB written, 512 MiB/s" in job_sentence(document)
    assert report(story.engine)["job"]["save"] is None


def test_kill_for_memory_in_a_save_is_read_before_what_it_left() -> None:
    story = Story()
    story.tell(seen(), Iteration(None, 500, 1500, "500/1500"))
    story.wait(5)
    story.tell(SaveFinished(None, "saved", f"{ROOT}/checkpoint-500"), seen(folder(500, at=story.now)))
    story.tell(Iteration(None, 1000, 1500, "1000/1500"))
    story.tell(SaveStarted(None, "saving checkpoint", ROOT))
    story.wait(4)
    left = seen(
        folder(500),
        folder(1000, ".metadata", at=story.now, files=3),
        tracker=("last-checkpoint", "checkpoint-1000"),
    )
    story.tell(CgroupMemory(1, 2, "/pod", 9 * GIB, 9 * GIB, 9 * GIB, 0), left)
    story.wait(4)
    story.tell(CgroupMemory(1, 2, "/pod", 4 * GIB, 9 * GIB, 9 * GIB, 1))
    story.exit(1, signal=9)
    story.wait(5)
    story.exit(0, signal=15)
    story.tell(left, RunEnded(None, 1))
    story.wait(3)

    read = [finding.id for finding in story.findings()]

    assert read == ["host-oom", "rank-died", "checkpoint-corrupt", "checkpoint-missing"]


def test_job_that_is_told_to_save_nothing_needs_no_room_for_a_checkpoint() -> None:
    story = Story()
    story.tell(
        RunStarted(None, ("swift", "sft", "--save_strategy", "no", "--output_dir", ROOT), 999, "node-0", 2)
    )
    story.tell(MemoryEstimated(None, (), (), (), checkpoint_bytes=40 * GIB), disk(30 * GIB))
    story.wait(2)

    assert story.findings() == []
