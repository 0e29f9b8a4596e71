"""Where ranks that came apart have the values from by which they did: the statements that lead from the condition or loop
shown to one that need not come to the same on all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from diag.detectors.hang.partings import OF_RANK, head_of, path_of
from diag.detectors.hang.reasons import loop_at
from diag.detectors.hang.rounds import loop_that_differs
from diag.detectors.hang.verdict import Asked, Verdict
from diag.model.observations import Frame, Link, Origin, ProgramPlace
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path, format_ranks

# What is said of each kind, and what is to be done. In this order one is taken.
_SAYS = {
    "unordered": "a set: one of texts each process has in an order of its own",
    "hash": "hash() and id() come to another number in each process",
    "random": "drawn from a generator that the whole process shares",
    "signal": "by the handler of a signal, which each process gets for itself",
    "counted": "",  # its condition is shown
    "clock": "each rank looks at its clock when it comes there",
    "data": "a number that each rank has from what it computed itself",
    "fallback": "",  # its handler is shown
    "file": "each rank looks for itself, when it comes there",
    "process": "what each process has of its own",
    "rank": "",  # the text names the rank
}
# Of a head that asks for it itself.
_DECIDES = {
    "hash": "hash() or id(), which come to another number in each process",
    "random": "a draw from a generator that the whole process shares",
    "clock": "the clock, which each rank looks at when it comes there",
    "data": "a number that each rank has from what it computed itself",
    "file": "what each rank finds when it looks there",
}
ADVICE = {
    "unordered": (
        "The order of a set of texts is that of their hashes, which each process makes anew: go over `sorted(...)` of it, or "
        "a list or dict that is filled in the same order everywhere."
    ),
    "hash": "Use a digest that is the same everywhere (hashlib, zlib.crc32), or let one rank choose and broadcast it.",
    "random": (
        "What all ranks must draw alike needs a generator of its own (`random.Random(seed)`, `generator=`), from which "
        "nothing else draws: one number more on one rank, and from then on the ranks differ."
    ),
    "signal": (
        "A signal reaches one process alone, or each at another moment: let nothing be decided by such a flag before it is the same "
        "on all ranks (all_reduce with MAX in every step)."
    ),
    "counted": (
        "What is counted as shown is not the same on all ranks once the condition there is not: count on every way through "
        "the loop, or by what all ranks share (the step), or broadcast the decision of the rank that made it."
    ),
    "clock": "Let one rank look at its clock and broadcast what it decides.",
    "data": (
        "Agree on that number before it decides anything: all_reduce it (a sum, a mean, a MAX), or broadcast the one of rank "
        "0."
    ),
    "fallback": (
        "What raises on one rank alone leaves it with another value than its peers have, and the handler shown says so to nobody: "
        "print there what was caught, with the rank and the file (one that is cut off, or missing), and let all ranks agree on what "
        "they go on with (the smallest step by all_reduce with MIN, or a broadcast)."
    ),
    "file": "Let one rank look, and broadcast what it found, to all in the same step.",
    "process": "Let one rank read it, and broadcast what it decides.",
    "caught": (
        "Whoever catches an exception around the calls that all ranks make leaves its peers waiting in them. Take part all the same "
        "(what can be used of the batch, or a loss of zero), or let all ranks leave the round out alike (all_reduce of a flag), "
        "and print what was caught, with the rank and the input: there the cause is."
    ),
}
_ADVICE_FILTERED = (
    "Each rank leaves out what it finds in its own part, so that another number is left: filter before the parts are dealt "
    "out, or cut all to the smallest number (all_reduce with MIN), or use join()."
)
_OF_ORDER = ("unordered", "hash", "random")
_OF_NAMES = ("hash", "process")
_IN_ORDER = ("groups_in_opposite_order", "calls_differ")
_OUTWARDS = 2
_MOST_RANKS = 16
_MOST_LINKS, _LONGEST = 3, 100
_SURE = ("clock", "signal")  # such a way out needs no other reason
_CALLERS = 2  # whose arguments are followed
_NUMBERS = re.compile(r"(?:frozenset\()?\{-?\d[^'\"<]*$")
Values = Mapping[int, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class _Way:
    """`head`: of a block of the place asked about. `apart`: the first variable on it that was read and is not the same on all
    ranks; `alike`: one made no difference."""

    head: int
    kind: str
    links: tuple[Link, ...]
    apart: str = ""
    alike: bool = False


def with_origin(verdict: Verdict, job: JobView) -> Verdict:
    """As far as the program's text was read."""
    asked = _of_rounds(verdict, job) or verdict.asked or _of_order(verdict, job)
    polled = _of_poll(verdict, job) if asked is None else None
    asked = asked or polled
    if asked is None:
        return verdict
    ways = [way for way in _ways(asked, verdict, job) if not way.alike and _tells(way)]
    ways = [way for way in ways if way.kind != "fallback" or way.apart]  # most take effect alike on all
    if polled is not None:
        ways = [way for way in ways if way.kind in _OF_NAMES and way.links]
    else:
        ways = [
            way for way in ways if way.kind != "process"
        ]  # a name decides nothing but where it is looked for
    if not verdict.parted and verdict.asked is None and verdict.cause in _IN_ORDER:
        ways = [way for way in ways if way.kind in _OF_ORDER]
    order = list(_SAYS)
    way = min(ways, key=lambda one: (not one.apart, order.index(one.kind), len(one.links)), default=None)
    open_ = asked is not polled and (way is None or not (way.apart or way.kind in _SURE))
    if open_ and (caught := _caught(asked, job.run.cwd)):
        return replace(verdict, words=_joined(verdict.words, caught), origin=ADVICE["caught"])
    if way is None:
        return verdict
    words = _words(way, asked.place, verdict, job.run.cwd)
    if not words:
        return verdict
    filtered = any(link.filters for link in way.links) and way.kind == "rank"
    advice = _ADVICE_FILTERED if filtered else ADVICE.get(way.kind, "")
    return replace(verdict, words=_joined(verdict.words, words), origin=advice)


