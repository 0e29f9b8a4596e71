"""What one process's NCCL reported of itself and of the network. All of them are in `ncclprocesses`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from diag.model.observations import (
    NcclBootstrap,
    NcclChannel,
    NcclCommunicator,
    NcclCompletionError,
    NcclDuplicateGpu,
    NcclEnvironment,
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
)

# A job of a node has some hundred communicators a process; what is beyond is no log of NCCL.
_MOST_COMMUNICATORS = 4096
_MANY_COMMUNICATORS = 256  # beyond, those that are over are forgotten
_MOST_ERRORS = 16


@dataclass(slots=True)
class Communicator:
    """One that a process is a member of. `net` is what it chose between nodes, `nodes` how many it spans
    (None: not known)."""

    comm_id: str
    rank: int
    size: int
    net: str = ""
    nodes: int | None = None
    made: bool = False
    began: tuple[float, NcclLine] | None = None  # while it is being made
    bus_id: str = ""  # of this member's GPU, on PCI
    nvlink: bool = (
        False  # its nodes reach each other over NVLink: the network carries only what a channel says
    )


@dataclass(slots=True)
class NcclProcess:
    """What one process's NCCL reported. Of repeated lines the first is kept, and of errors the first sixteen."""

    host: str
    pid: int
    rank: int | None = None  # as the log's line or file shows
    version: tuple[int, ...] = ()
    talks: bool = False  # NCCL_DEBUG was INFO: what is not logged did not happen
    environment: dict[str, NcclEnvironment] = field(default_factory=dict)
    chosen: dict[str, NcclNetChosen] = field(default_factory=dict)  # net -> first line
    failed: list[NcclNetFailed] = field(default_factory=list)
    devices: NcclIbDevices | None = None
    sockets: NcclSockets | None = None
    bootstrap: NcclBootstrap | None = None
    missing: dict[str, NcclLibraryMissing] = field(default_factory=dict)
    no_interface: list[NcclInterfaceMissing] = field(default_factory=list)
    plugins: list[NcclPlugin] = field(default_factory=list)
    # (net, GPU direct) -> connections between nodes
    channels: Counter[tuple[str, bool]] = field(default_factory=Counter)
    first_channel: dict[str, NcclChannel] = field(default_factory=dict)
    gpu_direct_off: NcclGpuDirect | None = None
    communicators: dict[str, Communicator] = field(default_factory=dict)
    verbs: list[tuple[float, NcclVerbsError]] = field(default_factory=list)
    completions: list[tuple[float, NcclCompletionError]] = field(default_factory=list)
    lost: list[tuple[float, NcclPeerLost]] = field(default_factory=list)
    results: list[tuple[float, NcclResult]] = field(default_factory=list)
    differs: list[NcclNetDiffers] = field(default_factory=list)
    # call -> when it began, the last attempt
    retries: dict[str, tuple[float, NcclRetry]] = field(default_factory=dict)
    events: list[tuple[float, NcclPortEvent]] = field(default_factory=list)
    connected: bool = False  # a communicator of it has its connections: NCCL is set up
    # of communicators between nodes that are over and forgotten
    past_nets: set[str] = field(default_factory=set)
    duplicates: list[NcclDuplicateGpu] = field(default_factory=list)
    warnings_total: int = 0
    init_seconds: float = 0.0  # of all its communicators together
    told: dict[NcclLine, float] = field(default_factory=dict)  # when, for the lines that facts came from
    warnings: deque[tuple[float, NcclLine]] = field(default_factory=lambda: deque(maxlen=_MOST_ERRORS))
    # thread -> the net chosen last: a communicator's own comes before it
    _last_net: dict[int, str] = field(default_factory=dict)

    @property
    def node(self) -> str:
        """The node that NCCL takes this process to be on."""
        given = self.environment.get("NCCL_HOSTID")
        return given.value if given is not None else self.host

    @property
    def nodes(self) -> int | None:
        """How many nodes its widest communicator spans; None where NCCL does not say (before 2.20, or not
        made yet)."""
        return max(
            (comm.nodes for comm in self.communicators.values() if comm.nodes is not None), default=None
        )

    def nets_between_nodes(self) -> set[str]:
        """The networks of its communicators that span nodes; of connections where NCCL does not tell the
        nodes."""
        carried = {net for net, _ in self.channels}
        nets = self.past_nets | {
            comm.net
            for comm in self.communicators.values()
            if comm.net and (comm.nodes or 0) > 1 and (not comm.nvlink or comm.net in carried)
        }
        return nets or (carried if self.nodes is None else set())


