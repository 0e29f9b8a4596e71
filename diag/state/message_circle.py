"""Sends and receives that wait for each other in a circle, and who of these ranks has gone on too early. Pure.

A send returns when its peer receives. In a circle of ranks that each wait for the next one's other call, none returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diag.model.observations import Exchange


@dataclass(frozen=True, slots=True)
class MessageCircle:
    """`ranks` in the order in which each waits for the next; `turned` are those of them to blame, all where that is
    not known. `behind` wait for one of them directly."""

    ranks: tuple[int, ...]
    behind: tuple[int, ...]
    turned: tuple[int, ...]
    exchanges: Mapping[int, Exchange]


def find_circle(exchanges: Mapping[int, Exchange]) -> MessageCircle | None:
    """Of ranks that wait in one call each. The circle that the most others wait for, where there are several."""
    unmet = {rank: one for rank, one in exchanges.items() if not _met(rank, one, exchanges)}
    found: list[MessageCircle] = []
    for first in sorted(unmet):
        ranks = _circle(first, unmet)
        if ranks:
            behind = tuple(
                rank for rank, one in sorted(unmet.items()) if rank not in ranks and one.peer in ranks
            )
            found.append(MessageCircle(ranks, behind, turned(ranks, behind, unmet), unmet))
    return max(found, key=lambda one: len(one.behind), default=None)


def _met(rank: int, call: Exchange, exchanges: Mapping[int, Exchange]) -> bool:
    other = exchanges.get(call.peer)
    return other is not None and other.peer == rank and other.sends != call.sends and other.tag == call.tag


def _circle(first: int, unmet: Mapping[int, Exchange]) -> tuple[int, ...]:
    """The circle that `first` is in, and is the lowest rank of; empty where it is in none."""
    ranks = [first]
    while (peer := unmet[ranks[-1]].peer) in unmet and peer not in ranks:
        ranks.append(peer)
    return tuple(ranks) if peer == first and first == min(ranks) and len(ranks) > 1 else ()


def turned(ranks: Sequence[int], behind: Sequence[int], exchanges: Mapping[int, Exchange]) -> tuple[int, ...]:
    """Who has made one call fewer, or one more, than the others of a pipeline expect.

    Of two stages that wait for each other one is still in the forward pass (it sends up or receives from below), the other
    in the backward pass: one of them has miscounted. Whoever waits for either of them has counted too: it is in the pass
    of the one that is right. All of them where nobody tells, or two contradict each other, or where sends do not wait.
    """
    if len(ranks) != 2 or any(exchanges[rank].queues for rank in (*ranks, *behind)):
        return tuple(sorted(ranks))
    forward = [rank for rank in ranks if _goes_up(rank, exchanges[rank])]
    if len(forward) != 1:
        return tuple(sorted(ranks))
    votes = {_blamed(rank, min(ranks), max(ranks), exchanges) for rank in behind}
    if (min(ranks),) in votes and exchanges[min(ranks)].sends:
        votes = {(min(ranks),)}  # who waits for the upper one has its messages
    return votes.pop() if len(votes) == 1 else tuple(sorted(ranks))


def _blamed(rank: int, lower: int, upper: int, exchanges: Mapping[int, Exchange]) -> tuple[int, ...]:
    if exchanges[lower].sends:
        # Both send. The upper one has a gradient to pass down, so who is above it was given every activation: the lower
        # one offers one too many. Where the last stage sends, and who is below waits for gradients, the lower one passes
        # on what it was given, and the last stage took one too few.
        if exchanges[rank].peer == upper:
            return (lower,)
        return (lower, upper) if _goes_up(rank, exchanges[rank]) else (upper,)
    # Both receive: the lower one a gradient, the upper one an activation. Who is in the forward pass expects, or offers,
    # one more activation, as the upper one does.
    return (lower,) if _goes_up(rank, exchanges[rank]) else (upper,)


def _goes_up(rank: int, call: Exchange) -> bool:
    return call.sends == (call.peer > rank)
