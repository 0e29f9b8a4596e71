"""Whether ranks of a silent job still print something new: then they move, and the job with them.

Of a rank that waits for others in a call it does not count: other threads of it print then, a watchdog or a
monitor of memory.
"""

from __future__ import annotations

from diag.detectors.hang.rank_wait import WAITS, classify_rank
from diag.detectors.hang.verdict import Verdict
from diag.state.printed import PRINTED, WROTE
from diag.state.view import JobView

# Ours: where the log shows steps, so long of other lines is no training; nor is it, of lines that diag cannot
# see, any progress for sure. Without either what is printed is all that is known of a job.
_NO_STEPS_SECONDS = 600.0
# Ours: where other ranks wait in a call for who prints. A loop of tries prints each of them; an evaluation that takes
# longer does hold the others up.
_HELD_UP_SECONDS = 120.0


def last_printed(verdict: Verdict, job: JobView, now: float) -> float:
    """When one of them did last; 0 where that is no evidence. Where all wait alike and nothing but their
    stacks says so, each may be on its way: a step that is one long call shows no other line."""
    held_up = bool(verdict.culprits) and any(
        classify_rank(job.ranks[number]) in WAITS for number in verdict.waiting if number in job.ranks
    )
    if held_up and now - verdict.since >= _HELD_UP_SECONDS:
        return 0.0
    ranks = [job.ranks[number] for number in (*verdict.culprits, *verdict.waiting) if number in job.ranks]
    if verdict.culprits or verdict.collectives is not None or verdict.klass != "unknown":
        ranks = [rank for rank in ranks if classify_rank(rank) not in (*WAITS, "stopped")]
    for_long = now - verdict.since >= _NO_STEPS_SECONDS
    channels = [PRINTED] * (not for_long or job.iteration is None) + [WROTE] * (not for_long)
    return max((rank.last_moved(channels) for rank in ranks), default=0.0)
