"""Where the next attempt of the same program begins in one log: people append (`nohup ... >> train.log`), and what
failed in an attempt before is not what failed last.

Known by two things together: the attempt before ended with an error, and the log opens again as it opened before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from diag.engine.importers.tracebacks import EXCEPTION, TRACEBACK
from diag.knowledge.log_prefix import message_of, without_outer
from diag.knowledge.tracebacks import CHAIN, ENDED
from diag.model import Record
from diag.sources.logs.output import PLAIN_LINES, PLAIN_RUN, QUIET

_OPENING = 6  # lines that an attempt is known again by
_WATCHED = 2000  # lines in which an opening must not come again by itself: it would be a loop's
_MOST_CHARS = 300  # of an attempt's last line
_SHORTEST = 12  # characters of a line that is like no other program's
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
# argparse of CPython 3.8-3.14 ends so, with exit code 2:
#   train.py: error: argument --fp16: Truthy value expected: got s ...
_REFUSED = re.compile(r"[\w./-]{1,200}: error: ")
# Errors and warnings come more than once in one attempt.
_NO_LEVELS = ("WARNING", "ERROR", "CRITICAL")
_NO_OPENING = re.compile(
    rf"\s|.{{0,60}}{CHAIN}|.{{0,200}}%\||[\w.]*(?:Error|Exception|Interrupt)\b|.{{0,200}}[wW](?:arning|ARNING|ARN)\b"
)


@dataclass(frozen=True, slots=True)
class Before:
    """What is before the first line of an attempt."""

    lines: int
    ended_with: str


class Attempts:
    """Of one log, whose records are given in order."""

    def __init__(self) -> None:
        self._read = 0
        self._opening: list[str] = []  # of the first, by their shape
        self._opening_left = _OPENING  # lines that it may still have
        self._again: list[str] = []  # what an attempt that has begun still has of it, as the first had
        self._end = ""  # the last line of an attempt that may be over
        self._left = 0  # lines behind it in which the opening comes again, if it does
        self._in_traceback = False
        self._number = 0  # of lines in this attempt

    def pieces(self, record: Record) -> Iterator[tuple[Before | None, Record]]:
        """The record, cut where attempts may begin: what was before a piece that begins one."""
        items: list[list[Any]] = record.payload["lines"]
        first = number = record.payload.get("first") or 0
        piece: list[list[Any]] = []
        begin = place = 0  # of the piece's first item, and of this one
        before: Before | None = None
        for place, (text, kind) in enumerate(items):
            run = kind in (PLAIN_RUN, PLAIN_LINES)
            is_line = run or kind in (0, QUIET)
            if kind and kind != 1 and not self._end and self._number > _WATCHED:
                piece.append([text, kind])
                count = text.count("\n") + 1
                number += count if is_line else 0
                self._read += count
                continue
            lines = text.split("\n") if run else [text]
            done = 0
            for at, line in enumerate(lines):
                if is_line and self._opens(line):
                    if done < at:
                        piece.append(["\n".join(lines[done:at]), kind])
                    if piece:
                        yield before, _part(record, piece, first, begin)
                    begin = place
                    before, self._end = Before(self._read, self._end[:_MOST_CHARS]), ""
                    piece, done, first = [], at, number + at
                self._read += 1
            piece.append(["\n".join(lines[done:]) if done else text, kind])
            number += len(lines) if is_line else 0
        if piece:
            yield before, _part(record, piece, first, begin)

    def _opens(self, line: str) -> bool:
        """Whether the next attempt may begin with this line."""
        self._number += 1
        if not self._end and self._number > _WATCHED and not self._in_traceback and not _may_end(line):
            return False
        message = message_of(without_outer(line))
        text = message.text
        if (
            self._ends(text)
            or len(text) < _SHORTEST
            or _NO_OPENING.match(text)
            or message.level in _NO_LEVELS
        ):
            return False
        shape = _NUMBERS.sub("0", text)
        if self._end:
            if shape in self._opening:
                self._number = 1
                self._again = [other for other in self._opening if other != shape]
                return True
            self._left -= 1
            if not self._left:
                self._end = ""  # the program went on
        elif shape in self._again:
            self._again.remove(shape)
        elif shape in self._opening:
            self._opening.remove(shape)  # a loop's
        elif self._opening_left:
            self._opening_left -= 1
            self._opening.append(shape)
        return False

    def _ends(self, text: str) -> bool:
        """Whether the line belongs to an error; the last of it ends an attempt."""
        if TRACEBACK.match(text):
            self._in_traceback = True
            return True
        if self._in_traceback:
            if not text[:1].strip() or CHAIN in text or not EXCEPTION.match(text):
                return True
            self._in_traceback = False
        elif not (_REFUSED.match(text) or ENDED.match(text[:1000])):
            return False
        self._opening_left = 0
        if self._opening:
            self._end, self._left = text, _OPENING
        return True


def _may_end(line: str) -> bool:
    return any(
        mark in line for mark in ("Traceback", "error: ", "Killed", "fault", "Aborted", "terminate", "Fatal")
    )


def _part(record: Record, lines: list[list[Any]], first: int, begin: int) -> Record:
    """`begin`: where its first item was in the record."""
    payload = {**record.payload, "lines": lines}
    at = record.at
    if "times" in payload:
        at = next((then for place, then in reversed(payload["times"]) if place <= begin), at)
        later = ((place - begin, then) for place, then in payload["times"] if place > begin)
        payload["times"] = [[place, then] for place, then in later if place < len(lines)]
    return replace(record, payload={**payload, "first": first} if first else payload, at=at)