# --- what a process keeps of a line


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
    known = process.communicators.get(fact.comm)
    if fact.stage in ("destroyed", "aborted"):
        if known is not None and len(process.communicators) > _MANY_COMMUNICATORS:
            _forget(process, fact.comm)
        elif known is not None:
            known.made, known.began = True, None  # it stays known: a job that has ended was on what it was on
        return
    if known is not None and fact.stage == "start" and known.made:  # an address that is used again
        _forget(process, fact.comm)
        known = None
    if known is None:
        if len(process.communicators) >= _MOST_COMMUNICATORS:
            return
        net = process._last_net.get(fact.line.tid, "")
        if not net and len(process.chosen) == 1:
            net = next(iter(process.chosen))
        known = process.communicators[fact.comm] = Communicator(fact.comm_id, fact.comm_rank, fact.size, net)
    known.comm_id = known.comm_id or fact.comm_id
    known.bus_id = known.bus_id or fact.bus_id
    known.net = known.net or process._last_net.get(fact.line.tid, "")
    if fact.nodes is not None:
        known.nodes, known.nvlink = fact.nodes, fact.nvlink
    if fact.stage == "start":
        known.began = known.began or (at, fact.line)
    elif fact.stage == "complete":
        known.made, known.began = True, None
        process.results.clear()  # what it warned of while this one was made, it came over
        process.warnings.clear()


def _forget(process: NcclProcess, address: str) -> None:
    gone = process.communicators.pop(address)
    if gone.net and (gone.nodes or 0) > 1 and not gone.nvlink and len(process.past_nets) < _MOST_ERRORS:
        process.past_nets.add(gone.net)


def _channel(process: NcclProcess, at: float, fact: NcclChannel) -> None:
    if fact.net not in process.first_channel:
        if len(process.first_channel) >= _MOST_ERRORS:
            return
        process.first_channel[fact.net] = fact
        process.told.setdefault(fact.line, at)
    process.channels[fact.net, fact.gpu_direct] += 1


def _devices(process: NcclProcess, at: float, fact: NcclIbDevices) -> None:
    """The line that says most: devices, then the interface."""
    known = process.devices
    if known is None or (not known.devices and (fact.devices or (fact.interface and not known.interface))):
        process.devices = fact


def _gpu_direct(process: NcclProcess, at: float, fact: NcclGpuDirect) -> None:
    if not fact.enabled:
        process.gpu_direct_off = process.gpu_direct_off or fact


def _retry(process: NcclProcess, at: float, fact: NcclRetry) -> None:
    if fact.call not in process.retries and len(process.retries) >= _MOST_ERRORS:
        return
    began = process.retries[fact.call][0] if fact.call in process.retries and fact.attempt > 1 else at
    process.retries[fact.call] = (began, fact)


def _timings(process: NcclProcess, at: float, fact: NcclInitTimings) -> None:
    process.init_seconds += fact.total_seconds


def _library(process: NcclProcess, at: float, fact: NcclLibraryMissing) -> None:
    process.missing.setdefault(fact.library, fact)


def _first(name: str) -> Callable[[NcclProcess, float, Any], None]:
    return lambda process, at, fact: setattr(process, name, getattr(process, name) or fact)


def _each(name: str, *, timed: bool = False) -> Callable[[NcclProcess, float, Any], None]:
    def keep(process: NcclProcess, at: float, fact: Any) -> None:
        kept = getattr(process, name)
        if len(kept) < _MOST_ERRORS:
            kept.append((at, fact) if timed else fact)

    return keep


KEEP: dict[type[Observation], Callable[[NcclProcess, float, Any], None]] = {
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
UNTIMED = frozenset({NcclChannel, NcclCommunicator, NcclInitTimings, NcclResult, NcclRetry, NcclPortEvent})
