"""Is the job hung, or slow, compiling, saving, preprocessing? If hung: which rank, in what, and who waits for
it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from diag.detectors.hang.agents import waiting_agents
from diag.detectors.hang.at_rest import with_nobody_sending, with_service_at_rest, with_work
from diag.detectors.hang.attribution import attribute_hang
from diag.detectors.hang.catalogue import catalogue
from diag.detectors.hang.corroborate import EvidenceFusion
from diag.detectors.hang.counted_calls import with_counted_calls
from diag.detectors.hang.counted_files import with_counted_files
from diag.detectors.hang.counted_rounds import with_counted_rounds
from diag.detectors.hang.endless_waits import with_endless_wait
from diag.detectors.hang.event_loop import with_tasks
from diag.detectors.hang.evidence import evidence_of
from diag.detectors.hang.exceptions import with_exceptions
from diag.detectors.hang.far_ends import with_far_ends
from diag.detectors.hang.first_difference import with_first_difference
from diag.detectors.hang.generations import with_generations
from diag.detectors.hang.grounds import grounds_of
from diag.detectors.hang.groups import with_groups
from diag.detectors.hang.held import held_by_tracers, is_held
from diag.detectors.hang.kernel_waits import last_fed, with_kernel_waits
from diag.detectors.hang.known import known_troubles
from diag.detectors.hang.last_words import with_ended_ranks
from diag.detectors.hang.let_go import with_message_let_go
from diag.detectors.hang.lock_circles import with_lock_circle
from diag.detectors.hang.lock_files import with_lock_file
from diag.detectors.hang.messages import advice_for, describe
from diag.detectors.hang.moment import began_still, proven, unproven, with_unseen
from diag.detectors.hang.outlived import outlived_ranks
from diag.detectors.hang.partings import path_of
from diag.detectors.hang.patience import STEADY_SECONDS, may_be_idle, patience
from diag.detectors.hang.pipeline import state_of
from diag.detectors.hang.polled_calls import with_polled_calls
from diag.detectors.hang.program_lines import with_program_lines
from diag.detectors.hang.rank_wait import PEER_WAITS, WAITS
from diag.detectors.hang.ray import waiting_driver, with_ray, without_idle
from diag.detectors.hang.reached_limits import with_reached_limit
from diag.detectors.hang.rounds import with_miscounted
from diag.detectors.hang.rpc import with_calls_of_rpc
from diag.detectors.hang.shared_output import with_shared_output, writes_where_all_do
from diag.detectors.hang.silence import (
    RESTED_SECONDS,
    held_since,
    is_blind,
    last_printed,
    rested_since,
    silent_since,
)
from diag.detectors.hang.store_keys import with_store_keys
from diag.detectors.hang.text_causes import with_text
from diag.detectors.hang.time_limits import with_deadline, with_known_end, with_told_sleep
from diag.detectors.hang.unordered_calls import with_unordered_calls
from diag.detectors.hang.unread_answers import with_unread_answer
from diag.detectors.hang.variables import with_variables
from diag.detectors.hang.verdict import Verdict, others
from diag.detectors.memory.stall import waits_for
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import Observation, SnapshotTaken
from diag.state.rank_view import CHANNELS, RankView
from diag.state.view import JobView
from diag.text.units import format_ranks

__all__ = ["HangDetector", "Verdict", "judge", "wants_closer_look"]

# A hang that was reported ends when the job itself moves. Children and files may stir in it: torch's compile
# workers give up their pool after a minute without work (seen on H200, torch 2.11). Only what goes on for so
# long is work.
_STIRRED_SECONDS = 45.0
_PAUSE_SECONDS = 60.0  # ours: of helpers, what stirs more seldom does not work for the job, however long a hang takes to be reported
_TOGETHER_SECONDS = 0.5  # ours: stacks of one round of samples
_NEVER = -1e9
_LOOK = "run `diag dump --all-ranks` to see the reason"
# Classes of culprits that move and yet hold the others up; data preparation, compilers and saves are known to take long.
_ELSEWHERE = ("peer_not_joined", "rendezvous", "unknown", "data_loading", "lock_deadlock", "gil_deadlock")

# Classes of what may hold all ranks up alike. Of those that are stopped, or short of something, that is seen of each.
_ALIKE = (
    "unknown", "data_loading", "preprocess_wait", "compile_wait", "checkpoint_io", "lock_deadlock", "gil_deadlock", "teardown",
    "collective_order_deadlock",
)  # fmt: skip


class HangDetector:
    """Meaning: no rank of the job has made progress for longer than its phase allows.

    Evidence: the main thread's stack of each rank (unchanged over samples), CPU, IO and memory of the rank
    and its children, the job's log and what each rank prints, process states, the Flight Recorder, GPU
    utilisation and power, what runs on their SMs, NCCL's and the watchdog's lines. Two independent channels
    must stand still. A folder of evidence captured by hand is one moment: what it shows of the time before
    decides, and the confidence is lower.

    What to do: the advice follows the class; `diag dump --all-ranks` shows all stacks merged.

    False alarms: a rank that waits for a service outside of the job by other means than HTTP (HTTP is given
    a minute and a half) looks like peer_not_joined. A rank that alone is in a kernel that waits for other GPUs by
    itself (symmetric memory, NVSHMEM) looks like kernel_does_not_end. A rank that prints nothing but the same
    text again, or a time that passes, counts as silent.
    """

    name = "hang"
    listens = (SnapshotTaken, *EvidenceFusion.listens)

    def __init__(self) -> None:
        catalogue()
        self._joined = EvidenceFusion()
        self._last = _LastReported()
        self._judged: tuple[float, Verdict | None] | None = None  # as of the last tick
        self._released_at = _NEVER  # when what could not end by itself was last found over
        self._snapshot: SnapshotTaken | None = None
        self._reported: Finding | None = None  # of the verdict before, as long as that stands

    def observe(self, at: float, fact: Observation) -> None:
        """Of all else that this detector needs the job state keeps track."""
        if isinstance(fact, SnapshotTaken):
            self._snapshot = fact
        else:
            self._joined.observe(at, fact)

    def tick(self, now: float, job: JobView) -> None:
        """What stirs in a hang is judged by the hang that was reported before it."""
        if self._snapshot is None and is_held(job):
            self._judged = (now, self._last.verdict)
        elif self._snapshot is None:
            last = self._last.after_stirs(now, job)
            verdict = judge(now, job, self._joined, last.standing)
            if not _is_proven(verdict):
                if _is_proven(last.verdict) and (verdict is None or verdict.busy):
                    self._released_at = now
                if verdict is not None and verdict.busy and now - self._released_at < STEADY_SECONDS:
                    # The others have waited for long, but whoever they wait for has just gone on.
                    verdict = None
            self._last, self._judged = last.followed_by(verdict), (now, verdict)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if self._judged is not None and self._judged[0] == now:
            verdict = self._judged[1]
        else:
            reported = self._last.after_stirs(now, job).standing
            verdict = judge(now, job, self._joined, reported, self._snapshot)
        if verdict is not None and self._snapshot is None and _moved_since(verdict, job):
            # Whoever held the others up has just gone on, and they may have too: what is reported of one moment would
            # be put together from two.
            if self._reported is not None and self._reported.ranks == verdict.culprits:
                yield self._reported
            return
        self._reported = None if verdict is None else self._finding(verdict, job, now)
        if self._reported is not None:
            yield self._reported

    def _finding(self, verdict: Verdict, job: JobView, now: float) -> Finding:
        alike = _are_alike(verdict, job)
        sure = verdict.grounds and (verdict.seconds is None or verdict.seconds >= STEADY_SECONDS)
        known = tuple(known_troubles(verdict, job))
        return Finding(
            id="hang" if verdict.grounds else "held-up",
            subject=JOB,
            klass=verdict.klass,
            severity=Severity.CRITICAL if sure else Severity.WARNING,
            grounds=verdict.grounds,
            confidence=verdict.confidence,
            ranks=() if alike else verdict.culprits,
            waiting_ranks=tuple(sorted(verdict.everyone)) if alike else verdict.waiting,
            since=verdict.since,
            cause=verdict.cause,
            summary=describe(verdict, job, now),
            advice=" ".join([advice_for(verdict, job), *(f"{one}." for one in known)]),
            evidence=(
                *evidence_of(verdict, job, now),
                *(Evidence("known_trouble", one, now) for one in known),
            ),
        )

    def gpu_states(self, now: float, job: JobView) -> dict[int, str]:
        """How each rank's GPU stood lately, for who judges the whole job."""
        return {
            rank: reading.state
            for rank, reading in self._joined.gpus.read(now, job, job.last_progress()).items()
        }

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        if self._snapshot is not None:
            yield from unproven(self._snapshot, job)
            return
        yield from held_by_tracers(job)
        blind = [
            rank.rank
            for rank in job.alive_ranks()
            if rank.stack is None
            and rank.tree is not None
            and job.run.started_at is not None
            and rank.tree_at - rank.found_at > 30.0
        ]
        if blind and not job.sources.failed:
            yield NotChecked(
                f"hang class of {format_ranks(blind)}",
                "no Python stack could be read yet",
                f"<live>{_LOOK}</live>",
            )


