"""What each process's NCCL said of itself and of the network, kept by process. Judges nothing.

Processes are keyed by the host and pid that NCCL writes: in a log of many nodes pids repeat. Which rank one is follows from
the line, the pid, or its number in the communicator of the world.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from diag.observations import (
    NcclBootstrap,
    NcclChannel,
    NcclCommunicator,
    NcclCompletionError,
    NcclDuplicateGpu,
    NcclEnvironment,
    NcclFact,
    NcclGpuDirect,
    NcclIbDevices,
    NcclInitTimings,
    NcclInterfaceMissing,
    NcclLibraryMissing,
    NcclLine,
    NcclNetChosen,
    NcclNetDiffers,
    NcclNetFailed,
    NcclPeerLost,
    NcclPlugin,
    NcclPortEvent,
    NcclResult,
    NcclRetry,
    NcclSockets,
    NcclVerbsError,
    NcclVersion,
    Observation,
    RankFound,
    VerbsDriverMissing,
)

__all__ = ["Communicator", "NcclProcess", "NcclProcesses"]

# NCCL 2.28.9, captured on 2 x H200, 2026-11-20 (2.18: "Connected all rings" alone):
#   gpu-node-0:626:626 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 0
_CONNECTED = "Connected all "
# A job of a node has some hundred communicators a process; what is beyond is no log of NCCL.
_MOST_PROCESSES = 1 << 17
_MOST_COMMUNICATORS = 4096
_MOST_ERRORS = 16
_MOST_LINES = 256  # that stand as evidence, with their times


@dataclass(slots=True)
class Communicator:
    """One that a process is a member of. `net` is what it chose between nodes, `nodes` how many it spans (None: not told)."""

    comm_id: str
    rank: int
    size: int
    net: str = ""
    nodes: int | None = None
    made: bool = False
    bus_id: str = ""  # of this member's GPU, on PCI


@dataclass(slots=True)
class NcclProcess:
    """What one process's NCCL said. Of repeated lines the first is kept, and of errors the first sixteen."""

    host: str
    pid: int
    rank: int | None = None  # as the log's line or file tells
    version: tuple[int, ...] = ()
    talks: bool = False  # NCCL_DEBUG was INFO: what is not said did not happen
    environment: dict[str, NcclEnvironment] = field(default_factory=dict)
    chosen: dict[str, NcclNetChosen] = field(default_factory=dict)  # net -> first line
    failed: list[NcclNetFailed] = field(default_factory=list)
    devices: NcclIbDevices | None = None
    sockets: NcclSockets | None = None
    bootstrap: NcclBootstrap | None = None
    missing: dict[str, NcclLibraryMissing] = field(default_factory=dict)
    no_interface: list[NcclInterfaceMissing] = field(default_factory=list)
    plugins: list[NcclPlugin] = field(default_factory=list)
    channels: Counter[tuple[str, bool]] = field(default_factory=Counter)  # (net, GPU direct) -> connections between nodes
    first_channel: dict[str, NcclChannel] = field(default_factory=dict)
    gpu_direct_off: NcclGpuDirect | None = None
    communicators: dict[str, Communicator] = field(default_factory=dict)
    verbs: list[tuple[float, NcclVerbsError]] = field(default_factory=list)
    completions: list[tuple[float, NcclCompletionError]] = field(default_factory=list)
    lost: list[tuple[float, NcclPeerLost]] = field(default_factory=list)
    results: list[tuple[float, NcclResult]] = field(default_factory=list)
    differs: list[NcclNetDiffers] = field(default_factory=list)
    retries: dict[str, tuple[float, NcclRetry]] = field(default_factory=dict)  # call -> when it began, the last attempt
    events: list[tuple[float, NcclPortEvent]] = field(default_factory=list)
    connected: bool = False  # a communicator of it has its connections: NCCL is set up
    duplicates: list[NcclDuplicateGpu] = field(default_factory=list)
    warnings_total: int = 0
    init_seconds: float = 0.0  # of all its communicators together
    told: dict[NcclLine, float] = field(default_factory=dict)  # when, for the lines that facts came from
    warnings: deque[tuple[float, NcclLine]] = field(default_factory=lambda: deque(maxlen=_MOST_ERRORS))
    _last_net: dict[int, str] = field(default_factory=dict)  # thread -> the net chosen last: a communicator's own comes before it

    @property
    def node(self) -> str:
        """The node that NCCL takes this process to be on."""
        told = self.environment.get("NCCL_HOSTID")
        return told.value if told is not None else self.host

    @property
    def nodes(self) -> int | None:
        """How many nodes its widest communicator spans; None where NCCL does not say (before 2.20, or not made yet)."""
        return max((comm.nodes for comm in self.communicators.values() if comm.nodes is not None), default=None)

    def nets_between_nodes(self) -> set[str]:
        """The networks of its communicators that span nodes; of connections where NCCL does not tell the nodes."""
        nets = {comm.net for comm in self.communicators.values() if comm.net and (comm.nodes or 0) > 1}
        return nets or ({net for net, _ in self.channels} if self.nodes is None else set())


