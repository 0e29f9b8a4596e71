"""Other evidence joined to what the stacks say: Flight Recorder, NCCL RAS, watchdog lines, GPUs, the driver,
the network.

Each kind may decide where the stacks see everybody wait, or agree, which makes the verdict surer; none
overrules a rank that died, stopped, or whose own stack explains why it is not there.
"""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.collectives import Collectives, with_collectives
from diag.detectors.hang.communicators import with_communicators
from diag.detectors.hang.core_dumps import Kernels, with_core_dumps
from diag.detectors.hang.endless_kernel import with_endless_kernel
from diag.detectors.hang.gpus import Gpus, computes, reported_readings, with_gpus
from diag.detectors.hang.last_words import with_last_words
from diag.detectors.hang.outcries import Outcries
from diag.detectors.hang.rank_wait import WAITS
from diag.detectors.hang.ras import Ras, RasExplanation, not_made
from diag.detectors.hang.verdict import Note, Verdict, blaming, raised, undecided
from diag.detectors.hang.watchdog import Watchdog, with_watchdog
from diag.model import Confidence
from diag.model.observations import NcclCompletionError, NcclLine, NcclPortEvent, Observation
from diag.model.observations.base import by_type
from diag.state.view import JobView

# What one node alone may decide, whoever waits on the others.
_OF_A_NODE = ("gpu_side", "network_transport", "resource_wait")


class Network:
    """Per rank the first error of the network in its NCCL lines, and when."""

    listens = (NcclCompletionError, NcclPortEvent)

    def __init__(self) -> None:
        self._errors: list[tuple[float, NcclLine]] = []

    def observe(self, at: float, fact: NcclCompletionError | NcclPortEvent) -> None:
        if len(self._errors) < 1000 and _is_error(fact):
            self._errors.append((at, fact.line))

    def errors(self, job: JobView) -> dict[int, NcclLine]:
        found: dict[int, NcclLine] = {}
        for at, line in self._errors:
            rank = job.ranks.rank_of_pid(line.pid) if line.rank is None else line.rank
            if rank is not None and rank in job.ranks and at >= job.ranks[rank].found_at:
                found.setdefault(rank, line)
        return found


def _is_error(fact: NcclCompletionError | NcclPortEvent) -> bool:
    """A port that came up, or whose table changed, is none."""
    return fact.line.level == "WARN" and (
        isinstance(fact, NcclCompletionError) or fact.fatal or fact.event == "port error"
    )


class EvidenceFusion:
    """Keeps what each kind of evidence observed, and joins it when a verdict is at hand."""

    listens = tuple(
        kind
        for part in (Collectives, Ras, Watchdog, Gpus, Kernels, Network, Outcries)
        for kind in part.listens
    )

    def __init__(self) -> None:
        parts = Collectives(), Ras(), Watchdog(), Gpus(), Kernels(), Network(), Outcries()
        self.collectives, self.ras, self.watchdog, self.gpus, self.kernels, self.network, self.outcries = (
            parts
        )
        self._parts = by_type(parts)

    def observe(self, at: float, fact: Observation) -> None:
        for observe in self._parts[type(fact)]:
            observe(at, fact)

    def join(
        self, verdict: Verdict, now: float, job: JobView, states: dict[int, str], *, once: bool = False
    ) -> Verdict | None:
        """The verdict that all evidence gives together; None where a GPU shows that the job computes.

        `once`: the evidence is one moment; a single reading of the Flight Recorder has to do.
        """
        found = self.collectives.explain(now, job, once=once)
        verdict = with_communicators(with_collectives(verdict, found, states, job), found, job)
        report = self.ras.explain(now, job)
        if report is not None and report.moving and undecided(verdict):
            return None  # ranks launch collectives: whatever stands, the job does not
        verdict = _with_ras(verdict, report, states, job)
        verdict = with_watchdog(verdict, self.watchdog.explain(job), states)
        readings = self.gpus.read(now, job, 0.0 if once else verdict.since) or reported_readings(job)
        if computes(verdict, readings):
            return None
        verdict = self._with_driver(verdict, job, states)
        verdict = with_endless_kernel(with_gpus(verdict, readings), readings, found, job)
        verdict = with_core_dumps(verdict, self.kernels.read(job, verdict.since), states)
        verdict = _with_nodes(self._with_network(verdict, job), job, now)
        return with_last_words(verdict, self.outcries, now, job)

    def _with_driver(self, verdict: Verdict, job: JobView, states: dict[int, str]) -> Verdict:
        may = (*WAITS, "blind", "outside")
        faults = {rank: fault for rank, fault in self.gpus.faults(job).items() if states.get(rank) in may}
        if not faults or not (undecided(verdict) or set(verdict.culprits) & set(faults)):
            return verdict
        ranks = tuple(sorted(faults))
        first = faults[ranks[0]]
        noted = verdict.noted(*(Note("kmsg", faults[rank].text, rank) for rank in ranks[:3]))
        return blaming(noted, ranks, "gpu_side", f"xid_{first.xid}", Confidence.HIGH, blamed_child=None)

    def _with_network(self, verdict: Verdict, job: JobView) -> Verdict:
        if not undecided(verdict):
            return verdict
        errors = self.network.errors(job)
        if not errors:
            return verdict
        ranks = tuple(sorted(errors))
        noted = verdict.noted(*(Note("output", errors[rank].text[:300], rank) for rank in ranks[:3]))
        return blaming(noted, ranks, "network_transport", "transport_error", Confidence.MEDIUM)


