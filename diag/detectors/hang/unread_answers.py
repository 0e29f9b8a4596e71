"""An answer that nobody reads: a rank has sent something to another one and waits for its next word, while that one has gone on
to a call of the process group without reading it."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.own_logs import BEGIN
from diag.detectors.hang.rank_wait import WAITS, classify_rank
from diag.detectors.hang.verdict import Verdict
from diag.state.view import JobView

_RECEIVES = ("unix_receive", "tcp_receive")


def with_unread_answer(verdict: Verdict, job: JobView) -> Verdict:
    """By the kernel: what lies unread at the other end. Unchanged where that rank may be about to read it."""
    first = verdict.chain.steps[0].wait if verdict.chain is not None else None
    if first is None or first.kind not in _RECEIVES or not first.peer_unread_bytes:
        return verdict
    if verdict.origin not in ("", BEGIN):
        return verdict
    numbers = {other.rank for other in first.others if not other.below} - {*verdict.culprits}
    number = next(iter(numbers), None)
    peer = job.ranks.get(number) if number is not None and len(numbers) == 1 else None
    if peer is None or peer.rank not in verdict.waiting or classify_rank(peer) not in WAITS:
        return verdict
    advice = (
        f"Rank {peer.rank} has gone on without reading what rank {verdict.culprits[0]} has sent it, which may be the answer to its "
        "last request, or an error: let it read that, and raise an error that it tells of, before the call it is in."
    )
    return replace(verdict, origin=f"{verdict.origin} {advice}".lstrip())