@dataclass(slots=True)
class NcclProcesses:
    """All of them, and what libibverbs itself said beside them."""

    by_pid: dict[tuple[str, int], NcclProcess] = field(default_factory=dict)  # (host, pid)
    drivers_missing: dict[int | None, list[VerbsDriverMissing]] = field(default_factory=dict)  # by rank, where a line tells it
    _rank_pids: dict[int, int] = field(default_factory=dict)  # pid -> rank, as the job's own processes have them

    # -- reading ------------------------------------------------------------------------------------------

    def placed(self) -> dict[int, NcclProcess]:
        """Processes by their rank in the job. Those of which nothing tells the rank are left out; of two, the later one."""
        world = self.world_size()
        one_host = len({process.host for process in self.by_pid.values()}) == 1
        ranks: dict[int, NcclProcess] = {}
        for process in self.by_pid.values():
            rank = process.rank
            if rank is None and one_host:
                rank = self._rank_pids.get(process.pid)
            if rank is None:
                rank = next((comm.rank for comm in process.communicators.values() if comm.size == world), None)
            if rank is not None:
                ranks[rank] = process
        return ranks

    def world_size(self) -> int:
        """Of the widest communicator that NCCL told."""
        return max((comm.size for process in self.by_pid.values() for comm in process.communicators.values()), default=0)

    def hosts(self) -> set[str]:
        return {process.node for process in self.by_pid.values()}

    def on_one_node(self) -> bool:
        """All members of the world are seen, and on one node, whatever NCCL says of nodes: with P2P and shared memory
        switched off it counts each rank of a machine as one (2.28.9, captured)."""
        world = self.world_size()
        return len(self.hosts()) == 1 and 0 < world <= len(self.placed())

    # -- being told ---------------------------------------------------------------------------------------

    def observe(self, at: float, fact: Observation) -> None:
        handler = _HANDLERS.get(type(fact))
        if handler is not None:
            handler(self, at, fact)
        elif isinstance(fact, NcclFact):
            keep = _KEEP.get(type(fact))
            process = self._process(fact.line)
            if keep is not None and process is not None:
                keep(process, at, fact)
                if type(fact) not in _UNTIMED and len(process.told) < _MOST_LINES:
                    process.told.setdefault(fact.line, at)

    def _process(self, line: NcclLine) -> NcclProcess | None:
        key = (line.host, line.pid)
        process = self.by_pid.get(key)
        if process is None and not line.host:  # `NCCL version ...` has no head below 2.24 or at level VERSION
            told = [other for other in self.by_pid.values() if line.rank is not None and other.rank == line.rank]
            return told[-1] if told else None
        if process is None:
            if len(self.by_pid) >= _MOST_PROCESSES:
                return None
            process = self.by_pid[key] = NcclProcess(*key)
        if line.rank is not None and process.rank is None:
            process.rank = line.rank
        return process

    def _line(self, at: float, fact: NcclLine) -> None:
        if fact.level == "WARN":
            process = self._process(fact)
            if process is not None:
                process.warnings.append((at, fact))
                process.warnings_total += 1
        elif fact.level == "INFO":
            process = self.by_pid.get((fact.host, fact.pid)) or self._process(fact)
            if process is not None:
                process.talks = True
                if fact.text.startswith(_CONNECTED):
                    process.connected = True
                    process.retries.clear()

    def _rank_found(self, at: float, fact: RankFound) -> None:
        place = fact.placement
        self._rank_pids = {pid: rank for pid, rank in self._rank_pids.items() if rank != place.rank}
        self._rank_pids[place.pid] = place.rank

    def _driver(self, at: float, fact: VerbsDriverMissing) -> None:
        known = self.drivers_missing.setdefault(fact.rank, [])
        if len(known) < _MOST_ERRORS:
            known.append(fact)


# --- what a process keeps of a line --------------------------------------------------------------------------


def _version(process: NcclProcess, at: float, fact: NcclVersion) -> None:
    process.version = tuple(int(part) for part in fact.version.split(".")[:3] if part.isdecimal())


def _variable(process: NcclProcess, at: float, fact: NcclEnvironment) -> None:
    if len(process.environment) < 1000:
        process.environment.setdefault(fact.name, fact)


def _chosen(process: NcclProcess, at: float, fact: NcclNetChosen) -> None:
    if len(process.chosen) < _MOST_ERRORS:
        process.chosen.setdefault(fact.net, fact)
    if len(process._last_net) < _MOST_COMMUNICATORS:
        process._last_net[fact.line.tid] = fact.net


