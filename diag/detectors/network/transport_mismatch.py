"""Ranks of one communicator chose different networks: they cannot talk, or talk over the slowest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diag.detectors.network.advice import advice_for
from diag.detectors.network.causes import find_cause
from diag.detectors.network.said import line_evidence
from diag.jobstate import JobState
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity, rank_words
from diag.ncclprocess import NcclProcess
from diag.observations import Observation

__all__ = ["Mixed", "TransportMismatchDetector", "differing"]


class TransportMismatchDetector:
    """Meaning: ranks of one communicator that spans nodes chose different networks: InfiniBand here, sockets there.

    NCCL does not notice it in time: the job hangs while the communicator is made or at its first call, or fails there with an
    internal error (`wrong type 3 != 4`).

    Evidence: `Using network` of each member, by the communicator's id; or, where only one node is seen, connections of the
    wrong type. The ranks named are those on sockets, or else the
    fewer; why they differ is told as for ib-fallback.

    What to do: make the nodes alike: the same image, devices, environment and plugin on all.

    False alarms: none known; on one node nothing is said, since NCCL does not use the network there.
    """

    name = "transport-mismatch"

    def observe(self, at: float, fact: Observation) -> None:
        """Everything it needs is kept by the job's network state."""

    def check(self, now: float, job: JobState) -> Iterator[Finding]:
        mixed = differing(job)
        if mixed is not None:
            yield _finding(job, mixed, now)

    def not_checked(self, job: JobState) -> Iterable[NotChecked]:
        return ()


@dataclass(frozen=True, slots=True)
class Mixed:
    """The widest communicator whose members chose different networks: ranks by network, and those that are the odd ones."""

    size: int
    by_net: dict[str, list[int]]
    odd: tuple[int, ...]
    odd_net: str


def differing(job: JobState) -> Mixed | None:
    """None where all members of each communicator chose alike, or it does not span nodes."""
    members: dict[tuple[str, int], dict[int, tuple[str, NcclProcess]]] = {}
    for rank, process in job.nccl_processes.placed().items():
        for comm in process.communicators.values():
            if comm.net and comm.comm_id:
                members.setdefault((comm.comm_id, comm.size), {})[rank] = (comm.net, process)
    for (_, size), found in sorted(members.items(), key=lambda item: -item[0][1]):
        by_net: dict[str, list[int]] = {}
        for rank, (name, _) in sorted(found.items()):
            by_net.setdefault(name, []).append(rank)
        if len(by_net) > 1 and _spans_nodes(found):
            odd = "Socket" if "Socket" in by_net else min(by_net, key=lambda name: (len(by_net[name]), name))
            return Mixed(size, by_net, tuple(by_net[odd]), odd)
    return _told_by_connections(job)


def _told_by_connections(job: JobState) -> Mixed | None:
    """The others are on nodes that nobody sees: a rank here says that their connections are of another network."""
    by_net: dict[str, list[int]] = {}
    for rank, process in sorted(job.nccl_processes.placed().items()):
        for fact in process.differs[:1]:
            by_net.setdefault(fact.ours, []).append(rank)
            by_net.setdefault(fact.theirs, [])
    if len(by_net) < 2:
        return None
    return Mixed(job.nccl_processes.world_size() or job.world_size, by_net, tuple(by_net["Socket"]), "Socket")


def _spans_nodes(members: dict[int, tuple[str, NcclProcess]]) -> bool:
    return len({process.node for _, process in members.values()}) > 1 or any(
        (process.nodes or 0) > 1 for _, process in members.values())


def _finding(job: JobState, mixed: Mixed, now: float) -> Finding:
    placed, by_net, ranks = job.nccl_processes.placed(), mixed.by_net, mixed.odd
    others = tuple(rank for name, group in by_net.items() if name != mixed.odd_net for rank in group)
    words = "; ".join(f"{rank_words(group) if group else 'ranks of another node'}: {name}"
                      for name, group in sorted(by_net.items(), key=lambda item: item[1] or [1 << 30]))
    cause = find_cause(job, ranks[0], placed[ranks[0]]) if mixed.odd_net == "Socket" and ranks else None
    why = f"; {rank_words(ranks)}: {cause.said}" if cause is not None else ""
    evidence: list[Evidence] = []
    times: list[float] = []
    for name, group in by_net.items():
        if not group:
            continue
        process = placed[group[0]]
        evidence += [line_evidence(fact.line, process, group[0], now) for fact in process.differs[:1]]
        chosen = process.chosen.get(name)
        if chosen is not None:
            at = process.told.get(chosen.line, now)
            times.append(at)
            evidence.append(line_evidence(chosen.line, process, group[0], at))
    advice = ("All ranks of a communicator must use the same network: give all nodes the same image, devices, environment and "
              "network plugin.")
    if cause is not None:
        advice += " " + advice_for(cause.name, job, ranks[0])
    return Finding(
        id="transport-mismatch", subject=JOB, severity=Severity.CRITICAL, confidence=Confidence.HIGH, ranks=ranks,
        waiting_ranks=tuple(sorted(others)), since=min(times, default=now),
        cause=cause.name if cause is not None else "networks_differ",
        summary=f"ranks of one communicator of {mixed.size} chose different networks ({words}): it cannot be made, or hangs at "
                f"its first call{why}",
        advice=advice, evidence=(*evidence, *(cause.evidence if cause else ()))[:8],
    )
