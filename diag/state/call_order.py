"""Which call a rank was due to make, by the order in which it made its calls before. Pure.

Training repeats itself: after the same calls comes the same one. Whoever has come to another call, while its peers wait
in the one that was due, has gone past it; two ranks whose calls were never in one order show no such thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diag.model.observations import CollectiveEntry, FlightRecorder
from diag.model.observations.collectives import CALLS_KEPT
from diag.state.collective_fronts import Front, kind_of

_LEAST_ALIKE = 3  # calls before it that must be the same
_MOST_ALIKE = 32
_MOST_PEERS = 8  # of each rank, held against what they called before
_MOST_CALLS = 2000  # of a rank that are looked through


@dataclass(frozen=True, slots=True)
class Passed:
    """A call that was due on a rank which is in another one. `seen_next`: it has made the call that it is in before, after
    the one that was due. `resized`: it may be the one that was due, with another number of elements than before.
    `in_later_round`: it is due by the loop that all are in, not by what the rank called before."""

    rank: int
    front: Front
    seen_next: bool
    resized: bool = False
    in_later_round: bool = False


def passed_calls(
    fronts: Sequence[Front], dumps: Mapping[int, FlightRecorder], ranks: Iterable[int]
) -> list[Passed]:
    """Of each of these ranks, which wait in calls of their own, the one of `fronts` that it was due to be in. Where its
    peers there were due to be elsewhere too, it is the order that changes, from one step to the next."""
    found = []
    for rank in ranks:
        due, calls = _due(dumps.get(rank))
        front = next((one for one in fronts if due and _is_due(one, rank, due, calls[-1])), None)
        if not due or front is None:
            continue
        resized = rank not in front.missing and due.op == calls[-1].op
        if not any(_strayed(dumps.get(peer), resized) for peer in _there(front, rank)):
            after = calls[calls.index(due) + 1 : -1]
            found.append(Passed(rank, front, kind_of(calls[-1]) in map(kind_of, after), resized))
    return found


def _there(front: Front, rank: int) -> Sequence[int]:
    if rank in front.missing:
        return front.waiting[:_MOST_PEERS]
    return [peer for item in front.signatures if rank not in item.ranks for peer in item.ranks[:_MOST_PEERS]]


def _strayed(dump: FlightRecorder | None, by_size: bool) -> bool:
    due, calls = _due(dump)
    if due is None or (by_size and kind_of(due) != kind_of(calls[-1])):
        return due is not None
    return (due.backend, due.group, due.op) != (calls[-1].backend, calls[-1].group, calls[-1].op)


def _due(dump: FlightRecorder | None) -> tuple[CollectiveEntry | None, Sequence[CollectiveEntry]]:
    """What came, in its history, where it waits now; and its calls up to the one that it waits in."""
    calls = _whole_order(dump) if dump is not None else ()
    at = next((place for place, call in enumerate(calls) if call.pending), 0)
    before = _alike(calls, at)
    return (None if before is None else calls[before]), calls[: at + 1]


def _is_due(front: Front, rank: int, due: CollectiveEntry, made: CollectiveEntry) -> bool:
    """Peers of the rank wait in it, and it is not what the rank has called."""
    if (front.backend, front.group) != (due.backend, due.group) or front.is_p2p:
        return False
    if rank in front.missing:
        return front.op == due.op
    there = (made.backend, made.group, made.seq) == (front.backend, front.group, front.seq)
    if not there or kind_of(made) == kind_of(due):
        return False
    others = [item for item in front.signatures if rank not in item.ranks and item.op == due.op]
    if made.op == due.op:
        others = [item for item in others if item.sizes == (due.input_sizes or due.output_sizes)]
    return bool(others)


def _whole_order(dump: FlightRecorder) -> Sequence[CollectiveEntry]:
    """All its calls from where on none of a group is left out: of each group only the last ones are kept."""
    calls = [call for call in dump.entries[-_MOST_CALLS:] if call.op != "coalesced"]
    places: dict[tuple[str, str, bool], list[int]] = {}
    for place, call in enumerate(calls):
        places.setdefault((call.backend, call.group, call.is_p2p), []).append(place)
    return calls[max((of[0] for of in places.values() if len(of) >= CALLS_KEPT), default=0) :]


def _alike(calls: Sequence[CollectiveEntry], at: int) -> int | None:
    """The place of the call that came when the most of those before it were as they are before `at`. None where other
    calls came after as many, or nearly: of a loop that goes round as often as it likes nothing is due."""
    kinds = [kind_of(call) for call in calls[:at]]
    lengths = {place: _common(kinds, place, at) for place in range(1, at)}
    most = max(lengths.values(), default=0)
    if most < _LEAST_ALIKE:
        return None
    least = most if most == _MOST_ALIKE else most // 2 + 1
    places = [place for place, alike in lengths.items() if alike >= least]
    came = {(calls[place].backend, calls[place].group, calls[place].op) for place in places}
    return places[-1] if len(came) == 1 else None


def _common(kinds: Sequence[tuple[object, ...]], one: int, other: int) -> int:
    """How many calls before these two places are alike."""
    alike = 0
    while alike < min(one, _MOST_ALIKE) and kinds[one - 1 - alike] == kinds[other - 1 - alike]:
        alike += 1
    return alike
