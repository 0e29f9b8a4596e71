"""Other evidence joined to what the stacks say: Flight Recorder, NCCL RAS, watchdog lines, GPUs, the driver,
the network.

Each kind may decide where the stacks see everybody wait, or agree, which makes the verdict surer; none
overrules a rank that died, stopped, or whose own stack explains why it is not there.
"""

from __future__ import annotations

import re
from dataclasses import replace

from diag.detectors.hang.collectives import Collectives
from diag.detectors.hang.communicators import with_communicators
from diag.detectors.hang.core_dumps import Kernels, RunningKernels
from diag.detectors.hang.gpus import GpuReading, Gpus, reported_readings
from diag.detectors.hang.kernels import beside, endless
from diag.detectors.hang.last_words import with_last_words
from diag.detectors.hang.network import Network
from diag.detectors.hang.outcries import Outcries
from diag.detectors.hang.pipeline import is_between_stages
from diag.detectors.hang.rank_wait import WAITS
from diag.detectors.hang.ras import Ras, RasExplanation, not_made
from diag.detectors.hang.verdict import Note, Verdict, others
from diag.detectors.hang.watchdog import Watchdog, WatchdogReport
from diag.model import Confidence
from diag.model.observations import Observation
from diag.model.observations.base import by_type
from diag.state.stack_activity import Activity
from diag.state.view import JobView
from diag.state.wait_graph import Explanation

_LEVELS = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)
# What one node alone may decide, whoever waits on the others.
_OF_A_NODE = ("gpu_side", "network_transport", "resource_wait")
# Classes that a kernel which does not end may hide behind, and the state of its rank then.
_MAY_BE_A_KERNEL = ("unknown", "peer_not_joined", "gpu_side")
_AT_THE_GPU = (*WAITS, "blind")
# Classes in which the culprit might compute: its GPU decides whether it does.
_MAY_COMPUTE = ("peer_not_joined", "gpu_side", "unknown", "compile_wait")


def undecided(verdict: Verdict) -> bool:
    """Everybody seen waits: the stacks blame no rank."""
    return not verdict.culprits and verdict.klass == "unknown"


def lowered(confidence: Confidence) -> Confidence:
    return _LEVELS[max(0, _LEVELS.index(confidence) - 1)]


def _raised(confidence: Confidence) -> Confidence:
    return _LEVELS[min(len(_LEVELS) - 1, _LEVELS.index(confidence) + 1)]


