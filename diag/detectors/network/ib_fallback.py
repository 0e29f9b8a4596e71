"""NCCL goes over TCP sockets between nodes: on which ranks, why, and how much it matters on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from diag.detectors.contract import Detector
from diag.detectors.findings import finding
from diag.detectors.network.causes import Cause, find_cause, format_port
from diag.detectors.network.evidence import line_evidence, place_of, who
from diag.detectors.network.transport_mismatch import differing
from diag.detectors.network.unlogged import Unlogged, UnloggedFallback, one_node, several_nodes
from diag.model import Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import GpuSample, NcclVersion
from diag.state.ncclprocess import NcclProcess
from diag.state.view import JobView
from diag.text.units import format_ranks

# The sidecar reads it when it finds the rank; NCCL's lines come with the same seconds.
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Fallen:
    rank: int  # -1: not known
    process: NcclProcess
    net: str
    cause: Cause
    since: float
    evidence: tuple[Evidence, ...]


class IbFallbackDetector(Detector):
    name = "ib-fallback"
    listens = (GpuSample, NcclVersion)

    def __init__(self) -> None:
        self._unlogged = Unlogged()

    def observe(self, at: float, fact: GpuSample | NcclVersion) -> None:
        self._unlogged.observe(at, fact)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if one_node(job):
            return  # whatever NCCL uses there, it is no network between nodes
        placed = job.nccl_processes.placed()
        there = [*sorted(placed.items()), *((-1, process) for process in job.nccl_processes.unplaced())]
        fallen = [one for rank, process in there if (one := _fell(job, rank, process)) is not None]
        mixed = differing(job)
        if mixed is not None and {id(one.process) for one in fallen} <= {
            id(process) for process in mixed.odd
        }:
            return  # transport-mismatch names them, and why
        if fallen:
            if now - max(one.since for one in fallen) > _PATIENCE_SECONDS or not _awaits_access(job, fallen):
                yield _finding(job, fallen)
            return
        if any(process.nets_between_nodes() for _, process in there):
            return  # NCCL prints what it uses, and it is no socket
        quiet = self._unlogged.verdict(now, job)
        if quiet is not None:
            cause = find_cause(job, quiet.ranks[0], placed.get(quiet.ranks[0]))
            if cause.name == "no_rdma":
                return
            yield _unlogged_finding(job, quiet, cause)

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        if (over := _sockets_of_unknown_nodes(job)) is not None:
            yield NotChecked(
                "whether NCCL should use RDMA",
                f"it chose TCP sockets ({over}), and nothing shows whether the job has several nodes; "
                "inside one it makes no difference",
                "where it has several: docker run --device=/dev/infiniband --ulimit memlock=-1 --network=host; "
                "Kubernetes: the cluster's rdma/... resource and the capability IPC_LOCK; "
                "NCCL_IB_DISABLE and NCCL_NET unset; diag replay of the whole log names the cause",
            )
        if several_nodes(job) and not any(process.talks for process in job.nccl_processes.living()):
            active = job.network.active_ports()
            if active is None and not _captured(job):
                yield NotChecked(
                    "whether NCCL uses RDMA between nodes",
                    "NCCL_DEBUG is not INFO and /sys/class/infiniband cannot be read",
                    "NCCL_DEBUG=INFO, or let diag see the node's /sys",
                )
            elif active and all(
                rank.rdma is None or rank.rdma.open_nodes is None for rank in job.ranks.values()
            ):
                yield NotChecked(
                    "whether the ranks hold RDMA devices open",
                    "/proc/PID/fd cannot be read",
                    "run diag as the user of the ranks, or NCCL_DEBUG=INFO",
                )


def _sockets_of_unknown_nodes(job: JobView) -> str | None:
    """The interfaces of NCCL's choice where nothing else of NCCL is known, as of a few lines that somebody pasted."""
    if one_node(job) or several_nodes(job):
        return None
    for process in job.nccl_processes.living():
        more = process.communicators or process.channels or process.results or process.warnings_total
        if "Socket" in process.chosen and not more:
            names = process.sockets.interfaces if process.sockets is not None else ()
            return ", ".join(name for name, _ in names[:4]) or "of which interface it does not say"
    return None


