"""What GPU core dumps add to a hang: a kernel that does not end is told from a wait in NCCL, and from
neither."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diag.model.observations import GpuKernel, GpuKernels
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_evidence import GPU_WAIT, quiet
from tests.facts import ALL_REDUCE, SLEEP, Story, stack, tree

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
OWN = "user_endless_kernel"


def dumped(story: Story, running: dict[int, Sequence[str]]) -> None:
    for rank, names in running.items():
        kernels = tuple(GpuKernel(name, (4, 1, 1), (128, 1, 1), 4) for name in names)
        story.tell(GpuKernels(rank, kernels))


def hung(
    world: int, running: dict[int, Sequence[str]], stacks: dict[int, Sequence[str]] | None = None
) -> Story:
    """A job whose ranks wait at their GPUs; then the dumps come, and it goes on to stand still."""
    story = steady(world)
    stacks = stacks or dict.fromkeys(range(world), GPU_WAIT)
    quiet(story, stacks, lambda _: [], 90.0)
    dumped(story, running)
    quiet(story, stacks, lambda _: [], 10.0)
    return story


def test_rank_whose_own_kernel_runs_while_the_others_wait_in_nccl_holds_them_up() -> None:
    story = hung(4, {0: [NCCL], 1: [NCCL], 2: [OWN], 3: [NCCL]})

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.waiting_ranks) == ("gpu_side", (2,), (0, 1, 3))
    assert (hang.cause, hang.confidence.value) == ("kernel_does_not_end", "high")
    assert "which runs a kernel that does not end" in hang.summary and "NCCL is not at fault" in hang.advice
    notes = {item.rank: item.excerpt for item in hang.evidence if item.kind == "cuda_coredump"}
    assert OWN in notes[2] and NCCL in notes[0]


def test_kernel_beside_that_of_nccl_is_told_from_those_who_only_wait() -> None:
    assert story_of({0: [NCCL], 1: [NCCL, OWN]}) == ("gpu_side", (1,), "kernel_does_not_end")


def story_of(running: dict[int, Sequence[str]], world: int = 2) -> tuple[str, tuple[int, ...], str]:
    hang = hung(world, running).hang()
    return hang.klass, hang.ranks, hang.cause


def test_all_waiting_in_nccl_blames_nobody_and_says_what_runs() -> None:
    hang = hung(2, {0: [NCCL], 1: [NCCL]}).hang()

    assert (hang.klass, hang.ranks, hang.cause) == ("unknown", (), "all_ranks_wait")
    assert [item.excerpt for item in hang.evidence if item.kind == "cuda_coredump"] == [
        f"its GPU runs {NCCL}"
    ] * 2


def test_kernels_of_their_own_on_all_ranks_blame_nobody() -> None:  # a custom all-reduce
    assert story_of({0: ["cross_device_reduce_1stage"], 1: ["cross_device_reduce_1stage"]}) == (
        "unknown",
        (),
        "all_ranks_wait",
    )


@pytest.mark.parametrize("name", [
    "deep_ep::intranode::dispatch", "deep_ep::internode_ll::combine", "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop",
    "kuserbuffers_pushrecv", "two_shot_all_reduce_kernel_inplace", "vllm::cross_device_reduce_1stage",
    "multimem_all_reduce_kernel",
])  # fmt: skip
def test_kernel_that_waits_for_its_peers_by_other_means_than_nccl_is_not_blamed(name: str) -> None:
    assert (
        story_of({0: [name], 1: [NCCL]}) == story_of({0: [name], 1: []}) == ("unknown", (), "all_ranks_wait")
    )
    assert story_of({0: [name], 1: [OWN]}) == ("gpu_side", (1,), "kernel_does_not_end")


def test_kernel_without_a_name_may_be_anyones() -> None:
    assert (
        story_of({0: [""], 1: [NCCL]}) == story_of({0: [""], 1: [OWN]}) == ("unknown", (), "all_ranks_wait")
    )


def test_kernel_that_is_queued_does_not_run() -> None:
    story = steady(2)
    quiet(story, dict.fromkeys(range(2), GPU_WAIT), lambda _: [], 90.0)
    waits = GpuKernel(NCCL, (4, 1, 1), (128, 1, 1), 4)
    story.tell(GpuKernels(0, (waits,)), GpuKernels(1, (waits, GpuKernel(OWN, (4, 1, 1), (128, 1, 1), 0))))
    quiet(story, dict.fromkeys(range(2), GPU_WAIT), lambda _: [], 10.0)

    assert story.hang().cause == "all_ranks_wait"


def test_lone_process_whose_kernel_does_not_end_is_named() -> None:
    assert story_of({0: [OWN]}, 1) == ("gpu_side", (0,), "kernel_does_not_end")


def test_some_ranks_that_gave_no_dump_make_it_less_sure() -> None:
    hang = hung(4, {0: [NCCL], 2: [OWN]}).hang()

    assert (hang.ranks, hang.confidence.value) == ((2,), "medium")


def test_rank_that_sleeps_in_its_own_code_is_not_made_a_gpu_fault_by_what_its_gpu_runs() -> None:
    hang = hung(2, {0: [NCCL], 1: [OWN]}, {0: ALL_REDUCE, 1: SLEEP}).hang()

    assert (hang.klass, hang.ranks, hang.cause) == ("peer_not_joined", (1,), "not_in_collective")


def test_dump_of_before_the_silence_is_no_evidence() -> None:
    story = steady(2)
    dumped(story, {0: [NCCL], 1: [OWN]})
    story.wait(2.0)
    for rank in range(2):
        story.tell(tree(rank, story.now, cpu=50.0), stack(rank, story.now, GPU_WAIT))
    quiet(story, dict.fromkeys(range(2), GPU_WAIT), lambda _: [], 90.0)

    assert story.hang().cause == "all_ranks_wait"


def test_dumps_of_a_job_that_moves_say_nothing() -> None:
    story = steady(2)
    dumped(story, {0: [NCCL], 1: [OWN]})
    story.wait(5.0)

    assert story.findings() == []
