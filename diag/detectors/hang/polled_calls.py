"""Ranks that have begun a call without waiting in it, and ask again and again whether it is over (`while not
work.is_completed(): time.sleep(0.1)`): no frame of theirs is in a call, but their recorder has one that others have not
come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diag.state.printed import PRINTED
from diag.state.rank_view import CHANNELS, RankView

_ELSEWHERE = "outside"
_BUT_STACKS = (*(channel for channel in CHANNELS if channel != "stack"), PRINTED)


def with_polled_calls(states: Mapping[int, str], alive: Sequence[RankView]) -> dict[int, str]:
    """ "joined" for a rank that does no more than look, while its call waits for one that is elsewhere."""
    elsewhere = [rank for rank in alive if states[rank.rank] == _ELSEWHERE]
    if len(elsewhere) < 2:
        return dict(states)  # nobody to wait, or nobody to wait for
    begun = {rank.rank for rank in elsewhere if polled_since(rank) is not None}
    busy = [rank for rank in elsewhere if rank.rank not in begun]
    polls = {
        rank.rank for rank in elsewhere if rank.rank in begun and any(_waits_for(rank, one) for one in busy)
    }
    return {number: "joined" if number in polls else state for number, state in states.items()}


def polled_since(rank: RankView) -> float | None:
    """Since when it has done no more than look, and begun no other call; None where no call of it is pending, or it works."""
    recorder, (first, last) = rank.recorder, rank.called_times
    if (
        recorder is None
        or rank.tree is None
        or not any(one.pending and not one.is_p2p for one in recorder.entries)
    ):
        return None
    worked = max(rank.worked_at, rank.last_moved(_BUT_STACKS))
    return max(first, worked) if last > max(first, worked) else None


def _waits_for(rank: RankView, other: RankView) -> bool:
    """The other one's recorder has not come to a call that is pending on this one."""
    if rank.recorder is None or other.recorder is None or other.reading is None:
        return False
    if other.reading.activity.waits_for_peers:
        return False
    made = {(group, name): seq for group, name, seq in other.called}
    pending = (one for one in rank.recorder.entries if one.pending and not one.is_p2p)
    return any(0 < made.get((one.backend, one.group), 0) < one.seq for one in pending)