def _joined(words: str, more: str) -> str:
    return f"{words.rstrip(',')}{', ' if words else ''}{more}"


def _caught(asked: Asked, cwd: str) -> str:
    """Of a loop that one of them has left, or has been through more often: a round that raises is not made by whoever
    raises, where the call in which its peers are is among what is tried."""
    loops = {block.line for block in asked.place.inside if block.is_loop} & set(asked.heads)
    unders = (one.under for one in asked.place.leaves if one.word == "continue" and one.loop in loops)
    caught = next((one for one in unders if one.kind == "except" and asked.place.text in one.deciding), None)
    if caught is None:
        return ""
    return f"where a round that raises is left out ({head_of(caught, asked.place.file, cwd)})"


# --- of which condition or loop


def _of_rounds(verdict: Verdict, job: JobView) -> Asked | None:
    found = loop_that_differs(verdict, job)
    return Asked(found[0], (found[1].line,)) if found is not None else None


def _of_order(verdict: Verdict, job: JobView) -> Asked | None:
    """The loops around a line at which all of them are."""
    ranks = job.ranks.known(verdict.everyone[:_MOST_RANKS])
    if verdict.cause not in _IN_ORDER or not ranks:
        return None
    paths = [path_of(rank.judged) for rank in ranks]
    if len({tuple(path) for path in paths}) > 1:
        return None
    for frame in reversed(paths[0][-_OUTWARDS:]):
        place = job.program.at(frame)
        loops = tuple(one.line for one in place.around if one.kind == "for") if place is not None else ()
        if place is not None and loops:
            return Asked(place, loops)
    return None


def _of_poll(verdict: Verdict, job: JobView) -> Asked | None:
    """The loop that looks for something again and again: for a name that others may not mean."""
    everybody = verdict.everyone
    rank = job.ranks.get(everybody[0]) if everybody and verdict.is_of("polls") else None
    path = path_of(rank.judged) if rank is not None else []
    found = loop_at(path, job.program)
    return Asked(found[0], (found[1].line,)) if found is not None and found[1].kind == "while" else None


# --- the ways from there


def _ways(asked: Asked, verdict: Verdict, job: JobView) -> Iterator[_Way]:
    ranks = job.ranks.known(verdict.everyone[:_MOST_RANKS])
    place = asked.place
    where = (place.file, place.line, place.function)
    path = next(
        (
            found[: at + 1]
            for rank in ranks
            for found in (path_of(rank.judged),)
            for at, frame in enumerate(found)
            if (frame.file, frame.line, frame.function) == where
        ),
        None,
    )
    if path is None:
        return
    for head in asked.heads:
        for one in place.origins:
            if one.head != head or one.argument:
                continue
            way = _judged(head, one, path[-1], ranks, job)
            if one.kind == "parameter":
                yield from _of_caller(way, path, ranks, job, _CALLERS)
            else:
                yield way


def _of_caller(
    way: _Way, path: Sequence[Frame], ranks: Sequence[RankView], job: JobView, more: int
) -> Iterator[_Way]:
    """What the function was called with."""
    caller = job.program.at(path[-2]) if len(path) > 1 and more else None
    parameter = way.links[-1]
    function = path[-1].function.rpartition(".")[2]
    if caller is None:
        return
    for one in caller.origins:
        if one.argument not in (f"{function}:{parameter.text}", f"{function}:{parameter.name}"):
            continue
        outer = _judged(way.head, one, path[-2], ranks, job)
        passed = replace(parameter, kind="passed", text=caller.text, file=caller.file, line=caller.line)
        joined = replace(
            outer,
            links=(*way.links[:-1], passed, *outer.links),
            apart=way.apart or outer.apart,
            alike=way.alike or outer.alike,
        )
        if one.kind == "parameter":
            yield from _of_caller(joined, path[:-1], ranks, job, more - 1)
        else:
            yield joined


