"""Is the job hung, or slow, compiling, saving, preprocessing? If hung: which rank, in what, and who waits for
it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from diag.detectors.hang.advice import advice_for
from diag.detectors.hang.blame import blame
from diag.detectors.hang.evidence import evidence_of
from diag.detectors.hang.joined import Joined, lowered, undecided
from diag.detectors.hang.patience import STEADY_SECONDS, may_be_idle, patience
from diag.detectors.hang.printing import last_printed
from diag.detectors.hang.standing import WAITS, standing_of
from diag.detectors.hang.verdict import Verdict, others
from diag.detectors.hang.words import describe
from diag.detectors.memory.stall import waits_for
from diag.model import JOB, Confidence, Finding, NotChecked, Severity, rank_words
from diag.model.observations import Observation, SnapshotTaken
from diag.state.job import JobState
from diag.state.rank import CHANNELS, STRONG, RankState

__all__ = ["HangDetector", "Verdict", "judge", "judge_snapshot", "wants_closer_look"]

# Children or IO that keep moving without any step, stack or log line moving (a side process, a service).
_BUSY_WITHOUT_PROGRESS = {"steady": 600.0}
_BUSY_WITHOUT_PROGRESS_SECONDS = 7200.0  # DLRover's ceiling for the first step
_STALE_SECONDS = 60.0  # twelve times the usual period, thirty times that under suspicion
_BLIND_SECONDS = 120.0  # silence that is believed without a stack
_SAMPLES = 3  # equal stacks needed before a rank may be blamed by its stack
_BLOCKED_FOR_LONG = ("data_loading", "lock_deadlock", "gil_deadlock", "checkpoint_io", "resource_wait")
_SNAPSHOT_SAMPLES = 2  # equal stacks within one captured moment that show a rank standing
# A hang that was said ends when the job itself moves. Children and files may stir in it: torch's compile
# workers give up their pool after a minute without work (seen on H200, torch 2.11). Only what goes on for so
# long is work.
_STIRRED_SECONDS = 45.0
_PAUSE_SECONDS = 60.0  # ours: of helpers, what stirs more seldom does not work for the job, however long a hang takes to be told
_NEVER = -1e9


class HangDetector:
    """Meaning: no rank of the job has made progress for longer than its phase allows.

    Evidence: the main thread's stack of each rank (unchanged over samples), CPU, IO and memory of the rank
    and its children, the job's log and what each rank prints, process states, the Flight Recorder, GPU
    utilisation and power, what stands on their SMs, NCCL's and the watchdog's lines. Two independent channels
    must stand still. A folder of evidence captured by hand is one moment: what it shows of the time before
    decides, and the confidence is lower.

    What to do: the advice follows the class; `diag dump --all-ranks` shows all stacks merged.

    False alarms: a rank that waits for a service outside of the job by other means than HTTP (HTTP is given
    five minutes) looks like peer_not_joined. A rank that alone is in a kernel that waits for other GPUs by
    itself (symmetric memory, NVSHMEM) looks like kernel_does_not_end. A rank that prints nothing but the same
    words again, or a time that passes, counts as silent.
    """

    name = "hang"

    def __init__(self) -> None:
        self._joined = Joined()
        self._said = _Said()
        self._snapshot: SnapshotTaken | None = None

    def observe(self, at: float, fact: Observation) -> None:
        """Of all else that this detector needs the job state keeps track."""
        self._joined.observe(at, fact)
        if isinstance(fact, SnapshotTaken):
            self._snapshot = fact

    def check(self, now: float, job: JobState) -> Iterator[Finding]:
        if self._snapshot is not None:
            verdict = judge_snapshot(now, job, self._snapshot, self._joined) if self._snapshot.final else None
        else:
            verdict = judge(now, job, self._joined, self._said.standing(now, job))
            self._said.keep(verdict)
        if verdict is None:
            return
        proven = verdict.seconds is None or verdict.seconds >= STEADY_SECONDS
        yield Finding(
            id="hang",
            subject=JOB,
            klass=verdict.klass,
            severity=Severity.CRITICAL if proven else Severity.WARNING,
            confidence=verdict.confidence,
            ranks=verdict.culprits,
            waiting_ranks=verdict.waiting,
            since=verdict.since,
            cause=verdict.cause,
            summary=describe(verdict, job, now),
            advice=advice_for(verdict, job),
            evidence=tuple(evidence_of(verdict, job, now)),
        )

    def gpu_states(self, now: float, job: JobState) -> dict[int, str]:
        """How each rank's GPU stood lately, for who judges the whole job."""
        return {
            rank: reading.state
            for rank, reading in self._joined.gpus.read(now, job, job.last_progress()).items()
        }

    def not_checked(self, job: JobState) -> Iterable[NotChecked]:
        if self._snapshot is not None:
            yield from _unproven(self._snapshot, job)
            return
        blind = [
            rank.rank
            for rank in job.alive_ranks()
            if rank.stack is None
            and rank.tree is not None
            and job.started_at is not None
            and rank.tree_at - rank.found_at > 30.0
        ]
        if blind and not job.failed_sources:
            yield NotChecked(
                f"hang class of {rank_words(blind)}",
                "no Python stack could be read yet",
                "run `diag dump --all-ranks` to see the reason",
            )