class EvidenceFusion:
    """Keeps what each kind of evidence observed, and joins it when a verdict is at hand."""

    listens = tuple(
        kind
        for part in (Collectives, Ras, Watchdog, Gpus, Kernels, Network, Outcries)
        for kind in part.listens
    )

    def __init__(self) -> None:
        self.collectives = Collectives()
        self.ras = Ras()
        self.watchdog = Watchdog()
        self.gpus = Gpus()
        self.kernels = Kernels()
        self.network = Network()
        self.outcries = Outcries()
        self._parts = by_type(
            (self.collectives, self.ras, self.watchdog, self.gpus, self.kernels, self.network, self.outcries)
        )

    def observe(self, at: float, fact: Observation) -> None:
        for observe in self._parts[type(fact)]:
            observe(at, fact)

    def join(
        self, verdict: Verdict, now: float, job: JobView, standing: dict[int, str], *, once: bool = False
    ) -> Verdict | None:
        """The verdict that all evidence gives together; None where a GPU shows that the job computes.

        `once`: the evidence is one moment; a single reading of the Flight Recorder has to do.
        """
        found = self.collectives.explain(now, job, once=once)
        verdict = with_communicators(_with_collectives(verdict, found, standing, job), found, job)
        says = self.ras.explain(now, job)
        if says is not None and says.moving and undecided(verdict):
            return None  # ranks launch collectives: whatever stands, the job does not
        verdict = _with_ras(verdict, says, standing, job)
        verdict = _with_watchdog(verdict, self.watchdog.explain(job), standing)
        readings = self.gpus.read(now, job, 0.0 if once else verdict.since) or reported_readings(job)
        if _computes(verdict, readings):
            return None
        verdict = self._with_driver(verdict, job, standing)
        verdict = _with_kernels(_with_gpus(verdict, readings), readings, found, job)
        verdict = _with_core_dumps(verdict, self.kernels.read(job, verdict.since), standing)
        verdict = _with_nodes(self._with_network(verdict, job), job, now)
        return with_last_words(verdict, self.outcries, now, job)

    def _with_driver(self, verdict: Verdict, job: JobView, standing: dict[int, str]) -> Verdict:
        may = (*WAITS, "blind", "outside")
        faults = {rank: fault for rank, fault in self.gpus.faults(job).items() if standing.get(rank) in may}
        if not faults or not (undecided(verdict) or set(verdict.culprits) & set(faults)):
            return verdict
        ranks = tuple(sorted(faults))
        first = faults[ranks[0]]
        notes = tuple(Note("kmsg", faults[rank].text, rank) for rank in ranks[:3])
        everyone = tuple(sorted((*verdict.culprits, *verdict.waiting)))
        return replace(
            verdict,
            klass="gpu_side",
            culprits=ranks,
            waiting=others(everyone, ranks),
            cause=f"xid_{first.xid}",
            confidence=Confidence.HIGH,
            blamed_child=None,
            notes=(*verdict.notes, *notes),
        )

    def _with_network(self, verdict: Verdict, job: JobView) -> Verdict:
        if not undecided(verdict):
            return verdict
        errors = self.network.errors(job)
        if not errors:
            return verdict
        ranks = tuple(sorted(errors))
        notes = tuple(Note("output", errors[rank].text[:300], rank) for rank in ranks[:3])
        return replace(
            verdict,
            klass="network_transport",
            culprits=ranks,
            waiting=others(verdict.waiting, ranks),
            cause="transport_error",
            confidence=Confidence.MEDIUM,
            notes=(*verdict.notes, *notes),
        )


def _with_nodes(verdict: Verdict, job: JobView, now: float) -> Verdict:
    """Of the whole job: what a node alone found out by its GPUs, its kernel's log or its network, which
    digests do not carry."""
    if not undecided(verdict) or not job.cluster.nodes:
        return verdict
    said = [
        hang
        for node in job.cluster.current()
        if now - node.heard_at <= node.silent_after()
        for hang in node.digest.hangs
        if hang.ranks and hang.klass in _OF_A_NODE
    ]
    ranks = tuple(sorted({rank for hang in said for rank in hang.ranks}))
    if not said or len(ranks) >= len(verdict.waiting):
        return verdict
    first = said[0]
    notes = tuple(Note(item.kind, item.excerpt, item.rank) for hang in said[:2] for item in hang.evidence[:2])
    return replace(
        verdict,
        klass=first.klass,
        culprits=ranks,
        waiting=others(verdict.waiting, ranks),
        cause=first.cause,
        confidence=first.confidence,
        notes=(*verdict.notes, *notes),
    )


def _with_collectives(
    verdict: Verdict, found: Explanation | None, standing: dict[int, str], job: JobView
) -> Verdict:
    """Stacks show where ranks are, the Flight Recorder who has not come: two channels that should agree.

    A rank that died, stopped or is stuck in its shutdown outranks what it did not call; so does a block that
    explains itself (data, a lock, a save). The recorder decides where the stacks see all ranks waiting alike.
    """
    if found is None or verdict.klass in ("peer_lost", "stopped", "teardown", "rendezvous"):
        return verdict
    everyone = (*verdict.culprits, *verdict.waiting)
    all_wait = all(standing.get(rank) in (*WAITS, "blind") for rank in everyone)
    if found.kind == "mismatch" and all_wait:
        sure = Confidence.HIGH if 2 * len(found.culprits) < len(everyone) else Confidence.MEDIUM
        return _decided(verdict, found, "collective_mismatch", "calls_differ", sure)
    if found.kind == "order_cycle" and all_wait:
        sure = Confidence.HIGH if found.certain else Confidence.MEDIUM
        return _decided(verdict, found, "collective_order_deadlock", "groups_in_opposite_order", sure)
    if found.kind == "absent_rank":
        unrecorded = tuple(
            rank for rank in found.culprits if standing.get(rank) == "joined" and _is_in_a_call(rank, job)
        )
        if all_wait and unrecorded:
            return _unanswered(verdict, found, unrecorded, job)
        if all_wait:
            return _decided(verdict, found, "peer_not_joined", "not_in_collective", Confidence.MEDIUM)
        if set(verdict.culprits).intersection(found.culprits):
            return _without_those_in_a_call(verdict, found)
    if found.kind == "all_joined" and undecided(verdict) and found.certain:
        return replace(verdict, collectives=found)
    return verdict