@dataclass(frozen=True, slots=True)
class _LastReported:
    """The hang that was reported last. `stirs`: the first and the last of the moves of children and files that
    followed each other since."""

    verdict: Verdict | None = None
    stirs: tuple[float, float] = (_NEVER, _NEVER)

    def followed_by(self, verdict: Verdict | None) -> _LastReported:
        return _LastReported() if verdict is None else _LastReported(verdict, self.stirs)

    def after_stirs(self, now: float, job: JobView) -> _LastReported:
        if self.verdict is None:
            return self
        first, last = self.stirs
        moved = [rank.last_moved(CHANNELS) for rank in job.alive_ranks()]
        stirred = max([*moved, job.saves.moved_at or 0.0, last_printed(self.verdict, job, now)])
        if stirred <= max(last, self.verdict.since):
            return self
        apart = stirred - last > min(_PAUSE_SECONDS, patience(job, self.verdict))
        return _LastReported(self.verdict, (stirred if apart else first, stirred))

    @property
    def standing(self) -> Verdict | None:
        """That hang; None where there was none, or what stirs is work: also a save that writes in bursts, as
        long as none of its pauses would be called a hang."""
        first, last = self.stirs
        return None if last - first >= _STIRRED_SECONDS else self.verdict


def judge(
    now: float,
    job: JobView,
    joined: EvidenceFusion,
    reported: Verdict | None = None,
    moment: SnapshotTaken | None = None,
) -> Verdict | None:
    """None while the job moves, might still move, or is not a job yet. `reported`: the hang that was reported of it.
    `moment`: all that there is was captured at one; else silence over time has to show that it stands still."""
    if (
        job.cluster.nodes
        and now - max(job.ranks.last_moves()[0], job.progress.log_moved_at or 0.0) < STEADY_SECONDS
    ):
        return None  # as all ranks asked one by one would come to
    if _is_over(job):
        return None
    if (found := waiting_agents(job) or outlived_ranks(job)) is not None and not moment:
        return _with_grounds(found, job, now) if now - found.since >= patience(job, found) else None
    if not moment and (found := waiting_driver(job, now)) is not None:
        return _with_grounds(found, job, now) if now - found.since >= patience(job, found) else None
    alive, lost = _taking_part(job, now)
    alive = without_idle(alive, job)
    if not alive:
        return None
    states = {
        rank.rank: "blind" if is_blind(rank, now) and not rank.stopped else state_of(rank, job)
        for rank in alive
    }
    states = with_polled_calls(states, alive)
    since = began_still(moment, alive) if moment else silent_since(now, job, alive, reported)
    busy = since is None and not moment
    held = None if moment else held_since(now, job, alive, states)
    if since is not None and held is not None:
        since = min(since, held)  # one that tries again may be found at one line for a while
    if busy:
        since = held
        if since is None and (since := rested_since(now, job, alive)) is not None:
            busy = False
            if not any(state in (*WAITS, "blind", "stopped") for state in states.values()):
                states = dict.fromkeys(states, "goes_round")
    if since is None:
        return None
    # What a person with a debugger held up did not stand still by itself.
    since += max((rank.held_by_tracer(since) for rank in alive), default=0.0)
    dead = _failed(job)
    seen = [rank for rank in alive if states[rank.rank] != "blind"]
    verdict = attribute_hang(job, (seen if moment else alive) or alive, dead, states, since, lost)
    if moment and seen and not dead:
        verdict = with_unseen(verdict, alive)
    found = joined.join(verdict, now, job, states, once=moment is not None)
    if found is None:
        return None
    verdict = with_endless_wait(with_kernel_waits(_held_up_by_memory(found, alive), job), job)
    verdict = with_known_end(with_service_at_rest(verdict, job), job, now)
    verdict = with_nobody_sending(with_work(verdict, job), job, now)
    verdict = with_unordered_calls(with_calls_of_rpc(with_tasks(verdict, job), job), job)
    verdict = with_generations(with_groups(verdict, states, job), job)
    verdict = with_message_let_go(with_miscounted(with_store_keys(verdict, job), job), job)
    verdict = with_counted_calls(with_variables(with_program_lines(verdict, job), job), job)
    verdict = with_lock_file(with_counted_rounds(with_first_difference(verdict, job), job), job)
    verdict = with_text(with_counted_files(with_reached_limit(verdict, job), job), job)
    verdict = with_deadline(with_told_sleep(with_lock_circle(verdict, job), job, now), job, now)
    verdict = with_unread_answer(with_exceptions(verdict, job), job)
    verdict = with_shared_output(with_ended_ranks(verdict, job), job)
    verdict = with_ray(with_far_ends(verdict, joined.outcries, job), job)
    if busy and verdict.klass not in _ELSEWHERE:
        return None  # work that diag knows, and that goes on
    verdict = replace(verdict, busy=verdict.busy or busy)
    if moment:
        missing = len(seen) + len(dead) < max(job.world_size, len(job.ranks))
        shown = proven(verdict, moment, seen, missing, states, now)
        return None if shown is None else _with_grounds(shown, job, now)
    if may_be_idle(job, alive, verdict):
        return None
    if reported is not None and _is_same(reported, verdict, since):
        return _with_grounds(verdict, job, now, reported)
    verdict = replace(
        verdict, since=max(verdict.since, last_printed(verdict, job, now), last_fed(verdict, job))
    )
    return _with_grounds(verdict, job, now) if now - verdict.since >= patience(job, verdict) else None


