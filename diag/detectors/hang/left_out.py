"""Who has left a call out, of ranks that are in different rounds of one loop: whoever is a round further has come by the
call that the others wait in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diag.detectors.hang.partings import Parting, ahead_of, led_past
from diag.detectors.hang.verdict import Verdict, blaming, others
from diag.model import Confidence
from diag.state.call_order import Passed
from diag.state.collective_fronts import Front
from diag.state.view import JobView

_CAUSES = ("call_skipped", "groups_in_opposite_order")
_MOST_RANKS = 16  # ours: each is held against all others


def with_call_left_out(verdict: Verdict, job: JobView) -> tuple[Verdict, Parting | None]:
    """Of calls that wait for each other in a circle; with what led past the one left out. What those further on are in is a
    call of a later round, which is not due yet on those behind them, however often it came next there.

    Unchanged where more ranks are further on than are behind: then those behind may have made a call too many. So may
    they where it is the first of its group, or nothing is seen that leads past it.
    """
    found = verdict.collectives
    if found is None or found.kind != "order_cycle" or verdict.cause not in _CAUSES:
        return verdict, None
    everybody = tuple(sorted(verdict.everyone))
    for rank in job.ranks.known(everybody[:_MOST_RANKS]):
        ahead = ahead_of(rank, others(everybody, (rank.rank,)), job)
        if ahead is None:
            continue
        behind = others(everybody, ahead.ranks)
        front = _front_of(behind, found.fronts)
        way = led_past(job.ranks[ahead.ranks[0]], behind, job)
        if (
            {*ahead.behind} != {*behind}
            or len(ahead.ranks) > len(behind)
            or front is None
            or front.seq < 2
            or not {*ahead.ranks} <= {*front.missing}
            or way is None
        ):
            return verdict, None
        passed = tuple(Passed(one, front, seen_next=False, in_later_round=True) for one in ahead.ranks)
        told = replace(found, culprits=ahead.ranks, passed=passed)
        return blaming(
            verdict,
            ahead.ranks,
            "collective_mismatch",
            "call_skipped",
            Confidence.MEDIUM,
            collectives=told,
        ), way
    return verdict, None


def _front_of(ranks: Sequence[int], fronts: Sequence[Front]) -> Front | None:
    """The collective that all of these wait in, for others."""
    return next(
        (one for one in fronts if not one.is_p2p and one.missing and {*ranks} <= {*one.waiting}), None
    )
