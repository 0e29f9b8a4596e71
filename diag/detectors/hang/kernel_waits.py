"""What the kernel says that a rank waits for, of a silence that lasts."""

from __future__ import annotations

from diag.state.rank_view import RankView
from diag.state.wait_chain import Chain, follow


def lasting_wait(rank: RankView, since: float) -> Chain | None:
    """Of its main thread, read after the silence began; None where it was not, or nothing may be read."""
    if rank.waits is None or rank.waits_at < since:
        return None
    chain = follow(rank.waits, rank.placement.pid)
    return None if chain is None or chain.steps[0].wait.kind == "unreadable" else chain
