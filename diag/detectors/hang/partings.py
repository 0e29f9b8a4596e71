"""Where two ranks came apart, as the program's text shows it: the condition that only one is under, or the loop that one
has left."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass

from diag.detectors.hang.verdict import format_who
from diag.model.observations import Block, Frame, Leave, ProgramPlace, ThreadStack
from diag.state.own_code import own_frames
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path

_CONDITIONS = ("if", "elif", "else")
_LOOPS = ("while", "for")
# As torch, transformers, accelerate, Lightning and people's own code call it.
OF_RANK = re.compile(
    r"rank|main_process|is_main|is_master|(?:global|process)_zero|is_leader|is_chief|coordinator", re.I
)
_NAME = re.compile(r"(?<![\w.'\"])[A-Za-z_][\w.]*")
_KEYWORDS = frozenset(keyword.kwlist)
# `for epoch in range(...):`, `for step, batch in enumerate(loader):`
_COUNTED = re.compile(r"for (\w+)(?: in range\(|,.* in enumerate\()")


@dataclass(frozen=True, slots=True)
class Parting:
    """`apart`: the ranks that are in the block named, or have left it; `others` are the rest of those compared.
    `for_good`: whoever is only behind, or has come through that block before, is not there. `kind`: loop where they left
    one, round where they had been round in it as often, rank where the condition asks for the rank's number, which decides
    alike each time."""

    text: str
    apart: tuple[int, ...]
    others: tuple[int, ...]
    for_good: bool
    kind: str = ""
    place: ProgramPlace | None = None  # in which the heads of what decided are
    heads: tuple[int, ...] = ()


def path_of(thread: ThreadStack | None) -> list[Frame]:
    """The program's own frames, outermost first."""
    return own_frames(thread.frames) if thread is not None else []


def head_of(block: Block, file: str, cwd: str) -> str:
    """`while not ready():` (train.py:7)"""
    other = "the else of " if block.kind == "else" else ""
    return f"{other}`{block.text}` ({format_path(file, cwd)}:{block.line})"


def parting(
    rank: RankView,
    everybody_else: Sequence[int],
    job: JobView,
    *,
    in_calls: bool,
    skipped: bool = False,
    in_order: bool = False,
) -> Parting | None:
    """Of this rank and the first one that is elsewhere. None where one is only behind, or the text was not read.

    `in_calls`: both are in calls of one number, so that neither has come through the other's line before. `skipped`: this
    one has gone past the call that the other is in. `in_order`: to the one that came next in each round before, so that it
    has not left a loop over the rounds early.
    """
    sides = _sides(rank, everybody_else, job)
    if sides is None:
        return None
    us, them = sides
    cwd = job.run.cwd
    level = in_calls or not _in_other_rounds(us, them, job)
    ways = [
        _left_out(us, them, cwd) if in_order and not _may_end_early(us, them, cwd) else None,
        _left_loop(us, them, job) if level else None,
        _left_loop(them, us, job) if level else None,
        _further_in(us, them, job),
        _under(us, them, cwd, for_good=in_calls),
    ]
    if in_calls:
        ways += [_under(them, us, cwd, for_good=True), _deeper(us, them, cwd), _deeper(them, us, cwd)]
    if skipped:
        ways.append(_left_out(us, them, cwd))
    return next((way for way in ways if way is not None), None)


def led_past(rank: RankView, everybody_else: Sequence[int], job: JobView) -> Parting | None:
    """What leads past the call of the first one that is elsewhere, which this rank has come by. None where nothing is seen
    that does."""
    sides = _sides(rank, everybody_else, job)
    return None if sides is None else _left_out(*sides, job.run.cwd)


def has_passed(rank: RankView, everybody_else: Sequence[int], job: JobView) -> bool:
    """Whether its line comes after that of the first one that is elsewhere, in the function where they came apart."""
    sides = _sides(rank, everybody_else, job)
    return sides is not None and sides[0].path[0].line > sides[1].path[0].line


@dataclass(frozen=True, slots=True)
class Ahead:
    """Ranks that are in a later round of a loop that all are in, and those `behind`: `text`: "`step` is 76 there and 75 here"."""

    ranks: tuple[int, ...]
    behind: tuple[int, ...]
    text: str


