"""Lines of a width in columns, of text in which some characters take two and have no spaces between them
(Chinese)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.outputs.terminal.text import _char_columns, _columns, _fitting

__all__ = ["pad", "wrap"]

# A command in backticks stays on one line where it can: people copy it.
_TOKEN = re.compile(r"`[^`\n]*`|\s+|[^\s`]|`")
_CLOSES = frozenset("，。；：、！？）》」』”’…")  # never first in a line
_OPENS = frozenset("（《「『“‘")  # never last


def wrap(text: str, width: int, indent: str = "", rest: str | None = None) -> list[str]:
    """Lines of at most `width` columns, broken at spaces and beside wide characters; a longer word is broken
    anywhere.

    >>> wrap("内存不够：调大 --mem，再看 `diag explain`。", 16)
    ['内存不够：调大', '--mem，再看', '`diag explain`。']
    """
    rest = indent if rest is None else rest
    lines: list[str] = []
    line, empty = indent, True
    for spaced, atom in _atoms(text):
        gap = " " if spaced and not empty else ""
        if not empty and _columns(line + gap + atom) > width:
            lines.append(line)
            line, empty, gap = rest, True, ""
        left = atom
        while _columns(line + gap + left) > width and _columns(line) < width:
            size = _fitting(left, width - _columns(line))
            lines.append(line + left[:size])
            line, left = rest, left[size:]
        line, empty = line + gap + left, False
    return [*lines, line] if not empty or not lines else lines


def pad(text: str, width: int) -> str:
    """
    >>> pad("卡死", 6) + "|"
    '卡死  |'
    """
    return text + " " * max(0, width - _columns(text))


def _atoms(text: str) -> Iterator[tuple[bool, str]]:
    """What may not be broken, and whether a space comes before it."""
    held, spaced, opens = "", False, False
    for token in _TOKEN.findall(text):
        if token.isspace():
            if held:
                yield spaced, held
            held, spaced, opens = "", True, False
            continue
        wide = len(token) == 1 and _char_columns(token) == 2
        breaks = bool(held) and not opens and token not in _CLOSES and (wide or _char_columns(held[-1]) == 2)
        if breaks:
            yield spaced, held
            held, spaced = "", False
        held += token
        opens = token in _OPENS
    if held:
        yield spaced, held
