"""An RDMA port that the job needs is not active, or went down while it ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from diag.detectors.network.causes import format_port
from diag.detectors.network.unlogged import one_node
from diag.knowledge.nccl_filters import matches
from diag.model import Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import NcclPortEvent, RdmaPort
from diag.state.view import JobView
from diag.text.units import format_ranks, format_seconds

# gpud's rule for a flapping port (components/accelerator/nvidia/infiniband): three times down.
_FLAPS = 3


_MOST_SPOTS = 1000
_Spot = tuple[str, str, int | None]  # host, device, port


@dataclass(slots=True)
class _Seen:
    """What one process was told of a port."""

    at: float
    event: NcclPortEvent
    down: bool = True
    downs: int = 1


class IbPortDetector:
    """Meaning: an RDMA port went down while the job ran, flaps, runs slower than its like, or is down and in
    NCCL_IB_HCA.

    Evidence: /sys/class/infiniband/*/ports/*/state and rate, the link_downed counter, NCCL's `port error`
    events.

    What to do: cable, transceiver, switch port, subnet manager; take the node out of the job until the port
    stays up.

    False alarms: a port that was never active and that no setting names is not reported: cards have ports
    without cables.
    """

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
        told: set[tuple[str, int | None]] = set()
        for port in job.network.rdma_ports() or ():
            finding = self._of_port(job, port, now)
            if finding is not None:
                told.add((port.device, port.port))
                yield finding
        by_host: dict[str, list[int]] = {}
        if self._spots:
            for rank, process in job.nccl_processes.placed().items():
                by_host.setdefault(process.host, []).append(rank)
        for (host, device, number), seen in self._spots.items():
            if (device, number) in told or not seen:
                continue
            first = next(iter(seen.values()))
            ranks = tuple(sorted(by_host.get(host, ())))
            if all(one.down for one in seen.values()):
                yield _of_event(job, first, ranks, "went down, NCCL says", Severity.CRITICAL, "went_down")
            else:
                downs = max(one.downs for one in seen.values())
                times = f"went down {downs} time{'s' if downs > 1 else ''} and came up again, NCCL says"
                yield _of_event(job, first, ranks, times, *_flapping(downs))

    def _events(self, port: RdmaPort) -> list[_Seen]:
        return [
            one
            for (_, device, number), seen in self._spots.items()
            if (device, number) == (port.device, port.port)
            for one in seen.values()
            if one.down
        ]

    def _of_port(self, job: JobView, port: RdmaPort, now: float) -> Finding | None:
        key = (port.device, port.port)
        name = f"{port.device}:{port.port}"
        if key in job.network.down_since:
            at = job.network.down_since[key]
            times = f", for the {_nth(job.network.downs[key])} time" if job.network.downs[key] > 1 else ""
            severity = Severity.CRITICAL if _matters(job, port) else Severity.INFO
            return _finding(
                job,
                port,
                severity,
                "went_down",
                at,
                f"RDMA port {name} went down {format_seconds(now - at)} ago{times}: {format_port(port)}",
                self._events(port),
            )
        count = max(job.network.downs[key], _counted_downs(job, port))
        if count:
            severity, cause = _flapping(count)
            return _finding(
                job,
                port,
                severity if _matters(job, port) else Severity.INFO,
                cause,
                job.network.was_active.get(key, now),
                f"RDMA port {name} went down {count} time{'s' if count > 1 else ''} in this run and is up again",
            )
        wanted = _named(job, port)
        if not port.active and port.state is not None and wanted:
            waits = (
                ": INIT, no subnet manager has configured it"
                if port.state == 2 and port.link_layer == "InfiniBand"
                else ""
            )
            return _finding(
                job,
                port,
                Severity.WARNING,
                "down",
                now,
                f"RDMA port {name} is not active ({format_port(port)}{waits}) though NCCL_IB_HCA={wanted} names it",
            )
        best = max(
            (
                other.rate_bytes_per_second or 0.0
                for other in (job.network.rdma_ports() or ())
                if other.active and _family(other) == _family(port)
            ),
            default=0.0,
        )
        if (
            port.active
            and port.rate_bytes_per_second
            and port.rate_bytes_per_second < best
            and _selected(job, port)
        ):
            return _finding(
                job,
                port,
                Severity.INFO,
                "slow_rate",
                now,
                f"RDMA port {name} runs at {port.rate_bytes_per_second * 8 / 1e9:.0f} Gb/s, its like at "
                f"{best * 8 / 1e9:.0f} Gb/s",
            )
        return None

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()


def _finding(  # noqa: PLR0917 - the parts of one sentence
    job: JobView,
    port: RdmaPort,
    severity: Severity,
    cause: str,
    since: float,
    summary: str,
    events: Sequence[_Seen] = (),
) -> Finding:
    evidence = [
        Evidence(
            "infiniband", format_port(port), job.network.ports.last[0] if job.network.ports.last else since
        )
    ]
    evidence += [
        Evidence("nccl", one.event.line.text[:500], one.at, one.event.line.rank) for one in events[:3]
    ]
    return Finding(
        id="ib-port",
        subject=f"port {port.device}:{port.port}",
        severity=severity,
        confidence=Confidence.HIGH if events else Confidence.MEDIUM,
        ranks=_users(job),
        since=since,
        cause=cause,
        summary=summary,
        advice=_advice(job, port.device),
        evidence=tuple(evidence),
        holds_seconds=10.0,
    )


def _of_event(  # noqa: PLR0917 - the parts of one sentence
    job: JobView,
    seen: _Seen,
    ranks: tuple[int, ...],
    said: str,
    severity: Severity,
    cause: str,
) -> Finding:
    """The port is on a node that diag does not see: NCCL's word for it is all there is."""
    event = seen.event
    name = (event.device or "?") + (f":{event.port}" if event.port is not None else "")
    return Finding(
        id="ib-port",
        subject=f"port {name} of {event.line.host}",
        severity=severity,
        confidence=Confidence.MEDIUM,
        ranks=ranks,
        since=seen.at,
        cause=cause,
        advice=_advice(job, event.device),
        holds_seconds=10.0,
        summary=f"an RDMA port ({name}) of {event.line.host} {said}"
        + (f"; {format_ranks(ranks)} {'runs' if len(ranks) == 1 else 'run'} there" if ranks else ""),
        evidence=(Evidence("nccl", event.line.text[:500], seen.at, event.line.rank),),
    )


def _matters(job: JobView, port: RdmaPort) -> bool:
    """Whether the job may use it: no filter leaves it out, and on one node somebody holds a device at all."""
    if _filters(job) and not _selected(job, port):
        return False
    return not one_node(job) or bool(_users(job))


def _flapping(count: int) -> tuple[Severity, str]:
    return (Severity.WARNING, "flaps") if count >= _FLAPS else (Severity.INFO, "link_downed")


def _advice(job: JobView, device: str) -> str:
    leave_out = f"NCCL_IB_HCA=^={device}, or take" if device else "take"
    if device and _filters(job):
        leave_out = f"drop {device} from your NCCL_IB_HCA, or take"
    return (
        "`ibstat` or `rdma link` on the node shows the port. DOWN or Polling is a cable, transceiver or switch port; INIT on "
        "InfiniBand a missing subnet manager; a RoCE port follows its Ethernet interface. Until it is mended leave it out: "
        f"{leave_out} the node out of the job."
    )


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
            return max(
                0, dict(port.counters).get("link_downed", 0) - dict(other.counters).get("link_downed", 0)
            )
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