def _without_those_in_a_call(verdict: Verdict, found: Explanation) -> Verdict:
    """Of ranks that all seem to be in code of their own, those wait that the recorder has in a call which others have
    not made: the call is one that no table names."""
    joined = tuple(rank for rank in verdict.culprits if rank in found.waiting and rank not in found.culprits)
    return replace(
        verdict,
        klass="peer_not_joined" if joined and verdict.klass == "unknown" else verdict.klass,
        culprits=others(verdict.culprits, joined),
        waiting=tuple(sorted({*verdict.waiting, *joined})),
        collectives=found,
    )


def _is_in_a_call(number: int, job: JobView) -> bool:
    """By its own frames. A rank in the autograd engine only may be: of that the recorder knows better."""
    rank = job.ranks.get(number)
    return rank is not None and rank.activity is Activity.COLLECTIVE


def _unanswered(verdict: Verdict, found: Explanation, ranks: tuple[int, ...], job: JobView) -> Verdict:
    """Missing in the recorder, yet their stacks stand in a call: a send or receive, which gloo's recorder
    does not keep. Between pipeline stages of an unknown layout the peer is not known either; elsewhere,
    nobody answers this call."""
    absent = tuple(rank for rank in found.culprits if rank not in ranks)
    if absent:
        return _decided(
            verdict,
            replace(found, culprits=absent),
            "peer_not_joined",
            "not_in_collective",
            Confidence.MEDIUM,
        )
    if any(is_between_stages(job.ranks[rank]) for rank in ranks if rank in job.ranks):
        return verdict
    return _decided(verdict, found, "collective_mismatch", "call_unanswered", Confidence.MEDIUM)


def _decided(verdict: Verdict, found: Explanation, klass: str, cause: str, confidence: Confidence) -> Verdict:
    everyone = tuple(sorted({*verdict.culprits, *verdict.waiting, *found.culprits}))
    return replace(
        verdict,
        klass=klass,
        cause=cause,
        confidence=confidence,
        culprits=found.culprits,
        waiting=others(everyone, found.culprits),
        blamed_child=None,
        collectives=found,
    )


def _with_ras(
    verdict: Verdict, says: RasExplanation | None, standing: dict[int, str], job: JobView
) -> Verdict:
    """RAS sees processes that are gone on other nodes too, and who launched fewer calls; never why. It counts
    the same calls as the recorder: where that has spoken, RAS only adds its words."""
    if says is None:
        return verdict
    told = [*says.words[:3], not_made(says, verdict.waiting, job)]
    noted = replace(verdict, notes=(*verdict.notes, *(Note("nccl_ras", text) for text in told if text)))
    suspects = tuple(sorted({*says.dead, *says.lagging}))
    if not undecided(verdict):
        agrees = bool(suspects) and set(verdict.culprits) == set(suspects) and verdict.collectives is None
        return replace(noted, confidence=_raised(verdict.confidence)) if agrees else noted
    everyone = tuple(sorted({*verdict.waiting, *suspects}))
    if says.dead:
        alive = any(standing.get(rank, "blind") != "blind" for rank in says.dead)
        return replace(
            noted,
            klass="peer_lost",
            cause="ras_dead",
            culprits=says.dead,
            waiting=others(everyone, says.dead),
            confidence=Confidence.MEDIUM if alive else Confidence.HIGH,
        )
    if verdict.collectives is not None:
        return noted
    for klass, cause, culprits in (
        ("collective_mismatch", "calls_differ", says.calls_differ),
        ("peer_not_joined", "not_in_collective", says.lagging),
        ("collective_order_deadlock", "groups_in_opposite_order", says.crossed),
    ):
        if culprits:
            return replace(
                noted,
                klass=klass,
                cause=cause,
                culprits=culprits,
                waiting=others(everyone, culprits),
                confidence=Confidence.MEDIUM,
            )
    if says.elsewhere:
        return replace(
            noted,
            cause="culprit_not_seen",
            notes=(*noted.notes, Note("nccl_ras", ", ".join(says.elsewhere[:4]))),
        )
    return noted