def ahead_of(
    rank: RankView, everybody_else: Sequence[int], job: JobView, *, came_by: bool = False
) -> Ahead | None:
    """By the counter of a loop in the function where they came apart. None where others may not have come by where this one
    is: a condition leads there whose values differ, or were not read; with `came_by` also where a way leads out before."""
    sides = _sides(rank, everybody_else, job)
    if sides is None:
        return None
    us, them = sides
    shared = {block.line for block in them.path[0].around}
    loop = next((one for one in us.path[0].around if one.line in shared and counter_of(one)), None)
    if loop is None:
        return None
    counter = counter_of(loop)
    ours, theirs = (_plain_values(side, job) for side in (us, them))
    here, there = ours.get(counter, ""), theirs.get(counter, "")
    if not (here.isdecimal() and there.isdecimal() and int(there) > int(here)):
        return None
    inner = [one for place in us.path[1:] for one in place.around]
    outer = [one for one in us.path[0].around if one.line > loop.line]
    names = {name for one in outer if one.kind in _CONDITIONS for name in _NAME.findall(one.text)} - {
        counter,
        *_KEYWORDS,
    }
    if any(one.kind in (*_CONDITIONS, "except") for one in inner) or any(
        one.kind == "except" for one in outer
    ):
        return None
    if any(name not in ours or ours[name] != theirs.get(name) for name in names):
        return None
    if came_by and any(_leads_past(place, loop.line if at == 0 else 0) for at, place in enumerate(us.path)):
        return None
    return Ahead(them.ranks, us.ranks, f"`{counter}` is {there} there and {here} here")


def parted_in(one: RankView, other: RankView) -> int | None:
    """The place in the path of the first of the function in which both are, at two lines of it."""
    ours, theirs = path_of(one.judged), path_of(other.judged)
    forked = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    if forked is None:
        return None
    here, there = ours[forked], theirs[forked]
    return forked if (here.file, here.function) == (there.file, there.function) else None


def round_before(rank: RankView, waiting: RankView, job: JobView) -> str:
    """The loop in a later round of which the other one is, which waits in a call for this one: at a line that this one has come
    by in its round, and so has made the call there. Empty where that does not follow: a condition or a loop within may have
    led past that line, or often to it."""
    forked = parted_in(rank, waiting)
    reading = waiting.reading
    if forked is None or reading is None or reading.activity is None or not reading.activity.waits_for_peers:
        return ""
    here, there = path_of(rank.judged)[forked], path_of(waiting.judged)[forked]
    ours, theirs = job.program.at(here), job.program.at(there)
    if ours is None or theirs is None or there.line >= here.line:
        return ""
    loop = next((one for one in theirs.around if one.is_loop), None)
    within = [one for one in theirs.around if loop is not None and one.line > loop.line]
    further = [one for frame in path_of(waiting.judged)[forked + 1 :] for one in _blocks(job, frame)]
    led = any(one.is_loop or one.kind in (*_CONDITIONS, "except") for one in (*within, *further))
    if loop is None or led or all(one.line != loop.line for one in ours.around):
        return ""
    return head_of(loop, there.file, job.run.cwd)


def _blocks(job: JobView, frame: Frame) -> Sequence[Block]:
    place = job.program.at(frame)
    return place.around if place is not None else ()


def _leads_past(place: ProgramPlace, since: int) -> bool:
    """Whether a way leads out before the line at which a rank is, and behind line `since`: past that line, or past the loop in
    which it is there."""
    own = next((one.line for one in place.around if one.kind == "while"), place.line)
    return any(since < leave.line < own for leave in place.leaves)


def _sides(rank: RankView, everybody_else: Sequence[int], job: JobView) -> tuple[_Side, _Side] | None:
    others = job.ranks.known(everybody_else)
    ours = path_of(rank.judged)
    for other in others:
        theirs = path_of(other.judged)
        pairs = enumerate(zip(ours, theirs, strict=False))
        forked = next((at for at, (one, two) in pairs if one != two), None)
        if forked is None:
            continue
        here, there = ours[forked], theirs[forked]
        if (here.file, here.function) != (there.file, there.function):
            return None
        with_us = (rank.rank, *(one.rank for one in others if path_of(one.judged) == ours))
        with_them = tuple(one.rank for one in others if path_of(one.judged) == theirs)
        us, them = (
            _Side(ranks, [place for frame in frames[forked:] if (place := job.program.at(frame)) is not None])
            for ranks, frames in ((with_us, ours), (with_them, theirs))
        )
        if not (us.path and them.path and us.path[0].line == here.line and them.path[0].line == there.line):
            return None
        return us, them
    return None