def _with_nodes(verdict: Verdict, job: JobView, now: float) -> Verdict:
    """Of the whole job: what a node alone found out by its GPUs, its kernel's log or its network, which
    digests do not carry."""
    if not undecided(verdict) or not job.cluster.nodes:
        return verdict
    reported = [
        hang
        for node in job.cluster.current()
        if now - node.heard_at <= node.silent_after()
        for hang in node.digest.hangs
        if hang.ranks and hang.klass in _OF_A_NODE
    ]
    ranks = tuple(sorted({rank for hang in reported for rank in hang.ranks}))
    if not reported or len(ranks) >= len(verdict.waiting):
        return verdict
    first = reported[0]
    evidence = [item for hang in reported[:2] for item in hang.evidence[:2]]
    noted = verdict.noted(*(Note(item.kind, item.excerpt, item.rank) for item in evidence))
    return blaming(noted, ranks, first.klass, first.cause, first.confidence)


def _with_ras(
    verdict: Verdict, report: RasExplanation | None, states: dict[int, str], job: JobView
) -> Verdict:
    """RAS sees processes that are gone on other nodes too, and who launched fewer calls; never why. It counts
    the same calls as the recorder: where that has spoken, RAS only adds its words."""
    if report is None:
        return verdict
    texts = [*report.words[:3], not_made(report, verdict.waiting, job)]
    noted = verdict.noted(*(Note("nccl_ras", text) for text in texts if text))
    suspects = tuple(sorted({*report.dead, *report.lagging}))
    if not undecided(verdict):
        agrees = bool(suspects) and set(verdict.culprits) == set(suspects) and verdict.collectives is None
        return replace(noted, confidence=raised(verdict.confidence)) if agrees else noted
    everyone = tuple(sorted({*verdict.waiting, *suspects}))
    if report.dead:
        alive = any(states.get(rank, "blind") != "blind" for rank in report.dead)
        sure = Confidence.MEDIUM if alive else Confidence.HIGH
        return blaming(replace(noted, waiting=everyone), report.dead, "peer_lost", "ras_dead", sure)
    if verdict.collectives is not None:
        return noted
    for klass, cause, culprits in (
        ("collective_mismatch", "calls_differ", report.calls_differ),
        ("peer_not_joined", "not_in_collective", report.lagging),
        ("collective_order_deadlock", "groups_in_opposite_order", report.crossed),
    ):
        if culprits:
            return blaming(replace(noted, waiting=everyone), culprits, klass, cause, Confidence.MEDIUM)
    if report.elsewhere:
        noted = noted.noted(Note("nccl_ras", ", ".join(report.elsewhere[:4])))
        return replace(noted, cause="culprit_not_seen")
    return noted