# What the watchdog's lines make of a verdict that blames no rank: class ("": as it was), cause, how sure.
_BY_WATCHDOG = {
    "mismatch": ("collective_mismatch", "calls_differ", Confidence.MEDIUM),
    "absent": ("peer_not_joined", "not_in_collective", Confidence.MEDIUM),
    "silent": ("", "rank_says_nothing", Confidence.LOW),
}


def _with_watchdog(verdict: Verdict, says: WatchdogReport | None, standing: dict[int, str]) -> Verdict:
    if says is None:
        return verdict
    noted = replace(verdict, notes=(*verdict.notes, Note("output", says.text)))
    if not undecided(verdict):
        agrees = bool(verdict.culprits) and set(verdict.culprits) == set(says.culprits)
        return replace(noted, confidence=_raised(verdict.confidence)) if agrees else noted
    everyone = tuple(sorted({*verdict.waiting, *says.culprits, *says.waiting}))
    joined_elsewhere = any(standing.get(rank) in WAITS for rank in says.culprits)
    if says.kind not in _BY_WATCHDOG or (joined_elsewhere and says.kind != "mismatch"):
        return noted
    klass, cause, confidence = _BY_WATCHDOG[says.kind]
    return replace(
        noted,
        klass=klass or verdict.klass,
        cause=cause,
        culprits=says.culprits,
        waiting=others(everyone, says.culprits),
        confidence=confidence,
    )


def _computes(verdict: Verdict, readings: dict[int, GpuReading]) -> bool:
    """A long kernel moves no counter of the process, but its GPU's power: that job is slow, not hung."""
    if undecided(verdict):
        return any(reading.state == "works" for reading in readings.values())
    return verdict.klass in _MAY_COMPUTE and any(
        rank in readings and readings[rank].state == "works" for rank in verdict.culprits
    )


def _with_gpus(verdict: Verdict, readings: dict[int, GpuReading]) -> Verdict:
    """Idle among GPUs that spin in a collective: that rank's kernel never came."""
    idle = tuple(sorted(rank for rank, reading in readings.items() if reading.state == "idle"))
    spins = tuple(sorted(rank for rank, reading in readings.items() if reading.state == "spins"))
    if undecided(verdict):
        notes = tuple(Note("nvml", str(readings[rank]), rank) for rank in (*idle[:2], *spins[:1]))
        verdict = replace(verdict, notes=(*verdict.notes, *notes))
        if idle and spins and len(idle) <= len(spins) and set(verdict.waiting) == set(readings):
            everyone = tuple(sorted({*verdict.waiting, *idle}))
            return replace(
                verdict,
                klass="gpu_side",
                culprits=idle,
                waiting=others(everyone, idle),
                cause="gpu_idle_among_waiting",
                confidence=Confidence.MEDIUM,
            )
        return verdict
    culprits = sorted(set(idle).intersection(verdict.culprits))
    waiting = sorted(set(spins).intersection(verdict.waiting))
    if (
        culprits
        and waiting
        and len(culprits) == len(verdict.culprits)
        and len(waiting) == len(verdict.waiting)
    ):
        notes = (
            Note("nvml", str(readings[culprits[0]]), culprits[0]),
            Note("nvml", str(readings[waiting[0]]), waiting[0]),
        )
        return replace(verdict, confidence=_raised(verdict.confidence), notes=(*verdict.notes, *notes))
    return verdict


