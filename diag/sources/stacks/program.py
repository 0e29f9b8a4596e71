"""The program's own text at the lines at which its threads are: what stands there, and which loops and conditions lead
there.

It is read by its tokens and their indentation, not parsed: text of a newer Python, or a part of one, tells as much,
and no nesting is too deep.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from diag.launch.launchers.secrets import hidden_in_lines
from diag.model import Payload, Record
from diag.model.observations import Block, Leave, Observation, ProgramPlace, ProgramRead
from diag.sources.host.job_files import Files
from diag.sources.payload import from_mapping, guarded, integer, mapping, sequence

SOURCE = "program"
_MOST_BYTES = 512 << 10  # a tenth of a second
_BOOT_SECONDS = 2.0  # the kernel tells the start since a boot that it knows to the second
_LONGEST = 120  # characters of a statement
_MOST_BLOCKS, _MOST_LEAVES = 12, 8
_BLOCKS = ("while", "for", "if", "elif", "else", "except", "finally", "with")
_LOOPS = ("while", "for")
_CONDITIONS = ("if", "elif", "else", "except")
_LEAVES = ("break", "continue", "return")
_FUNCTIONS = ("def", "class")
_INSIDE_BRACKETS = re.compile(r"(?<=[(\[{]) +|,? +(?=[)\]}])")
_SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER)


@dataclass(slots=True)
class _Line:
    """A logical line: a statement, or the head of a compound one."""

    first: int
    last: int
    depth: int
    word: str  # its first one, of `async for` the second
    text: str
    then: str = ""  # the first word after a colon at its end: `if done: break`


def read(files: Files, path: str, wanted: Mapping[int, str], started: float) -> Payload:
    """Of these lines, each with the function that the interpreter says it is in. `started`: when the process did
    (seconds since the epoch); text written later is not what it runs."""
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
        text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    lines = _logical_lines(text)
    places = [_place(lines, path, line, function) for line, function in sorted(wanted.items())]
    return {"places": [asdict(place) for place in places if place is not None]}


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    found = [
        _place_of(file, row)
        for file, read_of_it in mapping(record.payload["files"]).items()
        for row in sequence(mapping(read_of_it).get("places"))
    ]
    yield ProgramRead(record.rank, integer(record.payload["pid"]), tuple(found))


def _place_of(file: str, row: Mapping[str, Any]) -> ProgramPlace:
    around = tuple(from_mapping(Block, one) for one in sequence(row["around"])[:_MOST_BLOCKS])
    leaves = tuple(
        from_mapping(Leave, one, under=from_mapping(Block, one["under"]))
        for one in sequence(row["leaves"])[:_MOST_LEAVES]
    )
    return from_mapping(ProgramPlace, row, file=file, around=around, leaves=leaves)


# --- its statements


@functools.lru_cache(maxsize=4)  # the lines of a loop are asked for one after the other
def _logical_lines(text: str) -> Sequence[_Line]:
    """As far as it can be read: what follows an open bracket or quote that is never closed is missing."""
    found: list[_Line] = []
    rows = text.split("\n")  # as tokens count them: a form feed ends no row
    depth = brackets = 0
    line: list[tokenize.TokenInfo] = []
    then = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.INDENT:
                depth += 1
            elif token.type == tokenize.DEDENT:
                depth -= 1
            elif token.type == tokenize.NEWLINE and line:
                found.append(_line(line, rows, depth, then))
                line, then, brackets = [], "", 0
            elif token.type not in _SKIPPED and token.type != tokenize.NEWLINE:
                if line and line[-1].string == ":" and not brackets:
                    then = token.string
                line.append(token)
                brackets += (token.string in "([{") - (token.string in ")]}") if token.string else 0
    except (tokenize.TokenError, SyntaxError):  # also IndentationError
        pass
    return found


def _line(tokens: Sequence[tokenize.TokenInfo], rows: Sequence[str], depth: int, then: str) -> _Line:
    text = tokens[0].string
    for before, token in itertools.pairwise(tokens):
        row, column = before.end
        text += rows[row - 1][column : token.start[1]] if row == token.start[0] else " "
        text += token.string
    text = _INSIDE_BRACKETS.sub("", " ".join(text.split()))
    word = tokens[1].string if tokens[0].string == "async" and len(tokens) > 1 else tokens[0].string
    return _Line(tokens[0].start[0], tokens[-1].end[0], depth, word, text, then)


def _shown(text: str) -> str:
    text = hidden_in_lines(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4].rstrip() + " ..."


# --- one of them, and what is around it


def _place(lines: Sequence[_Line], file: str, line: int, function: str) -> ProgramPlace | None:
    """None where the text does not have that function there: it is not what the process runs."""
    at = next((at for at, one in enumerate(lines) if one.first <= line <= one.last), None)
    if at is None:
        return None
    heads = list(_heads(lines, at))
    inside = lines[heads[-1]] if heads and lines[heads[-1]].word in _FUNCTIONS else None
    name = function.rpartition(".")[2]
    if not name.startswith("<") and (inside is None or f"def {name}" not in inside.text):
        return None
    around = [_block(lines, head) for head in heads if lines[head].word in _BLOCKS][:_MOST_BLOCKS]
    leaves = _leaves(lines, heads, around)[:_MOST_LEAVES]
    return ProgramPlace(file, line, function, _shown(lines[at].text), tuple(around), tuple(leaves))


def _heads(lines: Sequence[_Line], at: int) -> Iterator[int]:
    """Of the blocks around a line, the innermost first, the function's last."""
    depth = lines[at].depth
    for head in range(at - 1, -1, -1):
        if lines[head].depth < depth:
            depth = lines[head].depth
            yield head
            if lines[head].word in _FUNCTIONS:
                return


def _end(lines: Sequence[_Line], head: int) -> int:
    """The first line that is not in its block any more."""
    inner = range(head + 1, len(lines))
    return next((at for at in inner if lines[at].depth <= lines[head].depth), len(lines))


def _block(lines: Sequence[_Line], head: int) -> Block:
    one = lines[head]
    told = one
    if one.word == "else":
        before = (at for at in range(head - 1, -1, -1) if lines[at].depth == one.depth)
        told = next((lines[at] for at in before if lines[at].word in (*_BLOCKS, "try")), one)
    return Block(one.first, lines[_end(lines, head) - 1].last, one.word, _shown(told.text))


def _leaves(lines: Sequence[_Line], heads: Sequence[int], around: Sequence[Block]) -> list[Leave]:
    """Under a condition, in the function of these heads: out of a loop around the line, or out of the function."""
    function = heads[-1] if heads and lines[heads[-1]].word in _FUNCTIONS else -1
    end = _end(lines, function) if function >= 0 else len(lines)
    loops = {block.line for block in around if block.is_loop}
    found = []
    for at in range(function + 1, end):
        one = lines[at]
        word = one.word if one.word in _LEAVES else one.then
        if word not in _LEAVES:
            continue
        own = [at] if one.then == word and one.word in _BLOCKS else []
        outer = [*own, *_heads(lines, at)]
        if (outer[-1] if outer and lines[outer[-1]].word in _FUNCTIONS else -1) != function:
            continue  # of a function within
        loop = next((lines[head].first for head in outer if lines[head].word in _LOOPS), 0)
        under = next((head for head in outer if lines[head].word in (*_CONDITIONS, *_LOOPS)), None)
        if under is None or lines[under].word in _LOOPS or (word != "return" and loop not in loops):
            continue
        found.append(Leave(one.first, word, 0 if word == "return" else loop, _block(lines, under)))
    return found