class _Said:
    """The hang that was said last, as long as nothing but children and files stirred since, and those only
    for a moment."""

    def __init__(self) -> None:
        self._verdict: Verdict | None = None
        self._stirs = (_NEVER, _NEVER)  # the first and the last of those that followed each other

    def keep(self, verdict: Verdict | None) -> None:
        self._verdict = verdict
        if verdict is None:
            self._stirs = (_NEVER, _NEVER)

    def standing(self, now: float, job: JobState) -> Verdict | None:
        """That hang; None where there was none, or what stirs is work: also a save that writes in bursts, as
        long as none of its pauses would be called a hang."""
        if self._verdict is None:
            return None
        first, last = self._stirs
        moved = [rank.last_moved(CHANNELS) for rank in job.alive_ranks()]
        stirred = max([*moved, job.save_moved_at or 0.0, last_printed(self._verdict, job, now)])
        if stirred > max(last, self._verdict.since):
            apart = stirred - last > min(_PAUSE_SECONDS, patience(job, self._verdict))
            self._stirs = first, last = stirred if apart else first, stirred
        return None if last - first >= _STIRRED_SECONDS else self._verdict


def judge(
    now: float, job: JobState, joined: Joined | None = None, said: Verdict | None = None
) -> Verdict | None:
    """None while the job moves, might still move, or is not a job yet. `said`: the hang that was told of it."""
    if job.cluster.nodes and now - max(job.told_moves()[0], job.log_moved_at or 0.0) < STEADY_SECONDS:
        return None  # as all ranks asked one by one would come to
    alive = job.alive_ranks()
    lost = tuple(rank.rank for rank in alive if job.cluster.is_lost(rank, now))
    if job.cluster.nodes:
        gone = set(lost)
        alive = [rank for rank in alive if rank.rank not in gone and not job.cluster.has_left(rank)]
    if job.returncode is not None or job.interrupted_at is not None or not alive:
        return None
    dead = [rank for rank in job.ranks.values() if rank.exit is not None and rank.exit.exit_code != 0]
    since = max([rank.last_moved(STRONG) for rank in alive] + [job.log_moved_at or 0.0])
    folder = job.save_moved_at or 0.0  # written by other nodes too, whose ranks and IO are not seen here
    weak_since = max([rank.last_moved(CHANNELS) for rank in alive] + [since, folder])
    quiet = now - weak_since
    if said is not None and since <= said.since:
        quiet, since = now - said.since, said.since
    elif quiet < STEADY_SECONDS:
        ceiling = _BUSY_WITHOUT_PROGRESS.get(job.phase, _BUSY_WITHOUT_PROGRESS_SECONDS)
        if now - since < ceiling or job.phase in ("data_prep", "model_load", "compile", "ckpt_save"):
            return None
        quiet = now - since
    else:
        since = weak_since
    if not _well_seen(alive, now, quiet):
        return None
    standing = {
        rank.rank: "blind" if _blind(rank, now) and not rank.stopped else standing_of(rank) for rank in alive
    }
    verdict: Verdict | None = blame(job, alive, dead, standing, since, lost)
    if joined is not None and verdict is not None:
        verdict = joined.join(verdict, now, job, standing)
    if verdict is not None:
        verdict = _held_up_by_memory(verdict, alive)
    if verdict is None or may_be_idle(job, alive, verdict):
        return None
    if said is not None and (since, verdict.klass, verdict.culprits) == (
        said.since,
        said.klass,
        said.culprits,
    ):
        return verdict
    verdict = replace(verdict, since=max(verdict.since, last_printed(verdict, job, now)))
    return verdict if now - verdict.since >= patience(job, verdict) else None


def _held_up_by_memory(verdict: Verdict, alive: list[RankState]) -> Verdict:
    """Ranks that the kernel holds up to save memory stand anywhere, mostly in a collective: that is not what
    is wrong."""
    causes = {rank.rank: cause for rank in alive if (cause := waits_for(rank))}
    starved = tuple(causes)
    if not starved or verdict.klass in ("resource_wait", "stopped", "peer_lost"):
        return verdict
    waiting = others(tuple(rank.rank for rank in alive), starved)
    return replace(
        verdict,
        klass="resource_wait",
        culprits=starved,
        waiting=waiting,
        cause=causes[starved[0]],
        confidence=Confidence.MEDIUM,
        blamed_child=None,
        collectives=None,
    )


