"""Who holds up a silent job, as far as its processes and stacks show. Other evidence is added in `corroborate`."""

from __future__ import annotations

from diag.detectors.hang.rank_wait import WAITS, cause_of, has_left_the_group
from diag.detectors.hang.verdict import Verdict, others
from diag.model import Confidence
from diag.state.meeting import disagreement
from diag.state.rank_view import RankView
from diag.state.view import JobView

# Ranks blocked in several ways at once: a class that explains itself outranks "outside of any known wait".
_ORDER = (
    "resource_wait",
    "gil_deadlock",
    "lock_deadlock",
    "data_loading",
    "checkpoint_io",
    "preprocess_wait",
    "compile_wait",
    "outside",
    "goes_round",
    "teardown",
)


def attribute_hang(  # noqa: PLR0917 - one caller
    job: JobView,
    alive: list[RankView],
    dead: list[RankView],
    states: dict[int, str],
    since: float,
    lost: tuple[int, ...] = (),
) -> Verdict:
    """The least joined ranks hold up the rest. Dead outranks stopped outranks blocked outranks not yet
    initialised. `lost` are ranks of nodes that are silent: they are to blame where no rank that is seen
    explains it."""
    everyone = tuple(rank.rank for rank in alive)
    seen_all = len(job.ranks) >= job.world_size
    if dead:
        return _of_dead(dead, everyone, since)
    stopped = tuple(rank for rank in everyone if states[rank] == "stopped")
    if stopped:
        return Verdict("stopped", stopped, others(everyone, stopped), "sigstop", since, Confidence.HIGH)
    blocked = [rank for rank in everyone if states[rank] not in (*WAITS, "blind")]
    joining = [rank for rank in everyone if states[rank] in ("rendezvous", "comm_init")]
    if blocked:
        return _blocked(job, blocked, everyone, joining, states, since, lost)
    if joining:
        return _joining(job, joining, everyone, states, since)
    if lost:
        return _of_lost_nodes(job, lost, everyone, since)
    blind = tuple(rank for rank in everyone if states[rank] == "blind")
    if blind and len(blind) < len(everyone):
        return Verdict("unknown", blind, others(everyone, blind), "no_stack", since, Confidence.LOW)
    gone = tuple(sorted(rank.rank for rank in job.ranks.values() if not rank.alive))
    if gone:
        return Verdict("peer_lost", gone, everyone, "rank_left_early", since, Confidence.MEDIUM)
    cause = "all_ranks_wait" if seen_all else "culprit_not_seen"
    return Verdict("unknown", (), everyone, cause, since, Confidence.LOW)


def _of_dead(dead: list[RankView], everyone: tuple[int, ...], since: float) -> Verdict:
    culprits = tuple(sorted(rank.rank for rank in dead))
    since = max([since, *(rank.exited_at or since for rank in dead)])  # they moved until they died
    # Where an exit status could not be read the rank may as well have finished.
    sure = Confidence.HIGH if any(rank.failed for rank in dead) else Confidence.MEDIUM
    return Verdict("peer_lost", culprits, everyone, "rank_exited", since, sure)


def _of_lost_nodes(job: JobView, lost: tuple[int, ...], everyone: tuple[int, ...], since: float) -> Verdict:
    """Where several nodes fell silent at once and one alone is left, that one is more likely cut off."""
    gone = {job.ranks[rank].node for rank in lost}
    if len(gone) > 1 and len({job.ranks[rank].node for rank in everyone}) == 1:
        return Verdict("peer_lost", everyone, lost, "this_node_cut_off", since, Confidence.LOW)
    return Verdict("peer_lost", lost, everyone, "node_silent", since, Confidence.MEDIUM)


def _joining(
    job: JobView, joining: list[int], everyone: tuple[int, ...], states: dict[int, str], since: float
) -> Verdict:
    klass = "rendezvous" if any(states[rank] == "rendezvous" for rank in joining) else "comm_init"
    apart = disagreement(job.ranks) if job.iteration is None else None
    if apart is not None:
        waiting = others(everyone, apart.ranks)
        return Verdict(
            "rendezvous", apart.ranks, waiting, "ranks_disagree", since, Confidence.HIGH, words=apart.said
        )
    late = others(everyone, tuple(joining))
    missing = tuple(rank for rank in range(job.world_size) if rank not in job.ranks)
    if missing and len(missing) <= 4096:
        return Verdict(klass, missing, everyone, "ranks_missing", since, Confidence.MEDIUM)
    return Verdict(
        klass, late, tuple(joining), "not_all_joined", since, Confidence.MEDIUM if late else Confidence.LOW
    )


def _blocked(  # noqa: PLR0917 - one caller, beside it
    job: JobView,
    blocked: list[int],
    everyone: tuple[int, ...],
    joining: list[int],
    states: dict[int, str],
    since: float,
    lost: tuple[int, ...] = (),
) -> Verdict:
    klass = min((states[rank] for rank in blocked), key=_ORDER.index)
    culprits = tuple(rank for rank in blocked if states[rank] == klass)
    waiting = others(everyone, culprits)
    cause, child = cause_of(job.ranks[culprits[0]], klass)
    if klass == "teardown" and waiting and all(has_left_the_group(job.ranks[rank]) for rank in culprits):
        cause = "left_before_the_others"
    certain = bool(waiting) and all(states[rank] in WAITS for rank in waiting)
    confidence = Confidence.HIGH if certain and len(job.ranks) >= job.world_size else Confidence.MEDIUM
    if klass == "resource_wait" and cause == "external_service":
        confidence = Confidence.MEDIUM
    if klass == "goes_round":
        return Verdict("unknown", culprits, waiting, cause, since, Confidence.MEDIUM)
    if klass == "outside" and lost:
        return _of_lost_nodes(job, lost, everyone, since)
    if klass == "outside":
        klass = "rendezvous" if joining else ("peer_not_joined" if waiting else "unknown")
    return Verdict(klass, culprits, waiting, cause, since, confidence, child)
