"""Is the job hung, or slow, compiling, saving, preprocessing? If hung: which rank, in what, and who waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from diag.detectors.hang_collectives import Collectives
from diag.detectors.hang_words import advice_for, describe, evidence_of
from diag.detectors.patience import STEADY_SECONDS, may_be_idle, patience
from diag.detectors.standing import WAITS, cause_of, standing_of
from diag.detectors.verdict import Verdict
from diag.jobstate import JobState
from diag.model import JOB, Confidence, Finding, NotChecked, Severity, format_ranks
from diag.observations import Observation
from diag.rankstate import CHANNELS, RankState
from diag.waitgraph import Explanation

__all__ = ["HangDetector", "Verdict", "judge", "wants_closer_look"]

# Children or IO that keep moving without any step, stack or log line moving (a side process, a service).
_BUSY_WITHOUT_PROGRESS = {"steady": 600.0}
_BUSY_WITHOUT_PROGRESS_SECONDS = 7200.0  # DLRover's ceiling for the first step
_SAMPLES = 3  # equal stacks needed before a rank may be blamed by its stack
_STRONG = ("log", "stack", "cpu")  # channels whose movement means that the job itself moves

class HangDetector:
    """Meaning: no rank of the job has made progress for longer than its phase allows.

    Evidence: the main thread's stack of each rank (unchanged over samples), CPU, IO and memory of the rank and its
    children, the job's log, process states. Two independent channels must stand still.

    What to do: the advice follows the class; `diag dump --all-ranks` shows all stacks merged.

    False alarms: a rank that waits for a service outside of the job by other means than HTTP (HTTP is given five minutes)
    looks like peer_not_joined.
    """

    name = "hang"

    def __init__(self) -> None:
        self._collectives = Collectives()

    def observe(self, at: float, fact: Observation) -> None:
        """Of all else that this detector needs the job state keeps track."""
        self._collectives.observe(at, fact)

    def check(self, now: float, job: JobState) -> Iterator[Finding]:
        verdict = judge(now, job, self._collectives)
        if verdict is None:
            return
        yield Finding(
            id="hang",
            subject=JOB,
            klass=verdict.klass,
            severity=Severity.CRITICAL,
            confidence=verdict.confidence,
            ranks=verdict.culprits,
            waiting_ranks=verdict.waiting,
            since=verdict.since,
            cause=verdict.cause,
            summary=describe(verdict, job, now),
            advice=advice_for(verdict, job),
            evidence=tuple(evidence_of(verdict, job, now)),
        )

    def not_checked(self, job: JobState) -> Iterable[NotChecked]:
        blind = [rank.rank for rank in job.alive_ranks() if rank.stack is None and rank.tree is not None
                 and job.started_at is not None and rank.tree_at - rank.found_at > 30.0]
        if blind and not job.failed_sources:
            yield NotChecked(
                f"hang class of ranks {format_ranks(blind)}",
                "no Python stack could be read yet",
                "run `diag dump --all-ranks` to see the reason",
            )


def judge(now: float, job: JobState, collectives: Collectives | None = None) -> Verdict | None:
    """None while the job moves, might still move, or is not a job yet."""
    alive = job.alive_ranks()
    if job.returncode is not None or job.interrupted_at is not None or not alive:
        return None
    dead = [rank for rank in job.ranks.values() if rank.exit is not None and rank.exit.exit_code != 0]
    since = max([rank.last_moved(_STRONG) for rank in alive] + [job.log_moved_at or 0.0])
    weak_since = max([rank.last_moved(CHANNELS) for rank in alive] + [since])
    quiet = now - weak_since
    if quiet < STEADY_SECONDS:
        ceiling = _BUSY_WITHOUT_PROGRESS.get(job.phase, _BUSY_WITHOUT_PROGRESS_SECONDS)
        if now - since < ceiling or job.phase in ("data_prep", "model_load", "compile", "ckpt_save"):
            return None
        quiet = now - since
    else:
        since = weak_since
    if not _well_seen(alive, now, quiet):
        return None
    standing = {rank.rank: standing_of(rank) for rank in alive}
    verdict = _blame(job, alive, dead, standing, since)
    if collectives is not None:
        verdict = _with_collectives(verdict, collectives.explain(now, job), standing)
    if now - verdict.since < patience(job, verdict) or may_be_idle(job, alive, verdict):
        return None
    return verdict


def wants_closer_look(now: float, job: JobState) -> bool:
    """Whether samples should come faster and include children: progress is overdue, though nothing is proven."""
    if job.returncode is not None or not job.alive_ranks():
        return False
    overdue = max(5.0, 2.0 * (job.step_p95() or 0.0))
    # A rank that spins in a wait looks busy until its stack was seen twice: the log knows better when it is late.
    reporting = job.phase == "steady" and job.line_seconds and job.log_moved_at is not None
    if reporting and now - (job.log_moved_at or now) > max(5.0, 3.0 * max(job.line_seconds)):
        return True
    return now - job.last_progress() > overdue or any(rank.stopped for rank in job.alive_ranks())


def _well_seen(alive: list[RankState], now: float, quiet: float) -> bool:
    """Enough independent looks during the silence: a verdict needs eyes, not only silence."""
    for rank in alive:
        if rank.tree is None or now - rank.tree_at > 15.0:
            return False  # /proc itself was not read lately: diag is starved, not the job
        if rank.stopped:
            continue
        if rank.stack is None:
            if quiet < 120.0:
                return False
        elif rank.stack_samples < _SAMPLES or now - rank.stack_at > 30.0:
            return False
    return True


def _blame(
    job: JobState, alive: list[RankState], dead: list[RankState], standing: dict[int, str], since: float
) -> Verdict:
    """The least joined ranks hold up the rest. Dead outranks stopped outranks blocked outranks not yet initialised."""
    everyone = tuple(rank.rank for rank in alive)
    seen_all = job.ranks_seen >= job.world_size
    if dead:
        culprits = tuple(sorted(rank.rank for rank in dead))
        since = max([since, *(rank.exited_at or since for rank in dead)])  # they moved until they died
        # Where nobody could read an exit status the rank may as well have finished.
        sure = Confidence.HIGH if any(rank.failed for rank in dead) else Confidence.MEDIUM
        return Verdict("peer_lost", culprits, everyone, "rank_exited", since, sure)
    stopped = tuple(rank for rank in everyone if standing[rank] == "stopped")
    if stopped:
        return Verdict("stopped", stopped, _others(everyone, stopped), "sigstop", since, Confidence.HIGH)
    blocked = [rank for rank in everyone if standing[rank] not in (*WAITS, "blind")]
    joining = [rank for rank in everyone if standing[rank] in ("rendezvous", "comm_init")]
    if blocked:
        return _blocked_verdict(job, blocked, everyone, joining, standing, since)
    if joining:
        klass = "rendezvous" if any(standing[rank] == "rendezvous" for rank in joining) else "comm_init"
        late = _others(everyone, tuple(joining))
        missing = tuple(rank for rank in range(job.world_size) if rank not in job.ranks)
        if missing and len(missing) <= 4096:
            return Verdict(klass, missing, everyone, "ranks_missing", since, Confidence.MEDIUM)
        return Verdict(klass, late, tuple(joining), "not_all_joined", since,
                       Confidence.MEDIUM if late else Confidence.LOW)
    blind = tuple(rank for rank in everyone if standing[rank] == "blind")
    if blind and len(blind) < len(everyone):
        return Verdict("unknown", blind, _others(everyone, blind), "no_stack", since, Confidence.LOW)
    gone = tuple(sorted(rank.rank for rank in job.ranks.values() if not rank.alive))
    if gone:
        return Verdict("peer_lost", gone, everyone, "rank_left_early", since, Confidence.MEDIUM)
    cause = "all_ranks_wait" if seen_all else "culprit_not_seen"
    return Verdict("unknown", (), everyone, cause, since, Confidence.LOW)


def _blocked_verdict(  # noqa: PLR0917 - one caller, beside it
    job: JobState, blocked: list[int], everyone: tuple[int, ...], joining: list[int], standing: dict[int, str],
    since: float,
) -> Verdict:
    # Ranks blocked in several ways at once: a class that explains itself outranks "outside of any known wait".
    order = ("resource_wait", "gil_deadlock", "lock_deadlock", "data_loading", "checkpoint_io", "preprocess_wait",
             "compile_wait", "outside", "teardown")
    klass = min((standing[rank] for rank in blocked), key=order.index)
    culprits = tuple(rank for rank in blocked if standing[rank] == klass)
    waiting = _others(everyone, culprits)
    cause, child = cause_of(job.ranks[culprits[0]], klass)
    certain = bool(waiting) and all(standing[rank] in WAITS for rank in waiting)
    confidence = Confidence.HIGH if certain and job.ranks_seen >= job.world_size else Confidence.MEDIUM
    if klass == "resource_wait" and cause == "external_service":
        confidence = Confidence.MEDIUM
    if klass == "outside":
        klass = "rendezvous" if joining else ("peer_not_joined" if waiting else "unknown")
    return Verdict(klass, culprits, waiting, cause, since, confidence, child)


def _with_collectives(verdict: Verdict, found: Explanation | None, standing: dict[int, str]) -> Verdict:
    """Stacks say where ranks stand, the Flight Recorder who has not come: two channels that should agree.

    A rank that died, stopped or is stuck in its shutdown outranks what it did not call; so does a block that explains
    itself (data, a lock, a save). The recorder decides where the stacks see all ranks waiting alike.
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
        if all_wait:
            return _decided(verdict, found, "peer_not_joined", "not_in_collective", Confidence.MEDIUM)
        agreed = tuple(rank for rank in verdict.culprits if rank in found.culprits)
        if agreed:
            return replace(verdict, collectives=found)
    return verdict


def _decided(verdict: Verdict, found: Explanation, klass: str, cause: str, confidence: Confidence) -> Verdict:
    everyone = tuple(sorted((*verdict.culprits, *verdict.waiting)))
    return replace(
        verdict, klass=klass, cause=cause, confidence=confidence, culprits=found.culprits,
        waiting=_others(everyone, found.culprits), blamed_child=None, collectives=found,
    )


def _others(everyone: tuple[int, ...], culprits: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(rank for rank in everyone if rank not in culprits)
