"""The program's own text at the lines at which its threads are: what they say, and which loops and conditions lead
there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from diag.model import Payload, Record
from diag.model.observations import (
    Answer,
    Block,
    Leave,
    Link,
    Meaning,
    Observation,
    Origin,
    ProgramPlace,
    ProgramRead,
    StarterSeen,
    Statement,
)
from diag.sources.host.job_files import Files
from diag.sources.payload import from_mapping, guarded, integer, mapping, sequence, word
from diag.sources.stacks.answers import answer_of
from diag.sources.stacks.elsewhere import awaited_key, statements_of
from diag.sources.stacks.meanings import MOST_MEANINGS, Meanings, made_by
from diag.sources.stacks.origins import MOST_LINKS, MOST_ORIGINS, origins, parsed
from diag.sources.stacks.statements import (
    FUNCTIONS,
    LOOPS,
    Line,
    end_of,
    heads_of,
    logical_lines,
    shown,
)

SOURCE = "program"
_MOST_BYTES = 512 << 10  # a tenth of a second
_BOOT_SECONDS = 2.0  # the kernel tells the start since a boot that it knows to the second
_MOST_BLOCKS, _MOST_LEAVES, _MOST_DECIDING = 12, 8, 3
_MOST_STATEMENTS = 96
_LONGEST_COMMAND = 200
_MOST_MODULES, _MOST_TRIED = 4, 64  # further files that a read of one opens, and looks for
_BLOCKS = ("while", "for", "if", "elif", "else", "except", "finally", "with")
_CONDITIONS = ("if", "elif", "else", "except")
_SLEEPS = re.compile(r"\bsleep\(")
_LEAVES = ("break", "continue", "return")


def read(files: Files, path: str, wanted: Mapping[int, str], started: float) -> Payload:
    """Of these lines, each with the function that the interpreter says it is in. `started`: when the process did
    (seconds since the epoch); text written later is not what it runs."""
    text = _text(files, path, started)
    if isinstance(text, dict):
        return text
    lines = logical_lines(text)
    modules: dict[str, Sequence[Line]] = {}
    texts = {path: text}

    def module(other: str) -> Sequence[Line]:
        if (
            other not in modules
            and len(modules) < _MOST_TRIED
            and sum(map(bool, modules.values())) < _MOST_MODULES
        ):
            found = _text(files, other, started)
            if isinstance(found, str):
                texts[other] = found
            modules[other] = logical_lines(found) if isinstance(found, str) else ()
        return modules.get(other, ())

    names = Meanings(path, lines, module)
    imported = names.modules()
    places = [_place(lines, path, line, function, names) for line, function in sorted(wanted.items())]
    statements = [one for file in (path, *imported) for one in statements_of(file, texts[file], _around)]
    return {
        "places": [asdict(_with_origins(place, texts)) for place in places if place is not None],
        "statements": [asdict(one) for one in statements],
    }


def _text(files: Files, path: str, started: float) -> str | Payload:
    try:
        fd = files.open_file(path)
    except (OSError, ValueError) as error:
        return {"failed": "unreadable", "detail": getattr(error, "strerror", None) or str(error)}
    with os.fdopen(fd, "rb") as file:
        size, written = (found := os.fstat(fd)).st_size, found.st_mtime
        if written > started + _BOOT_SECONDS:
            return {"failed": "changed"}
        if size > _MOST_BYTES:
            return {"failed": "too_long"}
        return file.read(_MOST_BYTES).decode("utf-8", "replace")


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    files = mapping(record.payload["files"]).items()
    places = [
        _place_of(file, row)
        for file, read_of_it in files
        for row in sequence(mapping(read_of_it).get("places"))
    ]
    statements = dict.fromkeys(
        _statement_of(row)
        for _, read_of_it in files
        for row in sequence(mapping(read_of_it).get("statements"))[:_MOST_STATEMENTS]
    )
    command = word(record.payload.get("command"), _LONGEST_COMMAND)
    pid = integer(record.payload["pid"])
    if "started" in record.payload:
        started = mapping(record.payload["started"])
        ranks = tuple(map(integer, sequence(started["ranks"])))
        yield StarterSeen(
            record.rank, pid, command, ranks, integer(started["ended_faults"]), started["alone"] is True
        )
        return
    yield ProgramRead(record.rank, pid, tuple(places), tuple(statements), command)


def _statement_of(row: Mapping[str, Any]) -> Statement:
    around, leaves = _blocks_of(row)
    return from_mapping(Statement, row, around=around, leaves=leaves)


def _blocks_of(row: Mapping[str, Any]) -> tuple[tuple[Block, ...], tuple[Leave, ...]]:
    around = tuple(from_mapping(Block, one) for one in sequence(row["around"])[:_MOST_BLOCKS])
    leaves = tuple(
        from_mapping(Leave, one, under=from_mapping(Block, one["under"]))
        for one in sequence(row["leaves"])[:_MOST_LEAVES]
    )
    return around, leaves


def _place_of(file: str, row: Mapping[str, Any]) -> ProgramPlace:
    around, leaves = _blocks_of(row)
    names = tuple(from_mapping(Meaning, one) for one in sequence(row.get("names"))[:MOST_MEANINGS])
    own = row.get("own_loop")
    head = from_mapping(Block, own) if own is not None else None
    found = tuple(_origin_of(one) for one in sequence(row.get("origins", ()))[:MOST_ORIGINS])
    answer = row.get("answer")
    return from_mapping(
        ProgramPlace,
        row,
        file=file,
        around=around,
        leaves=leaves,
        names=names,
        own_loop=head,
        origins=found,
        answer=_answer_of(answer) if answer is not None else None,
    )


def _answer_of(row: Mapping[str, Any]) -> Answer:
    past = tuple(from_mapping(Block, one) for one in sequence(row["past"])[:_MOST_BLOCKS])
    return from_mapping(Answer, row, past=past)


def _origin_of(row: Mapping[str, Any]) -> Origin:
    links = tuple(from_mapping(Link, one) for one in sequence(row["links"])[:MOST_LINKS])
    return from_mapping(Origin, row, links=links)


# --- one of them, and what is around it


def _place(
    lines: Sequence[Line], file: str, line: int, function: str, names: Meanings
) -> ProgramPlace | None:
    """None where the text does not have that function there: it is not what the process runs."""
    at = next((at for at, one in enumerate(lines) if one.first <= line <= one.last), None)
    if at is None:
        return None
    heads = list(heads_of(lines, at))
    inside = lines[heads[-1]] if heads and lines[heads[-1]].word in FUNCTIONS else None
    name = function.rpartition(".")[2]
    if not name.startswith("<") and (inside is None or f"def {name}" not in inside.text):
        return None
    around, leaves = _around(lines, at)
    head = _block(lines, at) if lines[at].word == "while" else None
    if head is not None:
        leaves = tuple(_leaves(lines, heads, (head, *around))[:_MOST_LEAVES])
    loop = next((head for head in heads if lines[head].word in LOOPS), None)
    asked = [*(lines[loop].names if loop is not None else ()), *lines[at].names]
    for leave in leaves:
        asked += next((one.names for one in lines if one.first == leave.under.line), ())
    meanings = tuple(names.of(asked, at))
    made = shown(made_by(lines, heads, lines[at].text))
    text = shown(lines[at].text)
    conditions = [block.text for block in around if block.kind == "while"]
    tried = _asked_again(around, leaves) if _SLEEPS.search(lines[at].text) else ()
    awaited = awaited_key([lines[at].text, *conditions, *tried], names, at)
    return ProgramPlace(file, line, function, text, around, leaves, meanings, made, awaited, head)


def _asked_again(around: Sequence[Block], leaves: Sequence[Leave]) -> Iterator[str]:
    """What a loop around a line that sleeps asks in each round: by what it tries, or by the condition of a `break` or
    `return`."""
    for block in around:
        if block.kind in ("while", "except"):
            yield from block.deciding
    yield from (leave.under.text for leave in leaves if leave.word != "continue")


def _with_origins(place: ProgramPlace, texts: Mapping[str, str]) -> ProgramPlace:
    heads = [block.line for block in (*place.inside, *(leave.under for leave in place.leaves))]
    text = parsed(place.file, texts[place.file])
    answer = answer_of(text, place.line) if text is not None else None
    return replace(place, origins=origins(texts, place.file, heads, place.line), answer=answer)


def _around(lines: Sequence[Line], at: int) -> tuple[tuple[Block, ...], tuple[Leave, ...]]:
    heads = list(heads_of(lines, at))
    around = [_block(lines, head) for head in heads if lines[head].word in _BLOCKS][:_MOST_BLOCKS]
    return tuple(around), tuple(_leaves(lines, heads, around)[:_MOST_LEAVES])


def _block(lines: Sequence[Line], head: int) -> Block:
    one = lines[head]
    condition = one
    if one.word == "else":
        before = (at for at in range(head - 1, -1, -1) if lines[at].depth == one.depth)
        condition = next((lines[at] for at in before if lines[at].word in (*_BLOCKS, "try")), one)
    deciding = tuple(shown(text) for text in _deciding(lines, head))[:_MOST_DECIDING]
    last = end_of(lines, head) - 1
    met, unmet = _needed(lines, head)
    return Block(
        one.first,
        lines[last].last,
        one.word,
        shown(condition.text),
        deciding,
        _yields(lines, head, last),
        met,
        unmet,
    )


def _deciding(lines: Sequence[Line], head: int) -> Iterator[str]:
    """See `Block.deciding`."""
    one = lines[head]
    if one.word == "except":
        before = (at for at in range(head - 1, -1, -1) if lines[at].depth == one.depth)
        tried = next((at for at in before if lines[at].word == "try"), None)
        yield from _tried(lines, tried) if tried is not None else ()
    elif one.word == "while":
        if not one.names:  # while True
            for at in (at for at in range(head + 1, end_of(lines, head)) if lines[at].word == "try"):
                yield from _tried(lines, at)
        yield from (lines[at].text for at in _changes(lines, head))


def _changes(lines: Sequence[Line], head: int) -> Iterator[int]:
    """The statements of a `while` that change what its condition names: by an assignment to it, by a call of it."""
    roots = {part for name in lines[head].names for part in _parts(name)}
    for at in range(head + 1, end_of(lines, head)):
        changed = lines[at].target if lines[at].changes else lines[at].target.rpartition(".")[0]
        if changed in roots:
            yield at


def _needed(lines: Sequence[Line], head: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """See `Block.met` and `unmet`."""
    changes = _changes(lines, head) if lines[head].word == "while" else ()
    found = [_conditions_of(lines, head, at) for at in changes]
    met = [one for one in found[0][0] if all(one in each for each, _ in found)] if found else []
    unmet = [one for one in found[0][1] if all(one in each for _, each in found)] if found else []
    return tuple(met[:_MOST_DECIDING]), tuple(unmet[:_MOST_DECIDING])


def _conditions_of(lines: Sequence[Line], head: int, at: int) -> tuple[list[str], list[str]]:
    """What a statement of this loop is under, and what sends the loop round before it is reached. Of an `else` or `elif` the
    conditions before are not repeated: it counts as reached in each round, as does what a handler or an inner loop does."""
    inner = [one for one in heads_of(lines, at) if one > head]
    if any(lines[one].word in ("elif", "else", "except", "finally", *LOOPS, *FUNCTIONS) for one in inner):
        return [], []
    met = [shown(lines[one].text) for one in inner if lines[one].word == "if"]
    unmet = []
    for one in range(head + 1, at):
        under = one if lines[one].then == "continue" else next(heads_of(lines, one), head)
        says = "continue" in (lines[one].word, lines[one].then)
        if says and lines[under].word == "if" and next(heads_of(lines, under), -1) == head:
            unmet.append(shown(lines[under].text))
    return met, unmet


def _yields(lines: Sequence[Line], head: int, last: int) -> bool:
    """Where no condition lies between its head and the `yield`, and nothing goes round before it."""
    for at in range(head + 1, last + 1) if lines[head].word in LOOPS else ():
        if "continue" in (lines[at].word, lines[at].then):
            return False
        if "yield" in (lines[at].word, lines[at].then) or lines[at].value.startswith("yield"):
            inner = [lines[one].word for one in heads_of(lines, at) if one > head]
            if not {*inner} & {*_CONDITIONS, *LOOPS, *FUNCTIONS}:
                return True
    return False


def _tried(lines: Sequence[Line], head: int) -> Iterator[str]:
    return (one.text for one in lines[head + 1 : end_of(lines, head)] if one.depth == lines[head].depth + 1)


def _parts(name: str) -> Iterator[str]:
    """Of `self.done.all`: itself, and what it is taken of, but for `self` alone.

    >>> [*_parts("self.done.all")], [*_parts("marker.exists")]
    (['self.done.all', 'self.done'], ['marker.exists', 'marker'])
    """
    while name and name not in ("self", "cls"):
        yield name
        name = name.rpartition(".")[0]


def _leaves(lines: Sequence[Line], heads: Sequence[int], around: Sequence[Block]) -> list[Leave]:
    """Under a condition, in the function of these heads: out of a loop around the line, or out of the function."""
    function = heads[-1] if heads and lines[heads[-1]].word in FUNCTIONS else -1
    end = end_of(lines, function) if function >= 0 else len(lines)
    loops = {block.line for block in around if block.is_loop}
    found = []
    for at in range(function + 1, end):
        one = lines[at]
        word = one.word if one.word in _LEAVES else one.then
        if word not in _LEAVES:
            continue
        own = [at] if one.then == word and one.word in _BLOCKS else []
        outer = [*own, *heads_of(lines, at)]
        if (outer[-1] if outer and lines[outer[-1]].word in FUNCTIONS else -1) != function:
            continue  # of a function within
        loop = next((lines[head].first for head in outer if lines[head].word in LOOPS), 0)
        under = next((head for head in outer if lines[head].word in (*_CONDITIONS, *LOOPS)), None)
        if under is None or lines[under].word in LOOPS or (word != "return" and loop not in loops):
            continue
        found.append(Leave(one.first, word, 0 if word == "return" else loop, _block(lines, under)))
    return found
