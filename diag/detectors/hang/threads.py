"""The thread of a rank that a verdict speaks of, by name."""

from __future__ import annotations

from diag.state.rank_view import RankView


def name_judged(rank: RankView) -> str:
    """ "main thread", or "thread trainer" where another trains."""
    if not rank.thread:
        return "main thread"
    judged = rank.judged
    return f"thread {judged.name or judged.thread_id}" if judged is not None else f"thread {rank.thread}"