def _with_grounds(verdict: Verdict, job: JobView, now: float, reported: Verdict | None = None) -> Verdict:
    """Grounds that were reported of the same silence stay: a reading that is missing now does not unmake them. Of a
    rank that moves they have to be found again: it may have been released."""
    kept = reported.grounds if reported is not None and not verdict.busy else ()
    grounds = tuple(grounds_of(verdict, job, now)) or kept
    return replace(verdict, grounds=grounds)


def _moved_since(verdict: Verdict, job: JobView) -> bool:
    """A busy culprit came to where it is after those who wait for it were last looked at."""
    if not verdict.busy:
        return False
    culprits = job.ranks.known(verdict.culprits)
    waiting = job.ranks.known(verdict.waiting)
    came = max((rank.moved.get("stack", 0.0) for rank in culprits), default=0.0)
    return any(rank.stack_at < came - _TOGETHER_SECONDS and not rank.told_every for rank in waiting)


def _taking_part(job: JobView, now: float) -> tuple[list[RankView], tuple[int, ...]]:
    """Ranks that live, and the numbers of those of which no hub reports any more."""
    alive = job.alive_ranks()
    lost = tuple(rank.rank for rank in alive if job.cluster.is_lost(rank, now))
    if job.cluster.nodes:
        gone = set(lost)
        alive = [rank for rank in alive if rank.rank not in gone and not job.cluster.has_left(rank)]
    return alive, lost


