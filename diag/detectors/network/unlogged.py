"""Whether ranks use RDMA, found without a line of NCCL: open devices, active ports, and over which wires the
bytes go."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model import Evidence
from diag.model.observations import GpuSample, NcclVersion
from diag.state.rank_view import RankView
from diag.state.traffic import Traffic, recent
from diag.state.view import JobView
from diag.text.units import format_rate, format_seconds

# Bytes are summed over a minute: a batch of data or a save over the network takes less of it than every
# step's gradients.
_WINDOW_SECONDS = 60.0
_SHORTEST_SECONDS = 30.0
# What leaves the node a second before it is called training traffic: logging, NFS metadata and health checks
# stay below.
_TRAFFIC_BYTES_PER_SECOND = 5e6
# RDMA carries less than this share of it: then it does not carry the training.
_RDMA_SHARE = 0.1
# A packet of RDMA carries 1 to 4 KiB: what of it would be training traffic, where a driver counts packets
# only (soft-RoCE).
_PACKET_BYTES = 1024
_MOST_PIDS = 4096  # that GPUs showed: processes of all attempts, and of other jobs
_TRAINING = ("first_step", "steady", "training", "eval", "ckpt_save")


@dataclass(frozen=True, slots=True)
class UnloggedFallback:
    """`sure`: closed devices and bytes on the wire agree."""

    ranks: tuple[int, ...]
    since: float
    text: str
    sure: bool
    evidence: tuple[Evidence, ...]


class Unlogged:
    """Knows which processes hold GPUs; all else is the job state's."""

    def __init__(self) -> None:
        self._gpu_pids: dict[int, None] = {}  # the newest last
        self._nccl = False

    def observe(self, at: float, fact: GpuSample | NcclVersion) -> None:
        if isinstance(fact, GpuSample):
            for pid in fact.pids:
                self._gpu_pids.pop(pid, None)
                self._gpu_pids[pid] = None
            while len(self._gpu_pids) > _MOST_PIDS:
                del self._gpu_pids[next(iter(self._gpu_pids))]
        else:
            self._nccl = True

    def verdict(self, now: float, job: JobView) -> UnloggedFallback | None:
        """None while it is not known, or RDMA is in use."""
        ports = job.network.active_ports()
        if not ports or not several_nodes(job) or job.phase not in _TRAINING or not self._has_gpus(job):
            return None
        alive = job.alive_ranks()
        access = {rank.rank: rank.rdma for rank in alive if rank.rdma is not None}
        nodes = [one.open_nodes for one in access.values()]
        if any(nodes):
            return None  # a rank holds an RDMA device: NCCL closes those that it does not use
        closed = bool(nodes) and len(nodes) == len(alive) and all(one == () for one in nodes)
        traffic = recent(job.network, now - _WINDOW_SECONDS)
        if not _speaks_for_sockets(job, traffic, closed=closed):
            return None
        active = ", ".join(f"{port.device}:{port.port} ACTIVE" for port in ports[:8])
        evidence = [Evidence("infiniband", active, now)]
        parts = []
        if closed:
            parts.append("none of their processes holds an RDMA device open")
            for rank, one in list(access.items())[:2]:
                none = f"pid {one.pid}: no /dev/infiniband/uverbs* among its open files"
                evidence.append(Evidence("rdma_access", none, now, rank))
        flows = _flows(traffic)
        if flows and traffic is not None:
            share = f", {format_rate(traffic.rdma_sent)} over RDMA" if traffic.rdma_sent is not None else ""
            parts.append(f"{format_rate(traffic.socket_sent or 0.0)} leave this node over sockets{share}")
            seconds = format_seconds(traffic.seconds)
            evidence.append(Evidence("interfaces", f"{parts[-1]} (over {seconds})", now))
        ranks = tuple(rank.rank for rank in alive)
        return UnloggedFallback(ranks, now, " and ".join(parts), closed and flows, tuple(evidence))

    def _has_gpus(self, job: JobView) -> bool:
        """Without a GPU and NCCL gloo talks over sockets by design."""
        return self._nccl or any(rank.placement.pid in self._gpu_pids for rank in job.ranks.values())


def _speaks_for_sockets(job: JobView, traffic: Traffic | None, *, closed: bool) -> bool:
    flows, flat = _flows(traffic), _flat(traffic)
    if closed and flat is not False:
        return flows or (job.iteration is not None and job.iteration >= 1)
    return flows and bool(flat)


def one_node(job: JobView) -> bool:
    """Whether the job is known to run on one node: by the launcher, or as all its ranks are seen there."""
    places = [rank.placement for rank in job.ranks.values()]
    known = [place for place in places if place.launcher != "captured" and place.local_world_size]
    if known:
        return all(place.local_world_size == place.world_size for place in known)
    return job.nccl_processes.on_one_node()


def several_nodes(job: JobView) -> bool:
    """Whether the job runs on more than one node, by the launcher: more ranks in it than on this node."""
    return any(
        rank.placement.world_size > (rank.placement.local_world_size or rank.placement.world_size)
        or rank.placement.node_rank > 0
        or _slurm_nodes(rank) > 1
        for rank in job.ranks.values()
    )


def _slurm_nodes(rank: RankView) -> int:
    """srun gives its tasks the number of nodes of their step, not how many ranks are on this one."""
    count = rank.variables.get("SLURM_STEP_NUM_NODES", "") if rank.placement.launcher == "slurm" else ""
    return int(count) if count.isdecimal() and len(count) < 7 else 0


def _flows(traffic: Traffic | None) -> bool:
    """Sockets carry what only training moves."""
    return (
        traffic is not None
        and traffic.seconds >= _SHORTEST_SECONDS
        and (traffic.socket_sent or 0.0) >= _TRAFFIC_BYTES_PER_SECOND
    )


def _flat(traffic: Traffic | None) -> bool | None:
    """RDMA carries nothing meanwhile; None where it is not counted."""
    if traffic is None or traffic.socket_sent is None:
        return None
    sent = traffic.rdma_sent
    if sent is None and traffic.rdma_packets is not None:
        sent = traffic.rdma_packets * _PACKET_BYTES / 2  # both ways
    return None if sent is None else sent < max(_RDMA_SHARE * traffic.socket_sent, 1.0)
