"""How often each rank has made the call of its loop, by its recorder, against how many rounds of that loop it has been through:
of two sides whose calls do not fit together, the one that has made a call too many, or left one out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from diag.detectors.hang.partings import counter_of, head_of, led_past, parted_in, path_of
from diag.detectors.hang.verdict import Verdict, format_who, others
from diag.model import Confidence
from diag.model.observations import Block, CallHistory, CollectiveEntry, Frame
from diag.state.collective_fronts import Front, kind_of
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path

_LEAST_ROUNDS = 5  # ours: of fewer a number of calls that is a multiple of them shows little
_MOST_RANKS = 64
# `for step in range(1, n):`, `for i in range(n):`, `for i, batch in enumerate(loader):`
_ARGUMENT = r"(?:[^,()]|\([^()]*\))+"
_FROM = re.compile(
    rf"for \w+(?: in range\((?:(?P<first>\d+), )?{_ARGUMENT}\)|, .* in enumerate\({_ARGUMENT}(?:, (?P<start>\d+))?\)):$"
)


@dataclass(frozen=True, slots=True)
class _Round:
    """The how-manyth of its loop two ranks are in: `first` at a line that comes before that of `further`."""

    first: RankView
    further: RankView
    number: int
    loop: Block
    frame: Frame  # of `first`, in the function with the loop


def with_counted_calls(verdict: Verdict, job: JobView) -> Verdict:
    found = verdict.collectives
    front = found.front if found is not None else None
    if verdict.cause not in ("calls_differ", "call_skipped") or front is None or len(front.signatures) != 2:
        return verdict
    sides = [tuple(one.ranks) for one in front.signatures]
    everyone = tuple(sorted({*sides[0], *sides[1]}))
    if {*everyone} != {*verdict.everyone} or len(everyone) > _MOST_RANKS:
        return verdict
    ranks = [job.ranks.known(side) for side in sides]
    round_ = _round(ranks[0], ranks[1], job) or _round(ranks[1], ranks[0], job)
    if round_ is None:
        return verdict
    first, further = sides if round_.first.rank in sides[0] else sides[::-1]
    made = _made(front, round_.first)
    if made is None:
        return verdict
    counts = {rank.rank: _count(front, made, rank) for side in ranks for rank in side}
    known = {side: {counts[rank] for rank in side} for side in (first, further)}
    if any(len(one) != 1 or None in one for one in known.values()):
        return verdict
    before, through = known[first].pop() or 0, known[further].pop() or 0
    culprits = _irregular(first, before, further, through, round_.number)
    if culprits is None or (culprits is further and verdict.cause == "call_skipped"):
        return verdict  # which says it as well
    op = f"{made.op} {[*made.input_sizes[0]] if made.input_sizes else ''}".strip()
    head = head_of(round_.loop, round_.frame.file, job.run.cwd)
    words = (
        f"in round {round_.number} of {head} {format_who(first, '[has|have]')} begun {op} {before + 1} times, and "
        f"{format_who(further, '[has|have]')} made it {through} times and come further"
    )
    if culprits is first:
        cause, more = "call_too_often", next(_handlers(round_.first, round_.frame, job), "")
    else:
        past = led_past(round_.further, first, job)
        cause, more = verdict.cause, past.text if past is not None else ""
    words += f"; {more}" if more else ""
    return replace(
        verdict, cause=cause, culprits=culprits, waiting=others(everyone, culprits), confidence=Confidence.MEDIUM,
        words=words, parted=False, asked=None,
    )  # fmt: skip


def _irregular(
    first: tuple[int, ...], before: int, further: tuple[int, ...], through: int, rounds: int
) -> tuple[int, ...] | None:
    """Who has not made the call equally often in each round. `before`: how often the side that is about to make it in this
    round had done so; `through`: the side that has come by there."""
    by_further, rest = divmod(through, rounds)
    by_first, left = divmod(before, rounds - 1)
    too_many = by_further > 0 and not rest and before >= by_further * rounds
    too_few = by_first > 0 and not left and through < by_first * rounds
    if too_many == too_few:
        return None
    return first if too_many else further


def _round(first: Sequence[RankView], further: Sequence[RankView], job: JobView) -> _Round | None:
    """Where all of the latter have come to a later line of one round of a loop, which no other is around, than all of the
    former."""
    if not first or not further:
        return None
    found: list[_Round] = []
    for one in first:
        for other in further:
            forked = parted_in(one, other)
            if forked is None:
                return None
            here, there = path_of(one.judged)[forked], path_of(other.judged)[forked]
            places = job.program.at(here), job.program.at(there)
            outer = (
                place for at in path_of(one.judged)[:forked] if (place := job.program.at(at)) is not None
            )
            if (
                here.line >= there.line
                or None in places
                or any(b.is_loop for each in outer for b in each.around)
            ):
                return None
            loops = [[b for b in place.around if b.is_loop] for place in places if place is not None]
            if [[b.line for b in each] for each in loops] != [[loops[0][0].line]] * 2 if loops[0] else True:
                return None
            numbers = {
                round_of(loops[0][0], rank, frame, job) for rank, frame in ((one, here), (other, there))
            }
            number = next(iter(numbers))
            if len(numbers) > 1 or number is None or number < _LEAST_ROUNDS:
                return None
            found.append(_Round(one, other, number, loops[0][0], here))
    return found[0] if len({(one.number, one.loop.line) for one in found}) == 1 else None


def round_of(loop: Block, rank: RankView, frame: Frame, job: JobView) -> int | None:
    """The how-manyth round of it the rank is in, or was in last; None where its counter was not read."""
    head, name = _FROM.match(loop.text), counter_of(loop)
    read = job.program.variables(rank.rank, rank.placement.pid)
    values = {
        variable.name: variable.text
        for one in (read.frames if read is not None else ())
        if not one.called and (one.file, one.function) == (frame.file, frame.function)
        for variable in one.variables
    }
    if head is None or not values.get(name, "").isdecimal():
        return None
    return int(values[name]) - int(head["first"] or head["start"] or 0) + 1


def _made(front: Front, rank: RankView) -> CollectiveEntry | None:
    """The call that it waits in."""
    entries = rank.recorder.entries if rank.recorder is not None else ()
    return next((one for one in entries if _is_of(one, front) and one.seq == front.seq and one.pending), None)


def _is_of(entry: CollectiveEntry, front: Front) -> bool:
    return (entry.backend, entry.group, entry.is_p2p) == (front.backend, front.group, front.is_p2p)


def _count(front: Front, made: CollectiveEntry, rank: RankView) -> int | None:
    """How often it had made such a call before that of the front; None where not all its calls are known."""
    history: CallHistory | None = rank.calls
    group = next(
        (
            one
            for one in (history.groups if history is not None else ())
            if (one.backend, one.name) == (front.backend, front.group)
        ),
        None,
    )
    numbers = [seq for seq, _ in group.calls] if group is not None else []
    if group is None or numbers != [*range(1, front.seq + 1)]:
        return None
    wanted = kind_of(made)
    return sum(kind_of(group.kinds[kind]) == wanted for _, kind in group.calls[:-1])


def _handlers(rank: RankView, frame: Frame, job: JobView) -> Iterator[str]:
    """What takes another way through the functions below the loop, where an exception is caught: there a call may be made
    again."""
    path = path_of(rank.judged)
    for one in reversed(path[path.index(frame) :]):
        place = job.program.at(one)
        for leave in place.leaves if place is not None else ():
            if leave.under.kind == "except" and place is not None:
                tried = f" of `{leave.under.deciding[0]}`" if leave.under.deciding else ""
                head = f"`{leave.under.text}` ({format_path(place.file, job.run.cwd)}:{leave.under.line})"
                yield f"{one.function} takes another way at {head}{tried}: see how often that makes the call"
