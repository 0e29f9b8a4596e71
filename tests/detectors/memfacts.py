"""Jobs whose host memory ran out, one for each limit that can be met, and jobs that only look alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from diag.model.observations import (
    CgroupLevel,
    CgroupMemory,
    CgroupPids,
    CudaErrorRaised,
    HostMemory,
    Iteration,
    KernelOomKill,
    KernelRefusal,
    LimitsSeen,
    LogLine,
    SaveStarted,
    SharedMemory,
)
from tests.facts import Story, pid_of, tree

GIB, MIB = 1 << 30, 1 << 20
HOST = HostMemory(
    0, 64 * GIB, 40 * GIB, 5, overcommit=0, commit_limit_bytes=32 * GIB, committed_bytes=8 * GIB
)
OWN = CgroupLevel("/sys/fs/cgroup/pod/main", 3 * GIB, 4 * GIB, 3 * GIB, None, 0, 0)
POD = CgroupLevel("/sys/fs/cgroup/pod", 5 * GIB, 8 * GIB, 5 * GIB, None, 0, 0)
MEMORY_FINDINGS = (
    "host-oom",
    "host-oom-forecast",
    "pids-limit",
    "memlock-limit",
    "shm-too-small",
    "fd-limit",
)


def group(
    rank: int = 1, kills: int = 0, own: CgroupLevel = OWN, pod: CgroupLevel = POD, **more: object
) -> CgroupMemory:
    tight = min((own, pod), key=lambda level: (level.limit_bytes or 1 << 62) - level.usage_bytes)
    fields = {"cache_bytes": 0, "anon_bytes": 2 * GIB, **more}
    return CgroupMemory(
        rank,
        2,
        tight.path,
        tight.usage_bytes,
        tight.limit_bytes,
        tight.peak_bytes,
        kills,
        levels=(own, pod),
        **fields,
    )  # type: ignore[arg-type]


def full(level: CgroupLevel, met: int = 9) -> CgroupLevel:
    """As it is read after the kill: what the victim held is given back, the peak stays."""
    return replace(level, usage_bytes=GIB, peak_bytes=level.limit_bytes, max_events=met)


def kernel(
    pid: int, cgroup: str, victim: str = "", limit: int | None = None, comm: str = "python3", **more: object
) -> KernelOomKill:
    text = f"Killed process {pid} ({comm})"
    return KernelOomKill(None, pid, comm, 3 * GIB, 4096, 0, cgroup, limit, limit, text, victim, **more)  # type: ignore[arg-type]


def told() -> Story:
    story = Story()
    story.tell(HOST, group(), tree(0, story.now), tree(1, story.now))
    story.wait(2.0)
    return story


def dies(story: Story, rank: int = 1, *, code: int | None = None, signal: int | None = None) -> None:
    story.exit(rank, code=code, signal=signal)
    story.wait(5.0)


def says(story: Story, *lines: str, rank: int = 1) -> None:
    for line in lines:
        story.tell(LogLine(rank, "stderr", line))


# CPython 3.11 under vm.overcommit_memory=2, Linux 6.1
FORK = (
    '  File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 66, in _launch',
    "    self.pid = os.fork()",
    "                ^^^^^^^^^",
    "OSError: [Errno 12] Cannot allocate memory",
)
ENOMEM = (
    '  File "/app/train.py", line 12, in load',
    "    memory = mmap.mmap(-1, 20 << 30)",
    "OSError: [Errno 12] Cannot allocate memory",
)


def cgroup_by_counter(story: Story) -> None:
    story.tell(group(kills=1, own=full(OWN)))
    dies(story, signal=9)


def cgroup_by_kernel(story: Story) -> None:
    story.tell(kernel(pid_of(1), "/pod/main", "/pod/main", 4 * GIB))
    dies(story, signal=9)


def parent_by_counter(story: Story) -> None:
    story.tell(group(kills=1, pod=full(POD)))
    dies(story, signal=9)


def parent_by_kernel(story: Story) -> None:
    story.tell(kernel(pid_of(1), "/pod", "/pod/main", 8 * GIB), group(kills=1))
    dies(story, signal=9)


def parent_that_is_hidden(story: Story) -> None:
    # v1 tells the limit of a parent that cannot be seen
    hidden = CgroupMemory(
        1, 1, OWN.path, 3 * GIB, 3 * GIB, 3 * GIB, 1, levels=(replace(OWN, limit_bytes=None),)
    )
    story.tell(replace(hidden, oom_kills=0), hidden)
    dies(story, signal=9)


def host_by_kernel(story: Story) -> None:
    # the cgroup's own counter rises for it, too
    story.tell(kernel(pid_of(1), "", "/pod/main"), group(kills=1))
    dies(story, signal=9)


def host_by_counters(story: Story) -> None:
    story.tell(replace(HOST, available_bytes=GIB))
    story.wait(1.0)
    story.tell(group(kills=1), replace(HOST, available_bytes=GIB, oom_kills=6))
    dies(story, signal=9)


def host_without_any_limit(story: Story) -> None:
    free = CgroupMemory(
        1, 2, "/user.slice", GIB, None, GIB, 0, levels=(CgroupLevel("/user.slice", GIB, None, GIB),)
    )
    story.tell(free)
    story.wait(1.0)
    story.tell(replace(free, oom_kills=1))
    dies(story, signal=9)


def fork_refused(story: Story) -> None:
    story.tell(replace(HOST, overcommit=2))
    says(story, *FORK)
    dies(story, code=1)


def fork_refused_by_kernels_word(story: Story) -> None:
    story.tell(
        KernelRefusal(
            None,
            "overcommit",
            pid_of(1),
            "python3",
            "__vm_enough_memory: pid: 1001, comm: python3, no enough",
        )
    )
    says(story, *FORK)
    dies(story, code=1)


def address_space(story: Story) -> None:
    story.tell(LimitsSeen(1, pid_of(1), (("Max address space", 8 * GIB),)))
    says(story, *FORK)
    dies(story, code=1)


def allocation(story: Story) -> None:
    says(story, *ENOMEM)
    dies(story, code=1)


def strict_allocation(story: Story) -> None:
    story.tell(replace(HOST, overcommit=2))
    says(story, *ENOMEM)
    dies(story, code=1)


def pinned(story: Story) -> None:
    story.tell(
        CudaErrorRaised(
            1, "out of memory", "torch.AcceleratorError: CUDA error: out of memory", host_memory=True
        )
    )
    dies(story, code=1)


def stalled(story: Story) -> None:
    high = replace(OWN, high_bytes=2 * GIB)
    for number in range(6):
        story.tell(
            tree(1, story.now, state="D", wchan="mem_cgroup_handle_over_high"),
            tree(0, story.now),
            group(own=high, high_events=100 * number, pressure_full_ratio=0.35),
        )
        story.wait(5.0)


def no_more_processes(story: Story) -> None:
    story.tell(CgroupPids(1, "/sys/fs/cgroup/pids/pod", 40, 64, 0))
    says(
        story,
        '  File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 66, in _launch',
        "    self.pid = os.fork()",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
    )
    story.tell(CgroupPids(1, "/sys/fs/cgroup/pids/pod", 64, 64, 1))
    dies(story, code=1)


def locked_memory(story: Story) -> None:
    story.tell(LimitsSeen(1, pid_of(1), (("Max locked memory", 8 * MIB),), rdma_devices=True))
    says(
        story,
        "node:1:2 [0] misc/ibvwrap.cc:123 NCCL WARN Call to ibv_reg_mr failed: Cannot allocate memory [12]",
    )
    dies(story, code=1)


def shared_memory(story: Story) -> None:
    story.tell(SharedMemory(1, 64 * MIB, 0))
    says(
        story,
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    )
    dies(story, code=1)


CASES: tuple[tuple[Callable[[Story], None], str, str], ...] = (
    (cgroup_by_counter, "host-oom", "cgroup_limit"),
    (cgroup_by_kernel, "host-oom", "cgroup_limit"),
    (parent_by_counter, "host-oom", "parent_cgroup_limit"),
    (parent_by_kernel, "host-oom", "parent_cgroup_limit"),
    (parent_that_is_hidden, "host-oom", "parent_cgroup_limit"),
    (host_by_kernel, "host-oom", "global_oom"),
    (host_by_counters, "host-oom", "global_oom"),
    (host_without_any_limit, "host-oom", "global_oom"),
    (fork_refused, "host-oom", "fork_overcommit"),
    (fork_refused_by_kernels_word, "host-oom", "fork_overcommit"),
    (address_space, "host-oom", "rlimit_as"),
    (allocation, "host-oom", "allocation_refused"),
    (strict_allocation, "host-oom", "allocation_refused"),
    (pinned, "host-oom", "pinned_host"),
    (stalled, "host-oom", "reclaim_stall"),
    (no_more_processes, "pids-limit", "cgroup_pids"),
    (locked_memory, "memlock-limit", ""),
    (shared_memory, "shm-too-small", "exhausted"),
)


def save(story: Story) -> None:
    story.tell(
        Iteration(0, 500, 1000, "iteration 500"), SaveStarted(0, "saving checkpoint at iteration 500", "/out")
    )
