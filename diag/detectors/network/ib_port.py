"""An RDMA port that the job needs is not active, or went down while it ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diag.detectors.contract import Detector
from diag.detectors.findings import finding
from diag.detectors.network.causes import format_port
from diag.detectors.network.unlogged import one_node
from diag.knowledge.nccl_filters import matches
from diag.model import Confidence, Evidence, Finding, Severity
from diag.model.observations import NcclPortEvent, RdmaPort
from diag.state.view import JobView
from diag.text.units import format_count, format_ranks, format_seconds

# gpud's rule for a flapping port (components/accelerator/nvidia/infiniband): three times down.
_FLAPS = 3


_MOST_SPOTS = 1000
_Spot = tuple[str, str, int | None]  # host, device, port


@dataclass(slots=True)
class _Seen:
    """What NCCL reported to one process of a port."""

    at: float
    event: NcclPortEvent
    down: bool = True
    downs: int = 1


class IbPortDetector(Detector):
    name = "ib-port"
    listens = (NcclPortEvent,)

    def __init__(self) -> None:
        self._spots: dict[_Spot, dict[int, _Seen]] = {}

    def observe(self, at: float, fact: NcclPortEvent) -> None:
        if fact.event not in ("port error", "port active"):
            return
        spot = (fact.line.host, fact.device, fact.port)
        down = fact.event == "port error"
        if spot not in self._spots and (not down or len(self._spots) >= _MOST_SPOTS):
            return
        seen = self._spots.setdefault(spot, {})
        one = seen.get(fact.line.pid)
        if one is None:
            if down and len(seen) < _MOST_SPOTS:
                seen[fact.line.pid] = _Seen(at, fact)
        elif down and not one.down:
            one.down, one.downs = True, one.downs + 1
        elif not down:
            one.down = False

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        reported: set[tuple[str, int | None]] = set()
        for port in job.network.rdma_ports() or ():
            state = _state_of(job, port, now)
            if state is not None:
                reported.add((port.device, port.port))
                yield self._finding(job, port, state)
        by_host: dict[str, list[int]] = {}
        if self._spots:
            for rank, process in job.nccl_processes.placed().items():
                by_host.setdefault(process.host, []).append(rank)
        for (host, device, number), seen in self._spots.items():
            if (device, number) not in reported and seen:
                yield _of_events(job, list(seen.values()), tuple(sorted(by_host.get(host, ()))))

    def _finding(self, job: JobView, port: RdmaPort, state: _State) -> Finding:
        last = job.network.ports.last
        events = self._events(port) if state.cause == "went_down" else []
        return finding(
            self.name,
            state.cause,
            subject=f"port {port.device}:{port.port}",
            severity=state.severity,
            confidence=Confidence.HIGH if events else None,
            ranks=_users(job),
            since=state.since,
            summary=f"RDMA port {port.device}:{port.port} {state.text}",
            words={"leave_out": _leave_out(job, port.device)},
            evidence=(
                Evidence("infiniband", format_port(port), last[0] if last else state.since),
                *(_evidence(one) for one in events[:3]),
            ),
        )

    def _events(self, port: RdmaPort) -> list[_Seen]:
        return [
            one
            for (_, device, number), seen in self._spots.items()
            if (device, number) == (port.device, port.port)
            for one in seen.values()
            if one.down
        ]


@dataclass(frozen=True, slots=True)
class _State:
    """What is wrong with a port of this node."""

    severity: Severity
    cause: str
    since: float
    text: str


def _state_of(job: JobView, port: RdmaPort, now: float) -> _State | None:
    key = (port.device, port.port)
    matters = _matters(job, port)
    if key in job.network.down_since:
        at = job.network.down_since[key]
        times = f", for the {_nth(job.network.downs[key])} time" if job.network.downs[key] > 1 else ""
        text = f"went down {format_seconds(now - at)} ago{times}: {format_port(port)}"
        return _State(Severity.CRITICAL if matters else Severity.INFO, "went_down", at, text)
    count = max(job.network.downs[key], _counted_downs(job, port))
    if count:
        severity, cause = _flapping(count)
        text = f"went down {format_count(count, 'time')} in this run and is up again"
        since = job.network.was_active.get(key, now)
        return _State(severity if matters else Severity.INFO, cause, since, text)
    return _down_or_slow(job, port, now)


def _down_or_slow(job: JobView, port: RdmaPort, now: float) -> _State | None:
    """Of a port that did not go down in this run."""
    wanted = _named(job, port)
    if not port.active and port.state is not None and wanted:
        init = port.state == 2 and port.link_layer == "InfiniBand"
        waits = ": INIT, no subnet manager has configured it" if init else ""
        text = f"is not active ({format_port(port)}{waits}) though NCCL_IB_HCA={wanted} names it"
        return _State(Severity.WARNING, "down", now, text)
    alike = [one for one in job.network.rdma_ports() or () if one.active and _family(one) == _family(port)]
    best = max((one.rate_bytes_per_second or 0.0 for one in alike), default=0.0)
    rate = port.rate_bytes_per_second
    if port.active and rate and rate < best and _selected(job, port):
        text = f"runs at {rate * 8 / 1e9:.0f} Gb/s, its like at {best * 8 / 1e9:.0f} Gb/s"
        return _State(Severity.INFO, "slow_rate", now, text)
    return None


def _of_events(job: JobView, seen: list[_Seen], ranks: tuple[int, ...]) -> Finding:
    """The port is on a node that diag does not see: NCCL's lines about it are all there is."""
    event = seen[0].event
    name = (event.device or "?") + (f":{event.port}" if event.port is not None else "")
    severity, cause, what = Severity.CRITICAL, "went_down", "went down"
    if not all(one.down for one in seen):
        downs = max(one.downs for one in seen)
        severity, cause = _flapping(downs)
        what = f"went down {format_count(downs, 'time')} and came up again"
    there = f"; {format_ranks(ranks)} {'runs' if len(ranks) == 1 else 'run'} there" if ranks else ""
    return finding(
        "ib-port",
        cause,
        subject=f"port {name} of {event.line.host}",
        severity=severity,
        ranks=ranks,
        since=seen[0].at,
        summary=f"an RDMA port ({name}) of {event.line.host} {what}, NCCL reports{there}",
        words={"leave_out": _leave_out(job, event.device)},
        evidence=[_evidence(seen[0])],
    )


