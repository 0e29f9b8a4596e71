"""What happened in an attempt of the job that is over: the launcher has started its ranks again since."""

from __future__ import annotations

from collections.abc import Sequence

from diag.state.view import JobView


def is_earlier(ranks: Sequence[int], at: float, job: JobView) -> bool:
    """Each of these ranks had another process then, which is gone, and has a new one."""
    before = {rank.rank for rank in job.ranks.past}
    known = job.ranks.known(ranks)
    return 0 < len(known) == len(ranks) and all(rank.rank in before and rank.found_at > at for rank in known)


def attempt_of(ranks: Sequence[int], at: float, job: JobView) -> str:
    """The words for that, which follow a clause; empty where it was in this attempt, or nothing tells."""
    return ", in an earlier attempt of the job" if is_earlier(ranks, at, job) else ""
