"""How long a job that is watched has stood still, as far as enough of it was seen; or how long ranks have waited for
others that do move."""

from __future__ import annotations

from diag.detectors.hang.patience import STEADY_SECONDS
from diag.detectors.hang.polled_calls import polled_since
from diag.detectors.hang.rank_wait import WAITS, classify_rank
from diag.detectors.hang.verdict import Verdict
from diag.state.printed import PRINTED, WROTE
from diag.state.rank_view import CHANNELS, STRONG, RankView
from diag.state.view import JobView

# Children or IO that keep moving without any step, stack or log line moving (a side process, a service).
_BUSY_WITHOUT_PROGRESS = {"steady": 600.0, "training": 600.0}
_BUSY_WITHOUT_PROGRESS_SECONDS = 7200.0  # DLRover's ceiling for the first step
_AT_WORK_SECONDS = 120.0  # ours: then it is reported who holds the others up, whatever else moves in it
_OF_WORK = ("io", "child_io", "memory")
_BUT_STACKS = tuple(channel for channel in CHANNELS if channel != "stack")
RESTED_SECONDS = 120.0  # ours: as long as a service may let all ranks wait
_STALE_SECONDS = 60.0  # twelve times the usual period, thirty times that under suspicion
_BLIND_SECONDS = 120.0  # silence that is believed without a stack
_SAMPLES = 3  # equal stacks needed before a rank may be blamed by its stack


def silent_since(now: float, job: JobView, alive: list[RankView], reported: Verdict | None) -> float | None:
    """None while it moves, might still move, or too little was seen of it. `reported`: the hang that was reported of it."""
    since = max([rank.last_moved(STRONG) for rank in alive] + [job.progress.log_moved_at or 0.0])
    folder = job.saves.moved_at or 0.0  # written by other nodes too, whose ranks and IO are not seen here
    weak_since = max([rank.last_moved(CHANNELS) for rank in alive] + [since, folder])
    if reported is not None and since <= reported.since:
        since = reported.since
    elif now - weak_since >= STEADY_SECONDS:
        since = weak_since
    elif now - since < _BUSY_WITHOUT_PROGRESS.get(job.phase, _BUSY_WITHOUT_PROGRESS_SECONDS) or job.phase in (
        "data_prep",
        "model_load",
        "compile",
        "ckpt_save",
    ):
        return None
    return since if _well_seen(alive, now, now - since) else None


def held_since(now: float, job: JobView, alive: list[RankView], states: dict[int, str]) -> float | None:
    """Since when all ranks but those that are busy elsewhere have waited for peers, without a step or a call of the job.

    That a rank waits in one call, and not in the next of the same line, has to be proven: by the recorder, which has no
    new call in two readings, or by a main thread that takes no CPU and, where its switches can be read, never wakes.
    """
    waiting = [rank for rank in alive if states[rank.rank] in WAITS]
    busy = [rank for rank in alive if states[rank.rank] not in (*WAITS, "stopped", "blind")]
    if not waiting or not busy or len(waiting) + len(busy) < len(alive):
        return None
    in_calls = {rank.rank: _in_one_call_since(rank) for rank in waiting}
    polled = [rank for rank in waiting if in_calls[rank.rank] is None and classify_rank(rank) not in WAITS]
    began = [polled_since(rank) if rank in polled else in_calls[rank.rank] for rank in waiting]
    if None in began:
        return None
    seen = [rank for rank in waiting if rank not in polled]  # the others are at another line each time
    if not _well_seen(seen, now, now - max(filter(None, began))) or any(
        is_blind(rank, now) for rank in polled
    ):
        return None
    since = max(job.progress.log_moved_at or 0.0, *filter(None, began))
    if now - since >= (
        _AT_WORK_SECONDS if job.phase in _BUSY_WITHOUT_PROGRESS else _BUSY_WITHOUT_PROGRESS_SECONDS
    ):
        return since
    # What reads, writes or grows is work for a while: it may be a thread that has nothing to do with it. So is an
    # evaluation that prints how far it is.
    worked = max(rank.last_moved((PRINTED, *_OF_WORK)) for rank in busy)
    return max(since, job.saves.moved_at or 0.0, worked)


