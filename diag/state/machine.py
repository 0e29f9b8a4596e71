"""What is read of the machines beneath the job, the newest reading of each thing.

Readings of one rank (its limits, its cgroup) are in `RankState`, networks in `NetworkState`.
"""

from __future__ import annotations

from diag.model.observations import DiskSpace, GpuHealth, GpuSample, HostMemory, MemoryEstimated, NpuSample
from diag.state.reducer import Reducer, takes


class Machine(Reducer):
    """Owns the newest readings."""

    def __init__(self) -> None:
        self.host_memory: HostMemory | None = None
        self.gpus: dict[int, tuple[float, GpuSample]] = {}  # by index, with when it was read
        self.gpu_health: dict[int, tuple[float, GpuHealth]] = {}  # by index: ECC, row remapping, links
        self.npus: dict[int, tuple[float, NpuSample]] = {}  # by chip
        self.disks: dict[str, tuple[float, DiskSpace]] = {}  # by path
        self.memory_estimate: MemoryEstimated | None = None  # what the command's arguments say it needs

    @takes(HostMemory)
    def _host_memory(self, at: float, fact: HostMemory) -> None:
        self.host_memory = fact

    @takes(GpuSample)
    def _gpu(self, at: float, fact: GpuSample) -> None:
        self.gpus[fact.index] = (at, fact)

    @takes(GpuHealth)
    def _gpu_health(self, at: float, fact: GpuHealth) -> None:
        self.gpu_health[fact.index] = (at, fact)

    @takes(NpuSample)
    def _npu(self, at: float, fact: NpuSample) -> None:
        self.npus[fact.index] = (at, fact)

    @takes(DiskSpace)
    def _disk(self, at: float, fact: DiskSpace) -> None:
        self.disks[fact.path] = (at, fact)

    @takes(MemoryEstimated)
    def _estimate(self, at: float, fact: MemoryEstimated) -> None:
        self.memory_estimate = fact
