"""The findings about checkpoints that cannot be loaded, by real lines and facts of real files; silent otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model.observations import (
    CheckpointFolder,
    Iteration,
    RunEnded,
    RunStarted,
    SaveFinished,
    SaveStarted,
)
from tests.detectors.ckptfacts import GIB, ROOT, died, disk, folder, ids, said, seen
from tests.facts import Story

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
