"""Ranks of one communicator chose different networks: they cannot talk, or talk over the slowest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, row
from diag.detectors.network.causes import find_cause
from diag.detectors.network.evidence import advice_for, line_evidence, who
from diag.model import Evidence, Finding
from diag.state.ncclprocess import NcclProcess
from diag.state.view import JobView


class TransportMismatchDetector(Detector):
    name = "transport-mismatch"

    def __init__(self) -> None:
        self._asked: tuple[object, ...] = ()
        self._mixed: Mixed | None = None

    def tick(self, now: float, job: JobView) -> None:
        """A large job is searched only when something was reported of it."""
        asked = _question(job)
        if asked != self._asked:
            self._asked, self._mixed = asked, differing(job)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        mixed = self._mixed if _question(job) == self._asked else differing(job)
        if mixed is not None:
            yield _finding(job, mixed, now)


def _question(job: JobView) -> tuple[object, ...]:
    """What the answer depends on."""
    return (*job.nccl_processes.told, job.world_size)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Members of communicators that chose different networks: processes by network, and the odd ones (none in
    a tie)."""

    size: int  # of the widest such communicator
    by_net: dict[str, list[NcclProcess]]
    odd: tuple[NcclProcess, ...]


def differing(job: JobView) -> Mixed | None:
    """None where all members of each communicator chose alike, or it does not span nodes."""
    members: dict[tuple[str, int], list[tuple[str, NcclProcess]]] = {}
    for process in job.nccl_processes.living():
        for comm in process.communicators.values():
            if comm.net and comm.comm_id:
                members.setdefault((comm.comm_id, comm.size), []).append((comm.net, process))
    by_net: dict[str, dict[int, NcclProcess]] = {}
    widest = 0
    for (_, size), found in members.items():
        if len({net for net, _ in found}) > 1 and _spans_nodes([process for _, process in found]):
            widest = max(widest, size)
            for net, process in found:
                by_net.setdefault(net, {})[id(process)] = process
    if not by_net:
        return _by_connections(job)
    return _mixed(widest, {net: list(there.values()) for net, there in by_net.items()})


def _mixed(size: int, by_net: dict[str, list[NcclProcess]]) -> Mixed:
    """Sockets among others are odd, else the fewer."""
    fewest = min(map(len, by_net.values()))
    odd = ["Socket"] if "Socket" in by_net else [net for net, there in by_net.items() if len(there) == fewest]
    return Mixed(size, by_net, tuple(by_net[odd[0]]) if len(odd) == 1 else ())


def _by_connections(job: JobView) -> Mixed | None:
    """The others are on nodes that are not seen: a process here prints that their connections are of another
    network."""
    by_net: dict[str, list[NcclProcess]] = {}
    for process in job.nccl_processes.living():
        for fact in process.differs[:1]:
            by_net.setdefault(fact.ours, []).append(process)
            by_net.setdefault(fact.theirs, [])
    size = job.nccl_processes.world_size() or job.world_size
    return Mixed(size, by_net, tuple(by_net["Socket"])) if len(by_net) > 1 else None


def _spans_nodes(members: list[NcclProcess]) -> bool:
    return len({process.node for process in members}) > 1 or any(
        (process.nodes or 0) > 1 for process in members
    )


def _finding(job: JobView, mixed: Mixed, now: float) -> Finding:
    numbers = {id(process): rank for rank, process in job.nccl_processes.placed().items()}
    by_net = mixed.by_net
    ranks = _ranks(mixed.odd, numbers)
    odd = {id(process) for process in mixed.odd}
    rest = [process for there in by_net.values() for process in there if id(process) not in odd]
    groups = "; ".join(
        f"{_who(there, numbers)}: {net}"
        for net, there in sorted(by_net.items(), key=lambda item: -len(item[1]))
    )
    socket = by_net.get("Socket", [])
    first = socket[0] if socket else None
    cause = find_cause(job, numbers.get(id(first), -1), first) if first is not None else None
    why = f"; {_who(socket, numbers)}: {cause.text}" if cause is not None else ""
    evidence: list[Evidence] = []
    times: list[float] = []
    for net, there in by_net.items():
        for process in there[:1]:
            rank = numbers.get(id(process))
            evidence += [line_evidence(fact.line, process, rank, now) for fact in process.differs[:1]]
            chosen = process.chosen.get(net)
            if chosen is not None:
                at = process.told.get(chosen.line, now)
                times.append(at)
                evidence.append(line_evidence(chosen.line, process, rank, at))
    advice = row("transport-mismatch")["advice"]
    if cause is not None:
        advice += " " + advice_for(cause.name, job, ranks[0] if ranks else -1)
    return finding(
        "transport-mismatch",
        cause.name if cause is not None else "networks_differ",
        ranks=ranks,
        waiting_ranks=_ranks(rest, numbers),
        since=min(times, default=now),
        summary=f"ranks of one communicator of {mixed.size} chose different networks ({groups}): it cannot be made, or hangs at "
        f"its first call{why}",
        advice=advice,
        evidence=(*evidence, *(cause.evidence if cause else ()))[:8],
    )


def _ranks(processes: Sequence[NcclProcess], numbers: dict[int, int]) -> tuple[int, ...]:
    return tuple(sorted(numbers[id(process)] for process in processes if id(process) in numbers))


def _who(processes: Sequence[NcclProcess], numbers: dict[int, int]) -> str:
    unknown = [process for process in processes if id(process) not in numbers]
    return who(_ranks(processes, numbers), unknown) if processes else "ranks of another node"
