"""Where the calls of a group were first not the same on all its ranks, by all that their recorders keep. Pure.

Whoever makes a call more, or leaves one out, mostly waits for nobody: its next calls are paired with others' until two of
them do not fit. So ranks' sequences are laid beside each other with as few calls left over as there can be, and the first of
these is it. Ranks that make a call at lines of their own, as the one that sends does, leave none over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from diag.model.observations import CallHistory, CallSequence, CollectiveEntry, Frame
from diag.state.own_code import own_frames

_LEAST_BEFORE = 3  # ours: calls that agree, where the first ones are no longer kept
_MOST_LEFT_OVER = 12  # ours: of sequences that differ more nothing is said
_MOST_CALLS = 4096  # of a group, the newest
_MOST_RANKS = 64
_MOST_WAYS = 8  # ours: of ranks that made their calls in more ways nothing is said; each is laid beside the most common one
_SKIPPED, _ADDED, _PAIRED = 1, 2, 0  # steps of an alignment

_Key = tuple[object, ...]
_Calls = list[tuple[int, int]]  # numbers, and places in `kinds`


@dataclass(frozen=True, slots=True)
class ApartCall:
    """One side's call at that number. `stack`: the program's own frames, outermost first; empty where not known."""

    ranks: tuple[int, ...]
    call: CollectiveEntry
    stack: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class CallsApart:
    """`seq`: the number in the group of the first call that is not the same; all before it are, from `since` on, or were meant
    to differ. `odd`: those who made a call there that nobody had made before it, or after one that it never came after, where
    that is known of one side only, or are fewer; else the first side, in the order of their ranks. `is_known`: which it is.
    `ahead`: how many calls `odd` has made more than the others (fewer: below 0) at the same places of the program, at least
    where `is_least`; 0 where it may be more or fewer."""

    backend: str
    group: str
    desc: str
    ranks: tuple[int, ...]  # whose calls were compared
    since: int
    seq: int
    odd: ApartCall
    rest: ApartCall
    is_known: bool
    ahead: int
    is_least: bool

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Of both, from where their ways part."""
        at = parted(self.odd.stack, self.rest.stack)
        return (*self.odd.stack[at:], *self.rest.stack[at:])


def parted(one: Sequence[Frame], other: Sequence[Frame]) -> int:
    """The first frame that is not the same in both."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(one), len(other)))


def first_apart(histories: Mapping[int, CallHistory]) -> CallsApart | None:
    """In the group in which that is found; None where no calls are left over, or nothing shows where they began to be."""
    groups: dict[tuple[object, ...], dict[int, CallSequence]] = {}
    for rank, history in sorted(histories.items())[:_MOST_RANKS]:
        for one in history.groups:
            groups.setdefault((one.backend, one.name, one.members), {})[rank] = one
    found = (_in_group(of) for of in groups.values() if len(of) > 1)
    return next((one for one in found if one is not None), None)


def _in_group(of: Mapping[int, CallSequence]) -> CallsApart | None:
    calls = {rank: [*one.calls[-_MOST_CALLS:]] for rank, one in of.items()}
    if any(not made or any(b[0] != a[0] + 1 for a, b in pairwise(made)) for made in calls.values()):
        return None  # begun anew under its name, or the parts of a coalesced call, which stand in any order
    since = max(made[0][0] for made in calls.values())
    calls = {rank: [one for one in made if one[0] >= since] for rank, made in calls.items()}
    if not all(calls.values()):
        return None
    lined = all(one.stacks for one in of.values())
    keys = {rank: _keys(of[rank], made, lined=lined) for rank, made in calls.items()}
    alike: dict[tuple[_Key, ...], list[int]] = {}
    length = min(map(len, keys.values()))
    for rank, made in keys.items():
        alike.setdefault(tuple(made[:length]), []).append(rank)
    if not 2 <= len(alike) <= _MOST_WAYS:
        return None
    classes = sorted(alike.values(), key=len, reverse=True)
    reference = classes[0]
    found: list[tuple[int, list[int], int, bool]] = []
    for ranks in classes[1:]:
        apart = _aligned(keys[ranks[0]], keys[reference[0]])
        if apart is not None:
            found.append((apart[0], ranks, *apart[1:]))
    if not found:
        return None
    at, ranks, ahead, is_least = min(found, key=lambda one: one[0])
    if since > 1 and at < _LEAST_BEFORE:
        return None
    theirs, ours = keys[reference[0]], keys[ranks[0]]
    sides = [
        tuple(sorted(rank for rank, made in keys.items() if at < len(made) and made[at] == call[at]))
        for call in (ours, theirs)
    ]
    odd = _odd(ours, theirs, at)
    if len(sides[0]) != len(sides[1]):
        odd = 0 if len(sides[0]) < len(sides[1]) else 1
    if odd == 1 or (odd is None and sides[1] < sides[0]):
        sides.reverse()
        ahead = -ahead
    one, other = (_side(of, calls, side, at) for side in sides)
    first = next(iter(of.values()))
    return CallsApart(
        first.backend, first.name, first.desc, tuple(sorted(of)), since, since + at, one, other, odd is not None, ahead, is_least
    )  # fmt: skip


def _keys(one: CallSequence, calls: _Calls, *, lined: bool) -> list[_Key]:
    """By the operation and the lines that led to it; where these are not known, by its tensors. By those only then: their
    sizes may be each rank's own."""
    kinds: list[_Key] = [
        (kind.op, *own_frames(one.stacks[at])) if lined else (kind.op, kind.input_sizes, kind.output_sizes, kind.dtypes)
        for at, kind in enumerate(one.kinds)
    ]  # fmt: skip
    return [kinds[kind] for _, kind in calls]


