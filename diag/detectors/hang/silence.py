"""How long a job that is watched has stood still, as far as enough of it was seen."""

from __future__ import annotations

from diag.detectors.hang.patience import STEADY_SECONDS
from diag.detectors.hang.verdict import Verdict
from diag.state.rank_view import CHANNELS, STRONG, RankView
from diag.state.view import JobView

# Children or IO that keep moving without any step, stack or log line moving (a side process, a service).
_BUSY_WITHOUT_PROGRESS = {"steady": 600.0}
_BUSY_WITHOUT_PROGRESS_SECONDS = 7200.0  # DLRover's ceiling for the first step
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
    else:
        ceiling = _BUSY_WITHOUT_PROGRESS.get(job.phase, _BUSY_WITHOUT_PROGRESS_SECONDS)
        if now - since < ceiling or job.phase in ("data_prep", "model_load", "compile", "ckpt_save"):
            return None
    return since if _well_seen(alive, now, now - since) else None


def is_blind(rank: RankView, now: float) -> bool:
    """Its stack was never read, or cannot be read any more: what it was is no evidence of what it is."""
    return rank.stack is None or now - rank.stack_at > _STALE_SECONDS + rank.told_every


def _well_seen(alive: list[RankView], now: float, quiet: float) -> bool:
    """Enough independent looks during the silence: a verdict needs eyes, not only silence."""
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
