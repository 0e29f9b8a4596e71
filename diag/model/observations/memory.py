"""Host memory: cgroups, the whole host, /dev/shm, what the kernel reported of it, and what the command will need."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.base import Observation


@dataclass(frozen=True, slots=True)
class CgroupLevel:
    """One memory cgroup; None for a limit that is not set and for what the kernel does not say."""

    path: str
    usage_bytes: int
    limit_bytes: int | None
    peak_bytes: int | None
    # v2 memory.high: above it the kernel holds the processes up instead of killing
    high_bytes: int | None = None
    oom_kills: int | None = None
    # how often its own limit was met; v1 (failcnt) does not count each on every kernel
    max_events: int | None = None


@dataclass(frozen=True, slots=True)
class CgroupMemory(Observation):
    """Memory of the cgroup that a rank (or CMD) lives in: the tightest limit of it and its parents.

    `usage_bytes` to `peak_bytes` and the breakdown are of that level (`path`), the event counters and the
    pressure of the leaf. `levels` holds the leaf and all parents that have a limit, leaf first. v1 shows a
    limit of parents that cannot be seen, too: then `limit_bytes` is lower than any of `levels`.
    """

    version: int
    path: str
    usage_bytes: int
    limit_bytes: int | None
    peak_bytes: int | None
    oom_kills: int
    cache_bytes: int = 0  # page cache: the kernel takes it back before it kills, but for what is dirty
    shmem_bytes: int = 0  # /dev/shm and other tmpfs: counts, and cannot be taken back
    high_events: int = 0
    anon_bytes: int = 0
    dirty_bytes: int = 0  # of the page cache: dirty or being written back
    max_events: int = 0  # how often the limit was met
    # PSI: share of the last 10 s in which all its tasks waited for memory; v2 only
    pressure_full_ratio: float | None = None
    levels: tuple[CgroupLevel, ...] = ()
    # of the leaf: how often all of it was killed at once (memory.oom.group); v2, Linux 5.17 and later
    group_kills: int = 0

    @property
    def needed_bytes(self) -> int:
        """What cannot be taken back at once: usage without the clean page cache."""
        return max(0, self.usage_bytes - max(0, self.cache_bytes - self.dirty_bytes))


@dataclass(frozen=True, slots=True)
class CgroupPids(Observation):
    """Processes and threads of the rank's cgroup against pids.max, the tightest level.

    `refused` counts forks that failed for it or a parent.
    """

    path: str
    current: int
    limit: int | None
    refused: int


@dataclass(frozen=True, slots=True)
class HostMemory(Observation):
    total_bytes: int
    available_bytes: int
    oom_kills: int | None = None  # oom_kill of /proc/vmstat, whole host; None where hidden
    overcommit: int | None = None  # /proc/sys/vm/overcommit_memory: 0 heuristic, 1 always, 2 strict
    commit_limit_bytes: int | None = None
    committed_bytes: int | None = None
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0
    shmem_bytes: int = 0
    dirty_bytes: int = 0
    pressure_full_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class SharedMemory(Observation):
    """/dev/shm as the rank sees it."""

    size_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class KernelOomKill(Observation):
    """The kernel log reports a kill for memory. `pid` is the host's number; `cgroup` that whose limit was met,
    "" for the host and "?" where the log does not say which.

    `breakdown` and `tasks` are of that cgroup at this moment (of the host: tasks only); tasks are the
    biggest, as (pid, name, resident bytes).
    """

    pid: int
    comm: str
    anon_bytes: int
    file_bytes: int
    shmem_bytes: int
    cgroup: str
    usage_bytes: int | None
    limit_bytes: int | None
    text: str
    victim_cgroup: str = ""
    breakdown: tuple[tuple[str, int], ...] = ()  # anon, cache, shmem, dirty
    tasks: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelRefusal(Observation):
    """The kernel log reports that it refused memory or a fork. `what`: overcommit, pids. `cgroup`: the one that
    forked."""

    what: str
    pid: int | None
    comm: str
    text: str
    cgroup: str = ""
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryTerm:
    """One summand of an estimate: what, how much, by which formula, and where that comes from."""

    name: str
    size_bytes: int
    formula: str
    source: str


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A run of the same model whose maker published its speed: in words, where, on which GPUs ("" where that is not
    said), and tokens a second of one GPU. `alike`: it trains the same parameters in the same way."""

    words: str
    url: str
    gpu: str
    gpu_tokens_per_second: float | None
    alike: bool


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step of all ranks has to compute: tokens (at most, where they are not `packed`), and floating-point
    operations without what is computed again."""

    step_tokens: int
    packed: bool
    step_flops: float
    ranks: int
    published: tuple[PublishedRun, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryEstimated(Observation):
    """What the command should need, by its own arguments (`diag estimate`), before it runs.

    GPU terms are of the rank that needs most, host terms of one node. `save` terms come on top of `host`
    while a checkpoint is written. Empty where the arguments do not say.
    """

    gpu: tuple[MemoryTerm, ...]
    host: tuple[MemoryTerm, ...]
    save: tuple[MemoryTerm, ...]
    checkpoint_bytes: int | None = None  # on disk, all ranks
    basis: str = ""  # the model and layout in words
    speed: StepWork | None = None

    @property
    def gpu_bytes(self) -> int:
        return sum(term.size_bytes for term in self.gpu)

    @property
    def host_bytes(self) -> int:
        return sum(term.size_bytes for term in self.host)

    @property
    def save_bytes(self) -> int:
        return sum(term.size_bytes for term in self.save)