def _side(
    of: Mapping[int, CallSequence], calls: Mapping[int, _Calls], ranks: tuple[int, ...], at: int
) -> ApartCall:
    one = of[ranks[0]]
    kind = calls[ranks[0]][at][1]
    return ApartCall(ranks, one.kinds[kind], tuple(own_frames(one.stacks[kind])) if one.stacks else ())


def _odd(one: Sequence[_Key], other: Sequence[_Key], at: int) -> int | None:
    """Whose call there is out of its order, 0 or 1: it was never made so far and the other's was; or it never came after the
    call before, and the other's did. None where that is so of neither, or both."""
    before = {*one[:at], *other[:at]}
    known = [made[at] in before for made in (one, other)]
    if known[0] != known[1]:
        return known.index(False)
    if not at:
        return None
    followed = {*pairwise(one[:at]), *pairwise(other[:at])}
    in_order = [(made[at - 1], made[at]) in followed for made in (one, other)]
    return in_order.index(False) if in_order[0] != in_order[1] else None


def _aligned(one: Sequence[_Key], other: Sequence[_Key]) -> tuple[int, int, bool] | None:
    """The place of the first call that differs and belongs to one left over, how many more the one has made, and whether that
    is only the least. None where none has to be left over: what differs may be meant to.

    Both wait at their ends, so that these fit only if they are the same; what follows the end of one, the other has not
    come to yet.
    """
    begin = parted_at(one, other)
    meant = _meant(one, other)
    ours, theirs = [*one[begin:]], [*other[begin:]]
    costs, ways = _table(ours, theirs, meant)
    ends = {
        (i, j): cost for (i, j), cost in costs.items() if (i == len(ours) or j == len(theirs)) and cost <= _MOST_LEFT_OVER
    }  # fmt: skip
    if not ends:
        return None
    least = min(ends.values())
    best = [place for place, cost in ends.items() if cost == least]
    shifts = {i - j for i, j in best}
    if 0 in shifts:
        return None
    firsts = {_first_left_over(place, costs, ways) for place in best}
    at = begin + min(firsts)
    while at < min(len(one), len(other)) and one[at] == other[at]:
        at += 1  # of calls that are the same any may be the one left over
    if at >= min(len(one), len(other)) - 1:
        return None
    one_way = len({shift > 0 for shift in shifts}) == 1
    return at, min(shifts, key=abs) if one_way else 0, len(shifts) > 1


def parted_at(one: Sequence[_Key], other: Sequence[_Key]) -> int:
    """The first place at which they differ."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(one), len(other)))


def _meant(one: Sequence[_Key], other: Sequence[_Key]) -> set[tuple[_Key, _Key]]:
    """Calls that differ, of which each was always paired with the other, more than once. What both wait in counts not."""
    pairs = [*zip(one, other, strict=False)][:-1]
    times = Counter(pairs)
    by_one: dict[_Key, set[_Key]] = {}
    by_other: dict[_Key, set[_Key]] = {}
    for ours, theirs in times:
        by_one.setdefault(ours, set()).add(theirs)
        by_other.setdefault(theirs, set()).add(ours)
    return {
        (ours, theirs)
        for (ours, theirs), count in times.items()
        if ours != theirs and count > 1 and len(by_one[ours]) == len(by_other[theirs]) == 1
    }


def _table(
    ours: Sequence[_Key], theirs: Sequence[_Key], meant: set[tuple[_Key, _Key]]
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """How many calls differ or are left over at least, of the first `i` and `j`, and by which step one comes there."""
    costs = {(0, 0): 0}
    ways: dict[tuple[int, int], int] = {}
    for i in range(len(ours) + 1):
        for j in range(max(0, i - _MOST_LEFT_OVER), min(len(theirs), i + _MOST_LEFT_OVER) + 1):
            if not i and not j:
                continue
            choices = []
            if i and j and (i - 1, j - 1) in costs:
                pair = (ours[i - 1], theirs[j - 1])
                last = i == len(ours) and j == len(theirs)
                fits = pair[0] == pair[1] or (pair in meant and not last)
                choices.append((costs[i - 1, j - 1] + (not fits), _PAIRED))
            if i and (i - 1, j) in costs:
                choices.append((costs[i - 1, j] + 1, _ADDED))
            if j and (i, j - 1) in costs:
                choices.append((costs[i, j - 1] + 1, _SKIPPED))
            if choices:
                cost, way = min(choices)
                if cost <= _MOST_LEFT_OVER:
                    costs[i, j], ways[i, j] = cost, way
    return costs, ways


def _first_left_over(
    end: tuple[int, int], costs: Mapping[tuple[int, int], int], ways: Mapping[tuple[int, int], int]
) -> int:
    """The place of the first step that pairs nothing, on the way to that end, or of those that differ just before it."""
    i, j = end
    first, near = min(i, j), False
    while (i, j) != (0, 0):
        way, cost = ways[i, j], costs[i, j]
        i, j = i - (way != _SKIPPED), j - (way != _ADDED)
        near = way != _PAIRED or (near and cost > costs[i, j])
        if near:
            first = min(i, j)
    return first