def _judged(head: int, origin: Origin, frame: Frame, ranks: Sequence[RankView], job: JobView) -> _Way:
    """By the variables of this function."""
    kind, links = origin.kind, origin.links
    values: Values = {rank.rank: _values(rank, frame, job) for rank in ranks}
    apart = ""
    if kind == "unordered" and any(_has_numbers(known.get(links[0].name, "")) for known in values.values()):
        return _Way(head, kind, links, alike=True)
    for link in links:
        texts = {rank: known[link.name] for rank, known in values.items() if link.name in known}
        plain = not any(text.startswith("<") or "..." in text or text == "***" for text in texts.values())
        if not link.own or len(texts) < 2 or OF_RANK.search(link.name):
            continue
        if len({*texts.values()}) == 1 and plain and len(texts) == len(ranks):
            return _Way(head, kind, links, alike=True)
        if len({*texts.values()}) > 1 and plain and not apart:
            apart = _apart(link.name, texts)
    return _Way(head, kind, links, apart)


def _has_numbers(text: str) -> bool:
    """Of a set that was read: numbers have the same hash in each process."""
    return bool(_NUMBERS.match(text))


def _values(rank: RankView, frame: Frame, job: JobView) -> dict[str, str]:
    read = job.program.variables(rank.rank, rank.placement.pid)
    return {
        variable.name: variable.text
        for one in (read.frames if read is not None else ())
        if not one.called and (one.file, one.function) == (frame.file, frame.function)
        for variable in one.variables
    }


def _apart(name: str, texts: Mapping[int, str]) -> str:
    of: dict[str, list[int]] = {}
    for rank, text in texts.items():
        of.setdefault(text, []).append(rank)
    if len(of) > 3 or any(len(text) > 40 for text in of):
        return ""
    parts = [f"{text} on {format_ranks(tuple(sorted(found)))}" for text, found in of.items()]
    return f"`{name}` was {', '.join(parts[:-1])} and {parts[-1]} when read"


def _tells(way: _Way) -> bool:
    """More than the head itself, which is shown already, or what that is."""
    if way.kind == "parameter":
        return False
    if way.kind == "counted":
        return way.links[-1].kind == "changes"
    return bool(way.links) or way.kind in _DECIDES


# --- in words


def _words(way: _Way, place: ProgramPlace, verdict: Verdict, cwd: str) -> str:
    """ "where rows is `keep(mine)` (dpo.py:55) and mine is `pairs[rank::world]` (dpo.py:51)"; with the head itself where it is
    not shown yet."""
    links = [link for link in way.links if link.kind != "also"]
    also = [link for link in way.links if link.kind == "also"]
    if len(links) > _MOST_LINKS:
        links = [links[0], *links[-_MOST_LINKS + 1 :]]
    parts = [text for link in links if (text := _link(link, cwd)) not in verdict.words]
    blocks = (*place.inside, *(leave.under for leave in place.leaves))
    head = next((head_of(one, place.file, cwd) for one in blocks if one.line == way.head), "")
    at = f"at {head}, " if head and head not in verdict.words else ""
    if not way.links and not also:
        return f"{at}decided by {_DECIDES[way.kind]}"
    if not parts:
        return f"{at}{_SAYS[way.kind]}" if _SAYS[way.kind] not in verdict.words else ""
    said = f": {_SAYS[way.kind]}" if _SAYS[way.kind] else ""
    said += "".join(f", and {_link(link, cwd)}" for link in also)
    text = f"{at}where {', '.join(parts[:-1])}{' and ' if parts[1:] else ''}{parts[-1]}{said}"
    return f"{text} ({way.apart})" if way.apart and way.apart not in verdict.words else text


def _link(link: Link, cwd: str) -> str:
    where = f"{format_path(link.file, cwd)}:{link.line}"
    text = link.text if len(link.text) <= _LONGEST else link.text[: _LONGEST - 4].rstrip() + " ..."
    guard = f"`{link.guard}` ({format_path(link.file, cwd)}:{link.guard_line})" if link.guard else ""
    under = f", gone past where {guard}" if link.passes else f", only under {guard}"
    if link.guard.startswith("except"):
        under = f": where that raises, {guard} goes on with something else"
    if link.kind == "also":
        return f"`{text}` ({where}) draws from it too{under if guard else ''}"
    says = {"item": "is one of", "returns": "returns", "changes": "changes by", "given": "changes by"}
    says["passed"] = "is given at"
    left = link.filters and link.filters != link.text and f"; it leaves out by `{link.filters}`"
    return f"{link.name} {says.get(link.kind, 'is')} `{text}` ({where}{left or ''}){under if guard else ''}"
