"""What a tool that diag does not know puts before every line: learned from a traceback, whose lines have their own
indent, and taken away from it. Its words are then read like any other traceback's.

    trainer@gpu-17 #3 Traceback (most recent call last):
    trainer@gpu-17 #3   File "train.py", line 3, in main

Only lines of tracebacks are changed, and only where two of them have the same before them. Blanks alone (a list, YAML,
a logger that indents) are such a prefix too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from diag.knowledge.log_prefix import message_of, without_outer
from diag.knowledge.tracebacks import FRAME

_HEADER = "Traceback (most recent call last)"
_LONGEST = 160  # characters of such a prefix. Ours.
_STRANGERS = 12  # lines without it that may be between two that have it
_AHEAD = 3  # lines in which the second of a traceback's is looked for
_IN_FRAME = re.compile(r'(.{1,160}?)  File "[^"\n]{1,400}", line \d{1,7}(?:, in |$)')
_ENDS = re.compile(r"[A-Za-z_][\w.]{0,300}(?:: |:?$)")
# Of a traceback whose frames lost their indent, as on web pages, it stands no further left than they.
_NAMED = re.compile(
    r" {1,2}((?:\w{1,100}\.){0,12}[A-Z]\w{0,100}(?:Error|Exception|Interrupt|Exit)(?:: .*|:?$))"
)
_SOURCE = "    "  # before a frame's line of source


class LineHeads:
    """Of one log, whose lines are given in order."""

    def __init__(self) -> None:
        self._head: re.Pattern[str] | None = None
        self._left = 0

    def bare(self, items: Sequence[list[Any]]) -> list[list[Any]]:
        """The same items; those of a traceback behind an unknown prefix without it. `items`: [text, kind], of which only
        lines (kind 0) are looked at."""
        return [
            item if item[1] else [self._line(item[0], items, place), 0] for place, item in enumerate(items)
        ]

    def _line(self, text: str, items: Sequence[list[Any]], place: int) -> str:
        if self._head is None and _HEADER not in text and ' File "' not in text:
            return text
        kept, message = _parted(text)
        if self._head is None or self._head.match(message) is None:
            opened = self._opened(message, items[place + 1 : place + 1 + _AHEAD])
            if opened is None:
                self._left -= bool(message.strip())
                self._head = self._head if self._left > 0 else None
                return text
            self._head = opened
        self._left = _STRANGERS
        match = self._head.match(message)
        if match is None:
            return text
        rest = message[match.end() :]
        if not match[0].strip() and rest[:1].strip() and not rest.startswith(_HEADER):
            self._head = None  # blanks are before other lines too, as those of torch's table: the exception is the last
            return kept + rest if _ENDS.match(rest) else text
        if not match[0].strip() and (named := _NAMED.match(rest)):
            self._head = None
            return kept + named[1]
        return kept + rest

    def _opened(self, message: str, ahead: Sequence[list[Any]]) -> re.Pattern[str] | None:
        """The prefix that this line has before a traceback's, if one of the next has it too."""
        following = [_parted(item[0])[1] for item in ahead if not item[1]]
        begin = message.find(_HEADER)
        if 0 < begin <= _LONGEST:
            head, wanted = _shape(message[:begin]), FRAME
        elif begin < 0 and (frame := _IN_FRAME.match(message)):
            head, wanted = _shape(frame[1]), re.compile(_SOURCE)
        else:
            return None
        for line in following:
            match = head.match(line)
            if match and wanted.match(line[match.end() :]):
                return head
        return None


def _parted(text: str) -> tuple[str, str]:
    """What is known to come before the message and the readers want, as a rank; and the message."""
    bare = without_outer(text)
    message = message_of(bare).text
    return bare[: len(bare) - len(message)], message


def _shape(head: str) -> re.Pattern[str]:
    """
    >>> bool(_shape("worker 3 12:00:01 > ").match("worker 3 12:00:07 > now"))
    True
    """
    return re.compile(
        "".join(r"\d+" if part.isdigit() else re.escape(part) for part in re.split(r"(\d+)", head))
    )
