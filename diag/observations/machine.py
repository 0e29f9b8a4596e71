"""Processes, limits, memory and GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from diag.observations.base import Observation

__all__ = [
    "CgroupMemory",
    "GpuSample",
    "HostMemory",
    "LimitsSeen",
    "ProcessSample",
    "ProcessTree",
    "SharedMemory",
    "XidReported",
]


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process now. `state` is the letter of /proc/PID/stat (R S D T t Z X); io fields are None when denied."""

    pid: int
    ppid: int
    comm: str
    state: str
    cpu_seconds: float
    threads: int
    rss_bytes: int
    start_ticks: int
    read_chars: int | None = None
    write_chars: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    wchan: str = ""


@dataclass(frozen=True, slots=True)
class ProcessTree(Observation):
    """A rank's process and all that live below it, read at one moment. `emitted` is the reader's clock."""

    main: ProcessSample
    children: tuple[ProcessSample, ...]
    emitted: float
    open_files: int | None = None
    peak_rss_bytes: int | None = None
    pinned_bytes: int | None = None
    locked_bytes: int | None = None
    main_thread_cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LimitsSeen(Observation):
    """/proc/PID/limits, soft values; None stands for unlimited, a missing key for not shown."""

    pid: int
    soft: tuple[tuple[str, int | None], ...]
    rdma_devices: bool = False  # /dev/infiniband is there, seen through the rank's own root
    ipc_lock: bool | None = None  # CAP_IPC_LOCK: the limit of locked memory does not hold; None: not seen

    def get(self, name: str) -> int | None:
        return dict(self.soft).get(name)


@dataclass(frozen=True, slots=True)
class CgroupMemory(Observation):
    """Memory of the cgroup that a rank (or CMD) lives in: the tightest limit of it and its parents."""

    version: int
    path: str
    usage_bytes: int
    limit_bytes: int | None
    peak_bytes: int | None
    oom_kills: int
    cache_bytes: int = 0
    shmem_bytes: int = 0
    high_events: int = 0


@dataclass(frozen=True, slots=True)
class HostMemory(Observation):
    total_bytes: int
    available_bytes: int
    oom_kills: int | None = None  # oom_kill of /proc/vmstat, whole host; None where hidden


@dataclass(frozen=True, slots=True)
class SharedMemory(Observation):
    """/dev/shm as the rank sees it."""

    size_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class GpuSample(Observation):
    """One GPU now; None for what the driver did not say."""

    index: int
    uuid: str
    pci_bus_id: str
    name: str
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    power_limit_watts: float | None
    sm_clock_hertz: int | None
    temperature_celsius: float | None
    throttle_reasons: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class XidReported(Observation):
    """NVIDIA's driver reported an error of a GPU to the kernel log; `pid` where the message names one."""

    pci_bus_id: str
    xid: int
    pid: int | None
    text: str
