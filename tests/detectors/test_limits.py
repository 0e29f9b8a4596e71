"""shm-too-small, fd-limit, memlock-limit and host-oom: found with their lines or counters, silent else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model.observations import CgroupMemory, DiskSpace, HostMemory, LimitsSeen, LogLine, SharedMemory
from tests.facts import Story, pid_of, process, tree

MIB = 1 << 20


def limits(rank: int, *, rdma: bool = False, **soft: int | None) -> LimitsSeen:
    names = {"nofile": "Max open files", "memlock": "Max locked memory", "as_": "Max address space"}
    return LimitsSeen(rank, pid_of(rank), tuple((names[key], value) for key, value in soft.items()), rdma)


@pytest.mark.parametrize(
    "line",
    [
        # torch 2.13, torch/utils/data/_utils/signal_handling.py
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        # torch 2.13, aten/src/ATen/MapAllocator.cpp
        "[rank1]: RuntimeError: unable to write to file </torch_4242_3_0>: No space left on device (28)",
        # NCCL 2.28.9 on 2 x H200 with /dev/shm of 4 MB, 2026-11-20
        "node:1:2 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-8mU5qJ (size 9637888), "
        "error: No space left on device (28)",
    ],
)
def test_lines_of_exhausted_shared_memory_are_critical(line: str) -> None:
    story = Story()

    story.tell(LogLine(1, "stderr", line))
    story.wait(2)

    assert story.the("shm-too-small").severity.value == "critical"
    assert "--shm-size" in story.the("shm-too-small").advice


def test_crash_line_without_a_rank_blames_those_that_saw_it_full() -> None:
    story = Story()
    story.tell(SharedMemory(1, 64 << 20, 1 << 20), SharedMemory(0, 64 << 30, 60 << 30))
    story.wait(2.0)
    story.tell(
        LogLine(
            None,
            "stderr",
            "RuntimeError: unable to write to file </torch_1234_567_0>: No space left on device (28)",
        )
    )
    story.wait(2.0)

    assert (story.the("shm-too-small").ranks, story.the("shm-too-small").cause) == ((1,), "exhausted")


def test_bus_error_of_a_rank_with_a_small_shm_is_its_end_and_with_a_big_one_is_not() -> None:
    # Linux 6.1: a rank that fills a mapped segment of a full tmpfs ends by SIGBUS without a line
    found = []
    for size in (16 * MIB, 64 << 30):
        story = Story()
        story.tell(SharedMemory(1, size, size))
        story.wait(2.0)
        story.exit(1, signal=7)
        story.wait(5.0)
        found.append(
            [
                (one.cause, one.ranks, one.severity.value)
                for one in story.findings()
                if one.id == "shm-too-small"
            ]
        )

    assert found == [[("exhausted", (1,), "critical")], []]


@pytest.mark.parametrize("size", [16 * MIB, 64 * MIB, 512 * MIB])
def test_bus_error_beside_a_small_shm_that_nobody_saw_full_is_laid_to_it_with_medium_confidence(
    size: int,
) -> None:
    for code, number in ((None, 7), (135, None)):  # the kernel's word, and a shell's
        story = Story()
        story.tell(SharedMemory(0, size, size - 4 * MIB))  # rank 1 died before its own was read
        story.wait(2.0)
        story.exit(1, code=code, signal=number)
        story.wait(5.0)

        told = story.the("shm-too-small")
        assert (told.cause, told.ranks, told.confidence.value) == ("exhausted", (1,), "medium")


@pytest.mark.parametrize("highest, told", [(0.7, []), (0.9, ["shm-too-small"])])
def test_bus_error_beside_a_big_shm_counts_only_where_that_was_nearly_full_once(
    highest: float, told: list[str]
) -> None:
    story = Story()
    size = 8 << 30
    story.tell(SharedMemory(1, size, round(size * (1 - highest))), SharedMemory(1, size, size))
    story.wait(2.0)
    story.exit(1, signal=7)
    story.wait(5.0)

    assert [one.id for one in story.findings() if one.id == "shm-too-small"] == told
    assert story.the("rank-died").cause == "signal_7"


def test_bus_error_beside_a_full_temporary_disk_is_not_laid_to_shm() -> None:
    story = Story()
    story.tell(SharedMemory(1, 128 * MIB, 128 * MIB), DiskSpace(None, "/tmp", "tmp", 1 << 30, 4096))
    story.wait(2.0)
    story.exit(1, signal=7)
    story.wait(5.0)

    assert "shm-too-small" not in {one.id for one in story.findings()}


# torch 2.13 says so of any bus error of a worker, also where a file of the data that is mapped got shorter
_GUESS = (
    "[rank1]: RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit."
)


@pytest.mark.parametrize(
    "size, told", [(64 * MIB, "medium"), (256 * MIB, "medium"), (64 << 30, None), (0, "medium")]
)
def test_pytorchs_guess_at_a_workers_bus_error_is_weighed_with_what_was_read_of_shm(
    size: int, told: str | None
) -> None:
    story = Story()
    if size:
        story.tell(*(SharedMemory(rank, size, size // 2) for rank in (0, 1)))
    story.wait(2.0)
    story.tell(
        LogLine(
            None,
            "stderr",
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
            "shared memory (shm).",
        ),
        LogLine(1, "stderr", _GUESS),
    )
    story.exit(1, code=1)
    story.wait(5.0)

    found = {one.id: one for one in story.findings()}
    assert (found["shm-too-small"].confidence.value if "shm-too-small" in found else None) == told
    assert told or found["dataloader-worker-died"].cause == "killed_by_signal"


def test_docker_default_shm_with_dataloader_workers_is_warned_before_the_crash() -> None:
    story = Story()
    story.tell(tree(0, story.now, process(9, comm="pt_data_worker")), SharedMemory(0, 64 * MIB, 60 * MIB))
    story.wait(2)

    assert story.the("shm-too-small").severity.value == "warning"


def test_small_shm_that_nothing_uses_is_info_and_a_big_one_is_silent() -> None:
    story = Story()
    story.tell(tree(0, story.now), SharedMemory(0, 64 * MIB, 64 * MIB))
    story.wait(2)
    other = Story()
    other.tell(
        SharedMemory(None, 1 << 34, 1 << 34),
        LogLine(0, "stdout", "shared memory of 4 GiB is used as a cache"),
    )
    other.wait(2)

    assert story.the("shm-too-small").severity.value == "info"
    assert other.findings() == []


def test_rank_near_its_limit_of_open_files_is_named_and_one_far_from_it_is_not() -> None:
    story = Story()
    story.tell(
        limits(0, nofile=1024),
        tree(0, story.now, open_files=1000),
        limits(1, nofile=1024),
        tree(1, story.now, open_files=90),
    )
    story.wait(2)

    assert (story.the("fd-limit").ranks, story.the("fd-limit").severity.value) == ((0,), "warning")


def test_low_memlock_matters_only_beside_rdma_devices() -> None:
    story = Story(world=4, nodes=2)
    story.tell(limits(0, memlock=8 * MIB), limits(1, memlock=8 * MIB))
    story.wait(2)
    before = story.findings()
    story.tell(limits(0, memlock=8 * MIB, rdma=True), limits(1, memlock=None, rdma=True))
    story.wait(2)

    assert before == []
    assert (story.the("memlock-limit").ranks, story.the("memlock-limit").severity.value) == ((0,), "warning")


def test_low_memlock_does_not_matter_to_a_rank_with_cap_ipc_lock() -> None:
    story = Story()

    story.tell(*(replace(limits(rank, memlock=8 * MIB, rdma=True), ipc_lock=rank == 0) for rank in (0, 1)))
    story.wait(2)

    assert story.the("memlock-limit").ranks == (1,)


def test_memlock_of_ranks_that_differ_is_told_as_a_range() -> None:
    story = Story()

    story.tell(limits(0, memlock=8 * MIB, rdma=True), limits(1, memlock=0, rdma=True))
    story.wait(2)

    assert "is 0 B to 8 MiB on ranks 0-1" in story.the("memlock-limit").summary


def test_refused_allocation_with_a_limited_address_space_names_the_limit() -> None:
    story = Story()
    story.tell(
        limits(1, as_=8 << 30),
        LogLine(
            1,
            "stderr",
            "[rank1]: RuntimeError: [enforce fail at alloc_cpu.cpp:128] err == 0. "
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 17179869184 bytes. "
            "Error code 12 (Cannot allocate memory)",
        ),
    )
    story.exit(1, code=1)
    story.wait(5)

    assert (story.the("host-oom").cause, story.the("host-oom").ranks) == ("rlimit_as", (1,))


def test_allocation_error_that_the_job_survived_and_a_neighbours_oom_kill_are_silent() -> None:
    story = Story()
    story.tell(HostMemory(None, 100, 50, 7), CgroupMemory(0, 2, "/job", 1, None, 1, 3))
    story.tell(LogLine(1, "stderr", "MemoryError caught, retrying with a smaller cache"))
    story.tell(HostMemory(None, 100, 50, 8), CgroupMemory(0, 2, "/job", 1, None, 1, 3))
    story.wait(5)

    assert story.findings() == []


def test_kill_that_only_the_hosts_counter_tells_is_the_cgroups_when_that_was_full_and_the_host_was_not() -> (
    None
):
    story = Story()
    story.tell(HostMemory(None, 24 << 30, 20 << 30, 5), CgroupMemory(1, 1, "/job", 97, 100, 100, 0))
    story.wait(1.0)
    story.tell(HostMemory(None, 24 << 30, 20 << 30, 6))
    story.exit(1, signal=9)
    story.wait(5.0)

    found = story.the("host-oom")
    assert (found.cause, found.ranks, found.confidence.value) == ("cgroup_limit", (1,), "medium")


def test_kill_on_a_full_host_is_the_hosts() -> None:
    story = Story()
    story.tell(HostMemory(None, 24 << 30, 1 << 30, 5), CgroupMemory(1, 1, "/job", 97, 100, 100, 0))
    story.wait(1.0)
    story.tell(HostMemory(None, 24 << 30, 1 << 30, 6))
    story.exit(1, signal=9)
    story.wait(5.0)

    assert story.the("host-oom").cause == "global_oom"