def _communicator(process: NcclProcess, at: float, fact: NcclCommunicator) -> None:
    if fact.stage in ("destroyed", "aborted"):
        known = process.communicators.get(fact.comm)
        if known is not None and known.nodes is None:
            known.made = True  # its nets stay known: a job that has ended was on what it was on
        return
    known = process.communicators.get(fact.comm)
    if known is None or (fact.stage == "start" and known.made):  # an address that is used again
        if len(process.communicators) >= _MOST_COMMUNICATORS:
            return
        net = process._last_net.get(fact.line.tid, "")
        if not net and len(process.chosen) == 1:
            net = next(iter(process.chosen))
        kept = replace(known, made=False) if known is not None else None
        known = process.communicators[fact.comm] = Communicator(fact.comm_id, fact.comm_rank, fact.size, net)
        if kept is not None and (kept.nodes or 0) > 1:
            process.communicators[f"{fact.comm} {kept.comm_id}"] = replace(kept, made=True)
    known.comm_id = known.comm_id or fact.comm_id
    known.bus_id = known.bus_id or fact.bus_id
    known.net = known.net or process._last_net.get(fact.line.tid, "")
    if fact.nodes is not None:
        known.nodes = fact.nodes
    if fact.stage == "complete":
        known.made = True


def _channel(process: NcclProcess, at: float, fact: NcclChannel) -> None:
    process.channels[fact.net, fact.gpu_direct] += 1
    if fact.net in process.first_channel:
        return
    process.first_channel[fact.net] = fact
    process.told.setdefault(fact.line, at)


def _devices(process: NcclProcess, at: float, fact: NcclIbDevices) -> None:
    if process.devices is None or (fact.devices and not process.devices.devices) or (
            fact.interface and not process.devices.interface and not process.devices.devices):
        process.devices = fact


def _gpu_direct(process: NcclProcess, at: float, fact: NcclGpuDirect) -> None:
    if not fact.enabled and process.gpu_direct_off is None:
        process.gpu_direct_off = fact


def _retry(process: NcclProcess, at: float, fact: NcclRetry) -> None:
    began = process.retries[fact.call][0] if fact.call in process.retries and fact.attempt > 1 else at
    process.retries[fact.call] = (began, fact)


def _timings(process: NcclProcess, at: float, fact: NcclInitTimings) -> None:
    process.init_seconds += fact.total_seconds


def _first(name: str) -> Callable[[NcclProcess, float, Any], None]:
    def keep(process: NcclProcess, at: float, fact: Any) -> None:
        if getattr(process, name) is None:
            setattr(process, name, fact)

    return keep


def _each(name: str, *, timed: bool = False) -> Callable[[NcclProcess, float, Any], None]:
    def keep(process: NcclProcess, at: float, fact: Any) -> None:
        kept = getattr(process, name)
        if len(kept) < _MOST_ERRORS:
            kept.append((at, fact) if timed else fact)

    return keep


def _library(process: NcclProcess, at: float, fact: NcclLibraryMissing) -> None:
    process.missing.setdefault(fact.library, fact)


_KEEP: dict[type[Observation], Callable[[NcclProcess, float, Any], None]] = {
    NcclVersion: _version,
    NcclEnvironment: _variable,
    NcclNetChosen: _chosen,
    NcclNetDiffers: _each("differs"),
    NcclNetFailed: _each("failed"),
    NcclPortEvent: _each("events", timed=True),
    NcclRetry: _retry,
    NcclIbDevices: _devices,
    NcclSockets: _first("sockets"),
    NcclBootstrap: _first("bootstrap"),
    NcclLibraryMissing: _library,
    NcclInterfaceMissing: _each("no_interface"),
    NcclPlugin: _each("plugins"),
    NcclChannel: _channel,
    NcclCommunicator: _communicator,
    NcclGpuDirect: _gpu_direct,
    NcclInitTimings: _timings,
    NcclVerbsError: _each("verbs", timed=True),
    NcclCompletionError: _each("completions", timed=True),
    NcclPeerLost: _each("lost", timed=True),
    NcclResult: _each("results", timed=True),
    NcclDuplicateGpu: _each("duplicates"),
}

# Many of each, and none is shown as evidence by its line alone.
_UNTIMED = frozenset({NcclChannel, NcclCommunicator, NcclInitTimings, NcclResult, NcclRetry, NcclPortEvent})

_HANDLERS: dict[type[Observation], Callable[[NcclProcesses, float, Any], None]] = {
    NcclLine: NcclProcesses._line,
    VerbsDriverMissing: NcclProcesses._driver,
    RankFound: NcclProcesses._rank_found,
}