@dataclass(frozen=True, slots=True)
class _Side:
    """Ranks at one place, and their path from the function where they came apart to their innermost line."""

    ranks: tuple[int, ...]
    path: list[ProgramPlace]

    def verb(self, forms: str) -> str:
        return format_who(self.ranks, forms)


def counter_of(loop: Block) -> str:
    """The variable that counts its rounds; empty where it has none."""
    found = _COUNTED.match(loop.text)
    return found[1] if found is not None else ""


def _in_other_rounds(one: _Side, other: _Side, job: JobView) -> bool:
    """Of a loop that both are in, as the number shows that it counts: whoever is ahead has been through all of it."""
    shared = {block.line for block in other.path[0].around}
    names = [name for block in one.path[0].around if block.line in shared and (name := counter_of(block))]
    ours, theirs = (_counters(side, names, job) for side in (one, other))
    return any(ours[name] != theirs[name] for name in ours.keys() & theirs.keys())


def _counters(side: _Side, names: Sequence[str], job: JobView) -> dict[str, str]:
    return {
        name: text for name, text in _plain_values(side, job).items() if name in names and text.isdecimal()
    }


def _plain_values(side: _Side, job: JobView) -> dict[str, str]:
    """Of the function where they came apart, as they were read."""
    rank, place = job.ranks.get(side.ranks[0]), side.path[0]
    read = job.program.variables(rank.rank, rank.placement.pid) if rank is not None else None
    return {
        variable.name: variable.text
        for frame in (read.frames if read is not None else ())
        if not frame.called and (frame.file, frame.function) == (place.file, place.function)
        for variable in frame.variables
    }


def _left_loop(one: _Side, other: _Side, job: JobView) -> Parting | None:
    loop = _not_around(other.path[0], one.path[0])
    if loop is None or not loop.is_loop or one.path[0].line <= loop.last:
        return None
    place, cwd = other.path[0], job.run.cwd
    inside = other.verb("still [is|are]")
    left = f"{one.verb('[has|have]')} left the loop {head_of(loop, place.file, cwd)}, in which {inside}"
    if left_out := _round_left_out(one, other, loop, job):
        past = tuple(
            leave.under.line for leave in place.leaves if leave.word == "continue" and leave.loop == loop.line
        )
        return Parting(f"{left}; {left_out}", one.ranks, other.ranks, True, "round", place, past)
    text = left + ways_out(place, loop, cwd)
    return Parting(text, one.ranks, other.ranks, True, "loop", place, _deciding(place, loop))


def _deciding(place: ProgramPlace, loop: Block) -> tuple[int, ...]:
    """What a `with` chooses within the loop (to exchange gradients or not), the ways out of it, and its head."""
    inside = [block.line for block in place.around if block.kind == "with" and block.line > loop.line]
    ways = [
        leave.under.line
        for leave in place.leaves
        if leave.word != "continue" and loop.line < leave.line <= loop.last
    ]
    return (*inside, *ways, loop.line)


def _round_left_out(one: _Side, other: _Side, loop: Block, job: JobView) -> str:
    """Who has been round as often as those that are still at a line of the loop went round once by a `continue` before it."""
    name, place, cwd = counter_of(loop), other.path[0], job.run.cwd
    here, there = (_plain_values(side, job).get(name, "") for side in (one, other))
    heads = [
        f"{head_of(leave.under, place.file, cwd)} continues"
        for leave in place.leaves
        if leave.word == "continue" and leave.loop == loop.line and leave.line < place.line
    ]
    if not heads or here != there or not here.isdecimal() or ways_out(place, loop, cwd):
        return ""
    return f"`{name}` is {here} on either side, so that a round went past that call ({', '.join(heads[:2])})"


def _may_end_early(one: _Side, other: _Side, cwd: str) -> bool:
    """A loop that the other is still in, and this one is not: by its condition, or on a way out."""
    first = _not_around(other.path[0], one.path[0])
    loops = [(other.path[0], first)] if first is not None and first.is_loop else []
    loops += [(place, block) for place in other.path[1:] for block in place.around if block.is_loop]
    return any(loop.kind == "while" or ways_out(place, loop, cwd) for place, loop in loops)


