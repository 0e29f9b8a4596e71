"""GPU memory that ran out: which rank, what held it, what to change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import EnvironmentSeen, Iteration, RunStarted
from tests.detectors.gpufacts import GIB, said, sample, training
from tests.facts import Story, found, pid_of

CAPTURE = Path(__file__).parents[1] / "captures" / "gpu" / "cuda_failures.txt"


def recorded(name: str) -> list[str]:
    sections = re.split(r"^### ", CAPTURE.read_text(), flags=re.MULTILINE)
    return next(section for section in sections if section.startswith(name + " ")).splitlines()[1:]


def died(story: Story, *lines: str, rank: int = 1) -> Finding:
    """The rank prints these lines and ends with exit code 1."""
    for line in lines:
        story.tell(*said(line, rank))
    story.wait(1)
    story.exit(rank, code=1)
    story.wait(3)
    return story.the("cuda-oom")


def message(  # noqa: PLR0917 - as the sentence goes
    tried: str,
    free: str,
    allocated: str,
    unused: str,
    ours: str = "",
    others: str = "",
    total: str = "79.15 GiB",
    variable: str = "PYTORCH_CUDA_ALLOC_CONF",
) -> str:
    """torch 2.2 and later."""
    own = f"Including non-PyTorch memory, this process has {ours} memory in use. " if ours else ""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 1 has a total capacity of {total} of which "
        f"{free} is free. {others}{own}Of the allocated memory {allocated} is allocated by PyTorch, and {unused} is reserved by "
        f"PyTorch but unallocated. If reserved but unallocated memory is large try setting {variable}=expandable_segments:True "
        f"to avoid fragmentation."
    )


# --- what held it
# ----------------------------------------------------------------------------------------------


def test_memory_that_is_simply_full_is_said_with_what_is_missing() -> None:
    oom = died(training(), *recorded("oom_plain"))

    assert (oom.ranks, oom.cause, oom.severity.value, oom.confidence.value) == (
        (1,),
        "capacity",
        "critical",
        "high",
    )
    assert (
        "rank 1 ran out of GPU memory after iteration 40: it asked for 16 GiB of GPU 1 with 11.3 GiB of"
        in oom.summary
    )
    assert "4.71 GiB short; PyTorch holds 128 GiB in tensors and 0 B unused" in oom.summary
    assert "522 MiB of the process are outside PyTorch" in oom.summary
    assert oom.advice.startswith("4.71 GiB more were needed for this one allocation.")


def test_enough_memory_in_pieces_is_fragmentation_and_expandable_segments_are_advised() -> None:
    # taggui issue 188 and others: more unused than was asked for
    oom = died(training(), message("2.00 GiB", "1.10 GiB", "66.02 GiB", "9.35 GiB", "77.90 GiB"))

    assert oom.cause == "fragmentation"
    assert "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True for all ranks" in oom.advice
    assert "in pieces" in oom.summary


def test_pieces_of_a_full_gpu_are_no_fragmentation() -> None:
    # torch 2.1 on a V100 of Summit
    oom = died(
        training(),
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 MiB (GPU 2; 15.00 GiB total capacity; 13.99 "
        "GiB already allocated; 10.06 MiB free; 14.12 GiB reserved in total by PyTorch)",
    )

    assert oom.cause == "capacity" and "in pieces" not in oom.summary


def test_gpu_that_is_full_of_what_is_not_pytorchs_is_held_by_others() -> None:
    # torch_npu 2.1, whose message names no process
    oom = died(
        training(),
        "RuntimeError: NPU out of memory. Tried to allocate 300.00 MiB (NPU 2; 60.00 GiB total capacity; 12.00 GiB already "
        "allocated; 12.00 GiB current active; 20.00 MiB free; 12.10 GiB reserved in total by PyTorch) If reserved memory is",
    )

    assert oom.cause == "other_process" and "47.9 GiB are neither free nor PyTorch's" in oom.summary
    assert "no more numbers" not in oom.summary and "would have fitted" not in oom.summary


def test_what_a_context_takes_is_no_other_process() -> None:
    oom = died(
        training(),
        "RuntimeError: NPU out of memory. Tried to allocate 300.00 MiB (NPU 2; 60.00 GiB total capacity; 55.00 GiB already "
        "allocated; 55.00 GiB current active; 20.00 MiB free; 56.00 GiB reserved in total by PyTorch) If reserved memory is",
    )

    assert oom.cause in ("capacity", "fragmentation") and "neither free" not in oom.summary


def test_variable_is_called_as_the_ranks_torch_calls_it() -> None:
    oom = died(
        training(),
        message("2.00 GiB", "1.10 GiB", "66.02 GiB", "9.35 GiB", "77.90 GiB", variable="PYTORCH_ALLOC_CONF"),
    )

    assert "Set PYTORCH_ALLOC_CONF=expandable_segments:True" in oom.advice


def test_expandable_segments_are_not_advised_to_who_has_them() -> None:
    story = training()
    story.tell(EnvironmentSeen(1, pid_of(1), (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)))

    oom = died(story, message("2.00 GiB", "1.10 GiB", "66.02 GiB", "9.35 GiB", "77.90 GiB"))

    assert oom.cause == "fragmentation" and oom.advice.startswith("expandable_segments is on already")


def test_fragmentation_of_old_torch_is_met_with_max_split_size() -> None:
    oom = died(
        training(),
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 1; 79.15 GiB total capacity; 66.02 "
        "GiB already allocated; 1.10 GiB free; 75.37 GiB reserved in total by PyTorch) If reserved memory is >> allocated "
        "memory try setting ...",
    )

    assert oom.cause == "fragmentation" and "max_split_size_mb" in oom.advice


def test_another_process_that_holds_the_gpu_is_named_with_its_pid() -> None:
    oom = died(training(), *recorded("oom_other_process"))

    assert oom.cause == "other_process"
    assert "process 11748 holds 138 GiB" in oom.summary
    assert "`ps -o pid,user,lstart,cmd -p 11748`" in oom.advice


def test_another_rank_on_the_same_gpu_is_told_from_a_stranger() -> None:
    others = f"Process {pid_of(0)} has 40.00 GiB memory in use. "
    oom = died(training(), message("8.00 GiB", "1.00 GiB", "36.00 GiB", "100.00 MiB", "38.00 GiB", others))

    assert oom.cause == "shared_gpu"
    assert f"process {pid_of(0)} (rank 0) holds 40 GiB" in oom.summary
    assert "torch.cuda.set_device(LOCAL_RANK)" in oom.advice


def test_another_rank_on_the_same_gpu_is_known_in_a_container_too() -> None:
    # given pids of the host in the message, and both ranks with the same device
    story = training(1)
    story.tell(
        found(0),
        found(1),
        *(EnvironmentSeen(rank, pid_of(rank), (("CUDA_VISIBLE_DEVICES", "0"),)) for rank in (0, 1)),
    )
    others = "Process 800001 has 40.00 GiB memory in use. Process 800002 has 38.00 GiB memory in use. "

    assert (
        died(story, message("8.00 GiB", "1.00 GiB", "36.00 GiB", "100.00 MiB", "", others)).cause
        == "shared_gpu"
    )


def test_neighbour_too_small_to_matter_is_not_the_cause() -> None:
    others = "Process 4711 has 500.00 MiB memory in use. "
    oom = died(training(), message("8.00 GiB", "1.00 GiB", "75.00 GiB", "100.00 MiB", "77.00 GiB", others))

    assert oom.cause == "capacity"


def test_process_in_a_container_is_not_taken_for_its_own_neighbour() -> None:
    # kaito issue 976: the only process of the list is the one that writes the message
    others = "Process 562167 has 15.25 GiB memory in use. "
    oom = died(
        training(),
        message("546.00 MiB", "20.19 MiB", "13.73 GiB", "90.86 MiB", "", others, total="15.77 GiB"),
    )

    assert oom.cause == "capacity"
    assert "562167" not in oom.summary and "1.43 GiB of the process are outside PyTorch" in oom.summary


def test_memory_that_nobody_in_the_message_has_is_another_containers() -> None:
    oom = died(training(), message("8.00 GiB", "1.00 GiB", "36.00 GiB", "100.00 MiB", "38.00 GiB"))

    assert oom.cause == "other_process"
    assert "40.1 GiB are held by processes that the message does not name" in oom.summary
    assert "processes of other containers are not seen" in oom.advice


def test_much_memory_outside_pytorch_is_told() -> None:
    oom = died(training(), message("4.00 GiB", "0.50 GiB", "60.00 GiB", "200.00 MiB", "78.50 GiB"))

    assert oom.cause == "outside_pytorch" and "18.3 GiB of the process are outside PyTorch" in oom.summary
    assert "NCCL's buffers" in oom.advice


def test_limit_that_the_program_sets_itself_is_named_and_not_the_gpu() -> None:
    oom = died(training(), *recorded("oom_fraction"))

    assert oom.cause == "memory_fraction" and "the program limits itself to 14 GiB" in oom.summary
    assert "set_per_process_memory_fraction" in oom.advice


def test_neighbours_of_old_torch_are_those_that_nvml_showed() -> None:
    story = training()
    story.tell(sample(1, pids=(pid_of(1), 4711), process_memory=((pid_of(1), 30 * GIB), (4711, 45 * GIB))))

    oom = died(
        story,
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 1; 79.15 GiB total capacity; 28.00 "
        "GiB already allocated; 1.10 GiB free; 28.10 GiB reserved in total by PyTorch) If reserved memory is >> allocated "
        "memory try setting ...",
    )

    assert oom.cause == "other_process" and "process 4711 holds 45 GiB" in oom.summary


# --- advice
# ----------------------------------------------------------------------------------------------------

FULL = message("4.00 GiB", "0.50 GiB", "76.00 GiB", "200.00 MiB", "78.00 GiB")


def test_flags_that_the_command_has_already_are_not_advised() -> None:
    story = Story()
    command = (
        "megatron rlhf --recompute_granularity full --micro_batch_size 2 --tensor_model_parallel_size 2 "
        "--optimizer_cpu_offload true"
    )
    story.tell(
        RunStarted(None, tuple(command.split()), 999, "node-0", 2), Iteration(None, 1, 9, "iteration 1/9")
    )

    advice = died(story, FULL).advice

    assert "--recompute_granularity full" not in advice and "--optimizer_cpu_offload" not in advice
    assert "--micro_batch_size 1; --sequence_parallel true" in advice


def test_model_that_does_not_fit_is_to_be_split_not_recomputed() -> None:
    story = Story()
    story.tell(RunStarted(None, ("megatron", "sft"), 999, "node-0", 2))
    story.tell(*said("[INFO:swift] Loading the model using model_dir: /m"))
    oom = died(story, FULL)

    assert "--tensor_model_parallel_size" in oom.advice and "--recompute" not in oom.advice


def test_transformers_path_of_swift_gets_its_own_flags() -> None:
    story = Story()
    story.tell(RunStarted(None, ("swift", "sft"), 999, "node-0", 2), Iteration(None, 1, 9, "iteration 1/9"))

    assert "--gradient_checkpointing true; --per_device_train_batch_size 1" in died(story, FULL).advice


# --- memory over time
# ------------------------------------------------------------------------------------------


def steps(story: Story, use: list[float]) -> None:
    for number, used in enumerate(use, 41):
        story.tell(Iteration(None, number, 1000, f"iteration {number}/1000"))
        story.tell(sample(1, memory_used_bytes=int(used * GIB)))
        story.wait(1)


def test_memory_that_grew_step_after_step_is_said_and_hints_at_a_leak() -> None:
    story = training()
    steps(story, [60 + number for number in range(60)])

    oom = died(story, FULL)

    assert "memory in use grew from 70 GiB to 110 GiB between iterations 41 and 100" in oom.summary
    assert ".detach()" in oom.advice


def test_memory_that_goes_up_and_down_is_no_leak() -> None:
    story = training()
    steps(story, [100 + number % 7 for number in range(60)])

    oom = died(story, FULL)

    assert "grew" not in oom.summary and "detach" not in oom.advice


# --- lines without numbers
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["oom_cublas", "oom_nccl", "oom_no_room_for_context", "oom_cudamallocasync"])
def test_memory_that_ran_out_outside_the_allocator_is_told(name: str) -> None:
    oom = died(training(), *recorded(name))

    assert (oom.ranks, oom.cause) == ((1,), "outside_pytorch")
    assert "rank 1 ran out of GPU memory outside PyTorch's allocator" in oom.summary
    assert "100 GiB of 140 GiB of GPU 1 were in use before" in oom.summary


def test_pinned_host_memory_is_not_the_gpus() -> None:
    # megatron-core's checkpoint copy, torch 2.11; the exception is as recorded
    story = training()
    with pytest.raises(StopIteration):  # no cuda-oom
        died(
            story,
            "[rank1]: Traceback (most recent call last):",
            '[rank1]:   File "megatron/core/dist_checkpointing/strategies/filesystem_async.py", line 229, in preload_tensors',
            '[rank1]:     tensor.to("cpu", non_blocking=non_blocking)',
            *(f"[rank1]: {line}" for line in recorded("oom_pinned_host") if line.startswith("torch.")),
        )

    oom = story.the("host-oom")
    assert (oom.ranks, oom.cause) == ((1,), "pinned_host") and "page-locked host memory" in oom.summary
    assert "--dataloader_pin_memory false" in oom.advice


# --- whom and whether
# ------------------------------------------------------------------------------------------


def test_rank_of_a_line_that_names_none_is_the_one_that_failed_on_that_device() -> None:
    story = training(4)
    story.tell(*said(FULL))  # GPU 1
    story.wait(1)
    story.exit(3, code=1)
    story.exit(1, code=1)
    story.wait(3)

    assert story.the("cuda-oom").ranks == (1,)


def test_all_ranks_that_ran_out_are_culprits() -> None:
    story = training()
    for rank in (0, 1):
        story.tell(*said(FULL, rank))
        story.exit(rank, code=1)
    story.wait(3)

    assert story.the("cuda-oom").ranks == (0, 1)
    assert story.the("cuda-oom").summary.endswith("so did rank 1")


def test_error_that_the_program_survives_is_no_finding() -> None:
    # accelerate's find_executable_batch_size: it catches the error and tries a smaller batch
    story = training()
    story.tell(*said("Decreasing batch size to: 4 after " + FULL, 1))
    for number in range(41, 81):
        story.tell(Iteration(None, number, 100, f"iteration {number}/100"))
        story.wait(1)
        story.engine.job.ranks[1].moved["cpu"] = story.now

    assert [finding.id for finding in story.findings()] == []


def test_words_of_a_dataset_are_not_why_a_rank_fails_later() -> None:
    # ms-swift prints an example of the dataset before it trains
    story = training()
    story.tell(*said("[INFO:swift] [INPUT] How do I fix this? " + FULL, 1))
    for number in range(41, 61):
        story.tell(Iteration(None, number, 100, f"iteration {number}/100"))
        story.wait(1)
    story.exit(1, code=1)
    story.wait(3)

    assert [finding.id for finding in story.findings()] == ["rank-died"]
    assert "cuda-oom" not in story.the("rank-died").advice


def test_arguments_that_speak_of_pinned_memory_do_not_make_an_error_of_the_host() -> None:
    story = training()

    oom = died(
        story,
        "args: SftArguments(dataloader_pin_memory=True, ...)",
        "RuntimeError: CUDA error: out of memory",
    )

    assert oom.cause == "outside_pytorch"


def test_uncaught_error_is_told_before_the_process_has_ended() -> None:
    story = training()
    story.tell(*said(f"[rank1]: {FULL}"))
    story.wait(1)

    assert story.the("cuda-oom").ranks == (1,)


def test_rank_died_points_to_the_finding_that_explains_it() -> None:
    story = training()
    died(story, FULL)

    assert story.the("rank-died").advice.startswith("See finding cuda-oom for why rank 1 failed")
    assert [finding.id for finding in story.findings()][:2] == ["cuda-oom", "rank-died"]


def test_uncaught_error_in_the_log_of_a_rank_that_was_never_found_is_told() -> None:
    # a rank that fails before the processes are looked at for the first time
    story = training(1)
    story.tell(*said(f"[rank7]: {FULL}"))
    story.wait(1)

    assert story.the("cuda-oom").ranks == (7,)
    assert story.the("cuda-oom").summary.startswith("rank 7 ran out of GPU memory")
