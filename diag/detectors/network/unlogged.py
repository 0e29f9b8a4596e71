"""Whether ranks use RDMA, told without a word of NCCL: open devices, active ports, and over which wires the bytes go."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from diag.jobstate import JobState
from diag.model import Evidence
from diag.observations import GpuSample, InterfacesSeen, NcclVersion, Observation, RdmaPortsSeen

__all__ = ["Unlogged", "Verdict", "several_nodes"]

# Bytes are looked at over this long: a batch of data or a save over the network takes less of it than every step's gradients.
_WINDOW_SECONDS = 30.0
# What leaves the node a second before it is called training traffic: logging, NFS metadata and health checks stay below.
_TRAFFIC_BYTES_PER_SECOND = 5e6
# RDMA carries less than this share of it: then it does not carry the training.
_RDMA_SHARE = 0.1
_TRAINING = ("first_step", "steady", "training", "eval", "ckpt_save")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`sure`: closed devices and bytes on the wire tell the same."""

    ranks: tuple[int, ...]
    since: float
    said: str
    sure: bool
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class _Reading:
    emitted: float
    sent: int


class Unlogged:
    """Keeps a minute of byte counters, and which processes hold GPUs."""

    def __init__(self) -> None:
        self._ip: deque[_Reading] = deque(maxlen=64)
        self._rdma: deque[_Reading] = deque(maxlen=64)
        self._gpu_pids: set[int] = set()
        self._nccl = False

    def observe(self, at: float, fact: Observation) -> None:
        if isinstance(fact, InterfacesSeen):
            sent = sum(one.sent_bytes for one in fact.interfaces if one.carries and one.kind != "loopback")
            self._ip.append(_Reading(fact.emitted, sent))
        elif isinstance(fact, RdmaPortsSeen):
            counted = [dict(port.counters).get("port_xmit_data") for port in fact.ports if port.active]
            if counted and None not in counted:
                self._rdma.append(_Reading(fact.emitted, sum(value for value in counted if value is not None)))
        elif isinstance(fact, GpuSample):
            self._gpu_pids.update(fact.pids)
        elif isinstance(fact, NcclVersion):
            self._nccl = True

    def verdict(self, now: float, job: JobState) -> Verdict | None:
        """None while it cannot be told, or RDMA is in use."""
        ports = job.network.active_ports()
        if not ports or not several_nodes(job) or job.phase not in _TRAINING:
            return None
        if not (self._nccl or any(rank.placement.pid in self._gpu_pids for rank in job.ranks.values())):
            return None  # no GPU, no NCCL: gloo talks over sockets by design
        alive = [rank.rank for rank in job.alive_ranks()]
        access = {rank.rank: rank.rdma for rank in job.alive_ranks() if rank.rdma is not None}
        if any(one.open_nodes for one in access.values()):
            return None  # somebody holds an RDMA device: NCCL closes those that it does not use
        closed = bool(access) and len(access) == len(alive) and all(one.open_nodes == () for one in access.values())
        ip, rdma = _rate(self._ip), _rate(self._rdma)
        flows = ip is not None and ip[0] >= _TRAFFIC_BYTES_PER_SECOND
        flat = rdma is None or (ip is not None and rdma[0] < _RDMA_SHARE * ip[0])
        stepped = job.iteration is not None and job.iteration >= 1
        if not flat or not ((closed and (flows or stepped)) or (flows and rdma is not None)):
            return None
        evidence = [Evidence("infiniband", ", ".join(f"{port.device}:{port.port} ACTIVE" for port in ports[:8]), now)]
        words = []
        if closed:
            words.append("none of their processes holds an RDMA device open")
            evidence += [Evidence("rdma_access", f"pid {one.pid}: no /dev/infiniband/uverbs* among its open files", now, rank)
                         for rank, one in list(access.items())[:2]]
        if flows and ip is not None:
            share = f", {rdma[0] / 1e6:.1f} MB/s over RDMA" if rdma is not None else ""
            words.append(f"{ip[0] / 1e6:.0f} MB/s leave this node over Ethernet{share}")
            evidence.append(Evidence("interfaces", f"{words[-1]} (over {ip[1]:.0f} s)", now))
        return Verdict(tuple(alive), now, " and ".join(words), closed and flows, tuple(evidence))


def several_nodes(job: JobState) -> bool:
    """Whether the job runs on more than one node, as the launcher says: more ranks in it than on this node."""
    return any(rank.placement.world_size > (rank.placement.local_world_size or rank.placement.world_size)
               or rank.placement.node_rank > 0 for rank in job.ranks.values())


def _rate(readings: deque[_Reading]) -> tuple[float, float] | None:
    """Bytes a second over the window, and how long it was; None before it is full."""
    if len(readings) < 2:
        return None
    last = readings[-1]
    for first in reversed(readings):
        seconds = last.emitted - first.emitted
        if seconds >= _WINDOW_SECONDS:
            return max(0, last.sent - first.sent) / seconds, seconds
    return None