def _awaits_access(job: JobView, fallen: list[_Fallen]) -> bool:
    """What these living ranks have of RDMA is still to be read: it shows the cause."""
    ranks = [job.ranks[one.rank] for one in fallen if one.rank in job.ranks]
    return any(rank.alive and rank.rdma is None and rank.placement.launcher != "captured" for rank in ranks)


def _captured(job: JobView) -> bool:
    return all(rank.placement.launcher == "captured" for rank in job.ranks.values())


def _fell(job: JobView, rank: int, process: NcclProcess) -> _Fallen | None:
    """This rank uses a network between nodes that is not the one it should be on."""
    for name in sorted(process.nets_between_nodes()):
        if not _is_fallback(name, job.network.expected):
            continue
        chosen, channel = process.chosen.get(name), process.first_channel.get(name)
        lines = [fact for fact in (chosen, process.sockets, channel) if fact is not None]
        since = min((process.told[fact.line] for fact in lines if fact.line in process.told), default=0.0)
        cause = find_cause(job, rank, process)
        if name != "Socket" and not name.startswith("Socket"):
            cause = Cause("not_expected", f"{' or '.join(job.network.expected)} is expected", ())
        shown = tuple(line_evidence(fact.line, process, rank, since) for fact in lines[:3])
        return _Fallen(rank, process, name, cause, since, shown)
    return None


def _is_fallback(name: str, expected: tuple[str, ...]) -> bool:
    if expected:
        return not any(fnmatchcase(name, pattern) for pattern in expected)
    return name == "Socket"


def _severity(job: JobView, cause: Cause) -> Severity:
    if cause.name == "no_rdma":
        return Severity.INFO
    ports = job.network.active_ports()
    if ports is None:
        return Severity.WARNING
    if not ports:
        return Severity.WARNING if job.network.rdma_ports() else Severity.INFO
    return Severity.CRITICAL


def _finding(job: JobView, fallen: list[_Fallen]) -> Finding:
    causes: dict[str, list[_Fallen]] = {}
    for one in fallen:
        causes.setdefault(one.cause.name, []).append(one)
    main = max(causes.values(), key=len)
    first = main[0]
    others = "".join(
        f"; {_who(group)}: {group[0].cause.text}" for group in causes.values() if group is not main
    )
    outside = job.network.ports.last is not None or first.cause.proven
    sure = first.cause.proven and outside
    return finding(
        "ib-fallback",
        first.cause.name,
        severity=_severity(job, first.cause),
        confidence=Confidence.HIGH if sure else None,
        ranks=_ranks(fallen),
        since=min(one.since for one in fallen),
        summary=f"{_who(fallen)} {'sends' if len(fallen) == 1 else 'send'} NCCL traffic between nodes over {_over(first)}, "
        f"not over RDMA: {first.cause.text}{others}{_unused(job, first.cause)}",
        words=place_of(job, first.rank),
        evidence=(*first.evidence, *first.cause.evidence)[:8],
    )


def _ranks(fallen: list[_Fallen]) -> tuple[int, ...]:
    return tuple(one.rank for one in fallen if one.rank >= 0)


def _who(fallen: list[_Fallen]) -> str:
    return who(_ranks(fallen), [one.process for one in fallen if one.rank < 0])


def _over(one: _Fallen) -> str:
    interfaces = one.process.sockets.interfaces if one.process.sockets is not None else ()
    names = ", ".join(name for name, _ in interfaces[:4])
    return ("TCP sockets" if one.net == "Socket" else one.net) + (f" ({names})" if names else "")


def _unused(job: JobView, cause: Cause) -> str:
    ports = job.network.active_ports()
    if not ports or any(port.device in cause.text for port in ports):
        return ""
    return f"; unused: {', '.join(format_port(port) for port in ports[:4])}"


def _unlogged_finding(job: JobView, quiet: UnloggedFallback, cause: Cause) -> Finding:
    known = cause.name not in ("unknown", "no_device")
    ranks = quiet.ranks
    return finding(
        "ib-fallback",
        cause.name,
        severity=_severity(job, cause),
        confidence=Confidence.HIGH if quiet.sure and known else None,
        ranks=ranks,
        since=quiet.since,
        summary=f"{format_ranks(ranks)} {'does' if len(ranks) == 1 else 'do'} not use RDMA between nodes: {quiet.text}; "
        f"{cause.text}",
        words=place_of(job, ranks[0]),
        evidence=(*quiet.evidence, *cause.evidence)[:8],
        holds_seconds=60.0,
    )