def _is_over(job: JobView) -> bool:
    return job.returncode is not None or job.interrupted_at is not None


def _failed(job: JobView) -> list[RankView]:
    return [rank for rank in job.ranks.values() if rank.exit is not None and rank.exit.exit_code != 0]


def _are_alike(verdict: Verdict, job: JobView) -> bool:
    """All ranks of the job wait at one line, or in a circle of messages: none of them is to blame more than another. Of a
    node's ranks the job hub judges."""
    ranks = job.ranks.known(verdict.culprits)
    if verdict.cause == "key_of_each_process" or writes_where_all_do(verdict, job):
        return True
    if verdict.waiting or len(ranks) < 2 or len(ranks) < max(job.world_size, len(job.ranks)):
        return False
    if verdict.is_of("of_all"):
        return True
    held = verdict.klass in _ALIKE or verdict.is_of("asks_one")
    return held and len({tuple(path_of(rank.judged)) for rank in ranks}) == 1


def _is_proven(verdict: Verdict | None) -> bool:
    return verdict is not None and any(ground.kind != "overdue" for ground in verdict.grounds)


def _is_same(reported: Verdict, verdict: Verdict, since: float) -> bool:
    return (since, verdict.klass, verdict.culprits) == (reported.since, reported.klass, reported.culprits)