def _evidence(seen: _Seen) -> Evidence:
    return Evidence("nccl", seen.event.line.text[:500], seen.at, seen.event.line.rank)


def _matters(job: JobView, port: RdmaPort) -> bool:
    """Whether the job may use it: no filter leaves it out, and on one node some rank holds a device at all."""
    if _filters(job) and not _selected(job, port):
        return False
    return not one_node(job) or bool(_users(job))


def _flapping(count: int) -> tuple[Severity, str]:
    return (Severity.WARNING, "flaps") if count >= _FLAPS else (Severity.INFO, "link_downed")


def _leave_out(job: JobView, device: str) -> str:
    """How to leave it out, as the advice puts it before "the node out of the job"."""
    if not device:
        return "take"
    if _filters(job):
        return f"drop {device} from your NCCL_IB_HCA, or take"
    return f"NCCL_IB_HCA=^={device}, or take"


def _users(job: JobView) -> tuple[int, ...]:
    """Ranks of this node that hold an RDMA device; which port of it they use is not known."""
    return tuple(
        sorted(rank.rank for rank in job.ranks.values() if rank.rdma is not None and rank.rdma.open_nodes)
    )


def _counted_downs(job: JobView, port: RdmaPort) -> int:
    """How much link_downed grew since the run began."""
    if job.network.ports.first is None:
        return 0
    for other in job.network.ports.first[1].ports:
        if (other.device, other.port) == (port.device, port.port):
            before, now = (dict(one.counters).get("link_downed", 0) for one in (other, port))
            return max(0, now - before)
    return 0


def _named(job: JobView, port: RdmaPort) -> str:
    """The NCCL_IB_HCA that names this very device; "" when none does: a prefix such as `mlx5` means whatever
    is active."""
    for value in _filters(job):
        parts = [part.partition(":")[0].strip() for part in value.lstrip("=").split(",")]
        if (
            value
            and not value.startswith("^")
            and port.device in parts
            and matches(port.device, value, port.port)
        ):
            return value
    return ""


def _selected(job: JobView, port: RdmaPort) -> bool:
    values = _filters(job)
    return bool(values) and all(matches(port.device, value, port.port) for value in values)


def _filters(job: JobView) -> set[str]:
    return {rank.variables["NCCL_IB_HCA"] for rank in job.ranks.values() if rank.variables.get("NCCL_IB_HCA")}


def _family(port: RdmaPort) -> tuple[str, str]:
    return port.device.rstrip("0123456789"), port.link_layer


def _nth(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