def _with_core_dumps(
    verdict: Verdict, running: dict[int, RunningKernels], standing: dict[int, str]
) -> Verdict:
    """A kernel of the program's own on some GPUs, while those of the others have none: it does not end, and
    the rest wait for it. Where all have one it is a way of their own to talk to each other, and blames
    nobody."""
    if not running or verdict.klass not in _MAY_BE_A_KERNEL or verdict.cause.startswith("xid_"):
        return verdict
    everyone = tuple(sorted({*verdict.culprits, *verdict.waiting}))
    seen = [rank for rank in everyone if rank in running]
    busy = tuple(rank for rank in seen if running[rank].other)
    shown = (*busy[:3], *[rank for rank in seen if rank not in busy][:2])
    noted = replace(
        verdict, notes=(*verdict.notes, *(Note("cuda_coredump", str(running[rank]), rank) for rank in shown))
    )
    lone = len(everyone) == 1 and len(busy) == 1
    if (
        not busy
        or (len(busy) == len(seen) and not lone)
        or any(standing.get(rank, "blind") not in _AT_THE_GPU for rank in busy)
    ):
        return noted
    if verdict.culprits and not set(verdict.culprits) & set(busy):
        return noted  # two channels that do not agree
    if any(running[rank].nameless for rank in seen if rank not in busy):
        return noted  # what runs there may be the same
    sure = Confidence.HIGH if len(seen) == len(everyone) else Confidence.MEDIUM
    return replace(
        noted,
        klass="gpu_side",
        culprits=busy,
        waiting=others(everyone, busy),
        cause="kernel_does_not_end",
        confidence=sure,
        blamed_child=None,
    )


# Of these all members have the same kernel; in all-to-alls, gathers and point-to-point calls it follows what
# each of them sends.
_ONE_KERNEL = re.compile(
    r"_?(all_?reduce|all_?gather_base|all_?gather_into_tensor|reduce_?scatter_base|reduce_?scatter_tensor)$"
)


def _with_kernels(
    verdict: Verdict, readings: dict[int, GpuReading], found: Explanation | None, job: JobView
) -> Verdict:
    """All GPUs spin: a kernel that does not end, put before the collective, from those that wait in NCCL's."""
    if (
        not undecided(verdict)
        or set(verdict.waiting) != set(readings)
        or not _wait_alike(verdict, found, job)
    ):
        return verdict
    front = found.front if found is not None and found.certain and found.sole else None
    one_call = front is not None and not front.is_p2p and _ONE_KERNEL.fullmatch(front.op) is not None
    ranks = endless({rank: reading.kernel for rank, reading in readings.items()}, one_call=one_call)
    kernels = [readings[rank].kernel for rank in verdict.waiting if rank not in ranks]
    others_kernels = [kernel for kernel in kernels if kernel is not None]
    notes = tuple(
        Note("nvml", f"GPU {readings[rank].index} runs {beside(kernel, others_kernels)}", rank)
        for rank in ranks[:2]
        if (kernel := readings[rank].kernel) is not None
    )
    if not notes:
        return verdict
    whole = len(readings) >= job.world_size or (found is not None and found.certain)
    return replace(
        verdict,
        klass="gpu_side",
        culprits=ranks,
        waiting=others(verdict.waiting, ranks),
        cause="kernel_does_not_end",
        confidence=Confidence.MEDIUM if whole else Confidence.LOW,
        notes=(*notes, *verdict.notes),
    )


def _wait_alike(verdict: Verdict, found: Explanation | None, job: JobView) -> bool:
    """In one call: as the recorder says; where it does not say surely, their stacks are the same."""
    if found is not None:
        if (
            found.kind != "all_joined"
            or found.front is None
            or not set(verdict.waiting) <= set(found.front.waiting)
        ):
            return False
        if found.certain:
            return True
    stacks = {job.ranks[rank].stack_signature for rank in verdict.waiting if rank in job.ranks}
    return len(stacks) == 1 and "" not in stacks