def _held_up_by_memory(verdict: Verdict, alive: list[RankView]) -> Verdict:
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


def _one_waits(now: float, job: JobView, overdue: float) -> bool:
    """A rank has been in one and the same wait for peers for long, though others move: the recorder can tell whether
    calls are made meanwhile. Where they were, it is asked again after twice the time."""
    if now - (job.progress.log_moved_at or 0.0) < overdue:
        return False
    return any(
        rank.reading is not None
        and rank.reading.activity in PEER_WAITS
        and _can_be_proven(rank, now)
        and now - max(rank.stack_since, rank.last_moved(("calls", "cpu")))
        > max(overdue, 15.0, 2.0 * rank.came_through)
        for rank in job.alive_ranks()
    )


def _can_be_proven(rank: RankView, now: float) -> bool:
    """It is at rest, or its recorder may answer. Of one that spins and has none, no closer look tells more."""
    at_rest = rank.ran_at > 0.0 and now - rank.ran_at > STEADY_SECONDS
    return at_rest or rank.recorder is not None or rank.asked_at < 0.0


def wants_closer_look(now: float, job: JobView) -> bool:
    """Whether samples should come faster and include children: progress is overdue, though nothing is proven."""
    if job.returncode is not None or not any(rank.alive for rank in job.ranks.values()):
        return False
    overdue = max(5.0, 2.0 * (job.progress.step_p95() or 0.0))
    # A rank that spins in a wait looks busy until its stack was seen twice: the log knows better when it is
    # late.
    reporting = job.phase == "steady" and job.progress.line_seconds and job.progress.log_moved_at is not None
    if _one_waits(now, job, overdue):
        return True
    if rested_since(now + RESTED_SECONDS / 2, job, job.alive_ranks()) is not None:
        return True
    if reporting and now - (job.progress.log_moved_at or now) > max(
        5.0, 3.0 * max(job.progress.line_seconds)
    ):
        return True
    return now - job.last_progress() > overdue or any(rank.stopped for rank in job.ranks.values())