def _under(one: _Side, other: _Side, cwd: str, *, for_good: bool) -> Parting | None:
    block = _not_around(one.path[0], other.path[0])
    if block is None or block.is_loop:
        return None
    head = head_of(block, one.path[0].file, cwd)
    text = f"{one.verb('[is|are]')} under {head}"
    if for_good:
        text += f", where {other.verb('[is|are]')} not"
    kind = _kind(block, one.path[0], other.path[0])
    return Parting(text, one.ranks, other.ranks, for_good, kind, one.path[0], (block.line,))


def _further_in(one: _Side, other: _Side, job: JobView) -> Parting | None:
    """Below a condition that asks only for the round, which the other, further on, has been under in that round as well: the
    condition in a function called there by which it came past."""
    block = _not_around(one.path[0], other.path[0])
    if block is None or block.kind != "if":
        return None
    shared = {loop.line for loop in other.path[0].around}
    counters = {counter_of(loop) for loop in one.path[0].around if loop.line in shared} - {""}
    here, there = (_counters(side, [*counters], job) for side in (one, other))
    read = {*_NAME.findall(block.text)} - _KEYWORDS
    if not read or not read <= here.keys() & there.keys():
        return None
    if not any(int(there[name]) > int(here[name]) for name in read):
        return None
    return _came_past(one, other, one.path[1:], job.run.cwd)


def _deeper(one: _Side, other: _Side, cwd: str) -> Parting | None:
    """In a function that the other has come through. Of a loop there, nobody is to say who was to go round once more."""
    if other.path[0].line <= one.path[0].line:
        return None
    return _came_past(one, other, one.path[1:], cwd)


def _came_past(one: _Side, other: _Side, path: Sequence[ProgramPlace], cwd: str) -> Parting | None:
    blocks = ((place, block) for place in path for block in reversed(place.around))
    for place, block in blocks:
        head = head_of(block, place.file, cwd)
        if block.is_loop:
            left = f"{other.verb('[has|have]')} left the loop {head}, in which {one.verb('still [is|are]')}"
            return Parting(
                left + ways_out(place, block, cwd), (), (), True, "", place, _deciding(place, block)
            )
        if block.kind in _CONDITIONS:
            text = f"{one.verb('[is|are]')} under {head}, which {other.verb('[has|have]')} passed by"
            kind = _kind(block, place, other.path[0])
            return Parting(text, one.ranks, other.ranks, True, kind, place, (block.line,))
    return None


def _kind(block: Block, place: ProgramPlace, other: ProgramPlace) -> str:
    """Of a condition on the rank. Where the other is in another branch of it, both were meant to make a call there."""
    around = {one.line for one in place.around}
    branches = any(one.kind in ("elif", "else") and one.line not in around for one in other.around)
    return "rank" if OF_RANK.search(block.text) and block.kind == "if" and not branches else ""


def _left_out(one: _Side, other: _Side, cwd: str) -> Parting | None:
    """Conditions that lead past the line of the other, which this one has skipped."""
    ways: list[tuple[ProgramPlace, Leave]] = []
    for depth, place in enumerate(other.path):
        if depth == 0 and one.path[0].line > place.line:
            continue  # in the function where they came apart it has passed that line itself
        words = ("continue",) if depth == 0 else ("return", "break", "continue")
        ways += [(place, leave) for leave in place.leaves if leave.word in words and leave.line < place.line]
    if not ways:
        return None
    heads = [f"{head_of(leave.under, place.file, cwd)} {leave.word}s" for place, leave in ways[:2]]
    text = f"what leads past that call: {', '.join(heads)}".replace("breaks", "breaks off")
    first = ways[0][0]
    lines = tuple(leave.under.line for place, leave in ways[:2] if place is first)
    return Parting(text, one.ranks, other.ranks, True, "", first, lines)


def _not_around(place: ProgramPlace, other: ProgramPlace) -> Block | None:
    """The outermost block of the one in which the other is not."""
    around = {block.line for block in other.around}
    blocks = (block for block in reversed(place.around) if block.kind in (*_CONDITIONS, *_LOOPS))
    return next((block for block in blocks if block.line not in around), None)


def ways_out(place: ProgramPlace, loop: Block, cwd: str) -> str:
    """Beside its end."""
    texts = [
        f"{head_of(leave.under, place.file, cwd)} {'returns' if leave.word == 'return' else 'breaks it off'}"
        for leave in place.leaves
        if loop.line < leave.line <= loop.last and (leave.word == "return" or leave.loop == loop.line)
        if leave.word != "continue"
    ]
    return f" ({', '.join(texts[:2])})" if texts else ""