def judge_snapshot(now: float, job: JobState, snapshot: SnapshotTaken, joined: Joined) -> Verdict | None:
    """One moment that somebody captured: no time passes in it. Hung is what the evidence shows to stand
    still: by its own times (log, watchdog, GPUs, recorder), or by stacks that are equal twice. One that names
    nobody needs the former."""
    alive = job.alive_ranks()
    if job.returncode is not None or job.interrupted_at is not None or not alive:
        return None
    if any(rank.moved.get("stack", 0.0) > snapshot.began for rank in alive):
        return None  # two stacks of the moment differ: it moves
    dead = [rank for rank in job.ranks.values() if rank.exit is not None and rank.exit.exit_code != 0]
    standing = {rank.rank: standing_of(rank) for rank in alive}
    seen = [rank for rank in alive if standing[rank.rank] != "blind"]
    first = blame(job, seen or alive, dead, standing, snapshot.began)
    if not dead and seen:
        first = replace(
            first, waiting=tuple(sorted({*first.waiting, *(r.rank for r in alive)} - {*first.culprits}))
        )
    verdict = joined.join(first, now, job, standing, once=True)
    if verdict is None or (not verdict.waiting and not _explains_itself(verdict)):
        return None
    silent = snapshot.silent_seconds or 0.0
    twice = all(rank.stack_samples >= _SNAPSHOT_SAMPLES for rank in seen) and bool(seen)
    if undecided(verdict) and silent < STEADY_SECONDS:
        return None
    if silent < STEADY_SECONDS and not twice and not _tells_by_itself(verdict, standing):
        return None
    confidence = verdict.confidence
    if silent < STEADY_SECONDS and verdict.klass != "peer_lost":
        confidence = lowered(confidence) if twice else Confidence.LOW
    if len(seen) + len(dead) < max(job.world_size, len(job.ranks)):
        confidence = lowered(confidence)
    return replace(verdict, confidence=confidence, seconds=silent, since=now - silent)


def _unproven(snapshot: SnapshotTaken, job: JobState) -> Iterator[NotChecked]:
    seen = [rank for rank in job.alive_ranks() if rank.stack is not None]
    once = any(rank.stack_samples < _SNAPSHOT_SAMPLES for rank in seen)
    if (
        snapshot.final
        and once
        and (snapshot.silent_seconds or 0.0) < STEADY_SECONDS
        and job.returncode is None
    ):
        yield NotChecked(
            "whether the job stands still",
            "there is one stack of a rank, and nothing with times",
            "take `py-spy dump` of each rank a second time some seconds later, and put it beside the first",
        )


def _tells_by_itself(verdict: Verdict, standing: dict[int, str]) -> bool:
    """One stack of each rank, and no times: only where the recorder has a call that some did not come to, or
    where one is blocked in what training does not pass through in a moment while all others seen wait for it.
    """
    if verdict.collectives is not None or verdict.klass in ("peer_lost", "stopped"):
        return True
    waiting = [standing[rank] for rank in verdict.waiting if standing.get(rank, "blind") != "blind"]
    return verdict.klass in _BLOCKED_FOR_LONG and bool(waiting) and all(word in WAITS for word in waiting)


def _explains_itself(verdict: Verdict) -> bool:
    """Blocked in something that is no state of a training that goes on, whoever else waits."""
    return verdict.klass not in ("unknown", "peer_not_joined")


def wants_closer_look(now: float, job: JobState) -> bool:
    """Whether samples should come faster and include children: progress is overdue, though nothing is proven."""
    if job.returncode is not None or not any(rank.alive for rank in job.ranks.values()):
        return False
    overdue = max(5.0, 2.0 * (job.step_p95() or 0.0))
    # A rank that spins in a wait looks busy until its stack was seen twice: the log knows better when it is
    # late.
    reporting = job.phase == "steady" and job.line_seconds and job.log_moved_at is not None
    if reporting and now - (job.log_moved_at or now) > max(5.0, 3.0 * max(job.line_seconds)):
        return True
    return now - job.last_progress() > overdue or any(rank.stopped for rank in job.ranks.values())


def _blind(rank: RankState, now: float) -> bool:
    """Its stack was never read, or cannot be read any more: what it was is no evidence of what it is."""
    return rank.stack is None or now - rank.stack_at > _STALE_SECONDS + rank.told_every


def _well_seen(alive: list[RankState], now: float, quiet: float) -> bool:
    """Enough independent looks during the silence: a verdict needs eyes, not only silence."""
    for rank in alive:
        late = rank.told_every  # of another node the last digest is known
        if rank.tree is None or now - rank.tree_at > 15.0 + late:
            return False  # /proc itself was not read lately: diag is starved, not the job
        if rank.stopped:
            continue
        if _blind(rank, now):
            if quiet < _BLIND_SECONDS:
                return False
        elif rank.stack_samples < _SAMPLES or now - rank.stack_at > 30.0 + late:
            return False
    return True
