"""What is read of the machines beneath the job: limits, memory, GPUs, networks, disks and checkpoints. Judges
nothing.

`JobState` adds processes and stacks; only the methods below write what they own, and what of a rank is read
here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diag.model.observations import (
    CgroupMemory,
    CgroupPids,
    CheckpointsSeen,
    CudaErrorRaised,
    CudaOutOfMemory,
    DiskSpace,
    EnvironmentSeen,
    GpuHealth,
    GpuSample,
    HostMemory,
    InterfacesSeen,
    LimitsSeen,
    MemoryEstimated,
    NetworkExpected,
    Observation,
    RdmaAccess,
    RdmaPortsSeen,
    SharedMemory,
    SxidReported,
    XidReported,
)
from diag.state.gpufaults import GpuFaults
from diag.state.network import NetworkState
from diag.state.progress import PROGRESS_HANDLERS, Progress
from diag.state.rank import RankState
from diag.state.save_memory import SaveMemory

__all__ = ["MACHINE_HANDLERS", "Machine"]


class Machine(Progress):
    """The base of `JobState`: readings that come once in a while, the newest of each."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks: dict[int, RankState] = {}
        self.host_memory: HostMemory | None = None
        self.gpus: dict[int, tuple[float, GpuSample]] = {}
        self.gpu_health: dict[int, tuple[float, GpuHealth]] = {}
        self.gpu_faults = GpuFaults()
        self.checkpoints: dict[str, CheckpointsSeen] = {}  # by the save folder
        self.save_moved_at: float | None = None  # when files of a checkpoint last came or grew during a save
        self.disks: dict[str, tuple[float, DiskSpace]] = {}  # by path
        self.memory_estimate: MemoryEstimated | None = None
        self.save_memory = SaveMemory()
        self.network = NetworkState()

    def rank_of_pid(self, pid: int) -> int | None:
        for rank in self.ranks.values():
            if rank.placement.pid == pid:
                return rank.rank
            if rank.tree and any(child.pid == pid for child in rank.tree.children):
                return rank.rank
        return None

    def _told_of(self, fact: Observation) -> RankState | None:
        return self.ranks.get(fact.rank) if fact.rank is not None else None

    def _limits(self, at: float, fact: LimitsSeen) -> None:
        if fact.rank in self.ranks:
            self.ranks[fact.rank].limits = fact

    def _rdma_access(self, at: float, fact: RdmaAccess) -> None:
        rank = self._told_of(fact)
        if rank is not None and rank.placement.pid == fact.pid:
            rank.rdma, rank.rdma_at = fact, at

    def _environment(self, at: float, fact: EnvironmentSeen) -> None:
        rank = self._told_of(fact)
        if rank is not None and rank.placement.pid == fact.pid:
            rank.variables = dict(fact.variables)

    def _network(self, at: float, fact: RdmaPortsSeen | InterfacesSeen | NetworkExpected) -> None:
        self.network.observe(at, fact)

    def _cgroup(self, at: float, fact: CgroupMemory) -> None:
        for rank in self._addressed(fact.rank):
            rank.cgroup = fact
        self.save_memory.cgroup(at, fact, self)

    def _shm(self, at: float, fact: SharedMemory) -> None:
        for rank in self._addressed(fact.rank):
            rank.shm = fact

    def _addressed(self, rank: int | None) -> list[RankState]:
        if rank is None:
            return list(self.ranks.values())
        return [self.ranks[rank]] if rank in self.ranks else []

    def _host_memory(self, at: float, fact: HostMemory) -> None:
        self.host_memory = fact
        self.save_memory.host(at, fact, self)

    def _gpu(self, at: float, fact: GpuSample) -> None:
        self.gpus[fact.index] = (at, fact)
        users = [fact.rank] if fact.rank is not None else [self.rank_of_pid(pid) for pid in fact.pids]
        for user in users:
            if user is not None and user in self.ranks:
                self.ranks[user].gpu_index = fact.index

    def _gpu_fault(
        self, at: float, fact: XidReported | SxidReported | CudaOutOfMemory | CudaErrorRaised
    ) -> None:
        self.gpu_faults.observe(at, fact)

    def _gpu_health(self, at: float, fact: GpuHealth) -> None:
        self.gpu_health[fact.index] = (at, fact)

    def _checkpoints(self, at: float, fact: CheckpointsSeen) -> None:
        """Growth counts as progress while a save is under way: on a network file system only the folder tells
        of it."""
        if fact.role != "save":
            return
        before = self.checkpoints.get(fact.root)
        self.checkpoints[fact.root] = fact
        newest = max(fact.folders, key=lambda folder: folder.changed_at, default=None)
        grew = newest is not None and self.save_log.grew(at, newest.size_bytes)
        if self.phase == "ckpt_save" and (grew or (before is not None and before.folders != fact.folders)):
            self.save_moved_at = at

    def _disk(self, at: float, fact: DiskSpace) -> None:
        self.disks[fact.path] = (at, fact)

    def _estimate(self, at: float, fact: MemoryEstimated) -> None:
        self.memory_estimate = fact

    def _pids(self, at: float, fact: CgroupPids) -> None:
        for rank in self._addressed(fact.rank):
            rank.pids = fact


MACHINE_HANDLERS: dict[type[Observation], Callable[[Any, float, Any], None]] = {
    **PROGRESS_HANDLERS,
    LimitsSeen: Machine._limits,
    RdmaAccess: Machine._rdma_access,
    RdmaPortsSeen: Machine._network,
    InterfacesSeen: Machine._network,
    NetworkExpected: Machine._network,
    EnvironmentSeen: Machine._environment,
    CgroupMemory: Machine._cgroup,
    SharedMemory: Machine._shm,
    HostMemory: Machine._host_memory,
    GpuSample: Machine._gpu,
    GpuHealth: Machine._gpu_health,
    XidReported: Machine._gpu_fault,
    SxidReported: Machine._gpu_fault,
    CudaOutOfMemory: Machine._gpu_fault,
    CudaErrorRaised: Machine._gpu_fault,
    CheckpointsSeen: Machine._checkpoints,
    DiskSpace: Machine._disk,
    MemoryEstimated: Machine._estimate,
    CgroupPids: Machine._pids,
}