def rested_since(now: float, job: JobView, alive: list[RankView]) -> float | None:
    """Since when no rank has done more than to look, or ask, again and again: its stack moves, and nothing else of the job
    does. None for a while, and where too little was seen of it."""
    if job.cluster.nodes:
        return None  # of ranks of other nodes too little is known
    worked = max(max(rank.worked_at, rank.last_moved((*_BUT_STACKS, PRINTED))) for rank in alive)
    since = max(worked, job.progress.log_moved_at or 0.0, job.saves.moved_at or 0.0)
    if now - since < RESTED_SECONDS:
        return None
    seen = all(
        not is_blind(rank, now) and rank.tree is not None and now - rank.tree_at <= 15.0 for rank in alive
    )
    return since if seen else None


def _in_one_call_since(rank: RankView) -> float | None:
    moved = rank.last_moved(STRONG)
    first, last = rank.called_times
    if last > max(first, moved):
        return max(moved, min(first, rank.stack_since))
    if rank.recorder is not None or rank.tree is None or rank.tree_at <= rank.ran_at:
        return None
    # On a fast machine a call takes too little CPU for the kernel's ticks; the thread wakes for each of them.
    wakes = rank.tree.switches is not None and not rank.thread
    return max(moved, rank.ran_at, rank.asleep[0] if wakes else 0.0)


def is_blind(rank: RankView, now: float) -> bool:
    """Its stack was never read, or cannot be read any more: what it was is no evidence of what it is."""
    return rank.stack is None or now - rank.stack_at > _STALE_SECONDS + rank.told_every


def _well_seen(alive: list[RankView], now: float, quiet: float) -> bool:
    """Enough independent samples during the silence: a verdict needs more than silence."""
    for rank in alive:
        late = rank.told_every  # of another node the last digest is known
        if rank.tree is None or now - rank.tree_at > 15.0 + late:
            return False  # /proc itself was not read lately: diag is starved, not the job
        if rank.stopped:
            continue
        if is_blind(rank, now):
            if quiet < _BLIND_SECONDS:
                return False
        elif rank.stack_samples < _SAMPLES or now - rank.stack_at > 30.0 + late:
            return False
    return True


# --- what ranks print

# Ours: where the log shows steps, so long of other lines is no training; nor is it, of lines that diag cannot
# see, any progress for sure. Without either what is printed is all that is known of a job.
_NO_STEPS_SECONDS = 600.0
# Ours: where other ranks wait in a call for who prints. A loop of tries prints each of them; an evaluation that takes
# longer does hold the others up.
_HELD_UP_SECONDS = 120.0


def last_printed(verdict: Verdict, job: JobView, now: float) -> float:
    """When one of them last printed something new, so that it moves, and the job with it; 0 where that is no evidence.

    Of a rank that waits for others in a call it does not count: other threads of it print then, a watchdog or a monitor
    of memory. Where all wait alike and nothing but their stacks shows it, each may be on its way: a step that is one
    long call shows no other line.
    """
    held_up = bool(verdict.culprits) and any(
        classify_rank(rank) in WAITS for rank in job.ranks.known(verdict.waiting)
    )
    if held_up and now - verdict.since >= _HELD_UP_SECONDS:
        return 0.0
    ranks = job.ranks.known(verdict.everyone)
    if verdict.culprits or verdict.collectives is not None or verdict.klass != "unknown":
        ranks = [rank for rank in ranks if classify_rank(rank) not in (*WAITS, "stopped")]
    for_long = now - verdict.since >= _NO_STEPS_SECONDS
    channels = [PRINTED] * (not for_long or job.iteration is None) + [WROTE] * (not for_long)
    return max((rank.last_moved(channels) for rank in ranks), default=0.0)
