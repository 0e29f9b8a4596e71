"""Text in the columns of a terminal: how wide, cut, wrapped, padded."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

_LONGEST_LINE = 900  # characters of a line of evidence; most have less than a tenth of that
# A command in backticks stays on one line where it can: people copy it.
_TOKEN = re.compile(r"`[^`\n]*`|\s+|[^\s`]|`")
_CLOSES = frozenset("，。；：、！？）》」』”’…")  # never first in a line
_OPENS = frozenset("（《「『“‘")  # never last


def columns(text: str) -> int:
    """How many columns of a terminal the text takes; a wide character takes two."""
    if text.isascii():
        return len(text)
    return sum(map(char_columns, text))


def char_columns(char: str) -> int:
    """0 of a combining character, 2 of a wide one."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, width: int) -> str:
    """At most `width` columns, with dots where something was cut off."""
    if columns(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += char_columns(char)
        if used > width - 3:
            break
        kept.append(char)
    return "".join(kept).rstrip() + "..."


def wrap(text: str, width: int, indent: str = "", rest: str | None = None) -> list[str]:
    """Lines of at most `width` columns; words longer than a line are broken."""
    return _wrapped(((True, word) for word in text.split()), width, indent, rest)


def _wrapped(atoms: Iterable[tuple[bool, str]], width: int, indent: str, rest: str | None) -> list[str]:
    """Of what may not be broken, and whether a space comes before it."""
    rest = indent if rest is None else rest
    lines: list[str] = []
    line, empty = indent, True
    for spaced, atom in atoms:
        gap = " " if spaced and not empty else ""
        if not empty and columns(line + gap + atom) > width:
            lines.append(line)
            line, empty, gap = rest, True, ""
        left = atom
        while columns(line + gap + left) > width and columns(line) < width:
            size = fitting(left, width - columns(line))
            lines.append(line + left[:size])
            line, left = rest, left[size:]
        line, empty = line + gap + left, False
    return [*lines, line] if not empty or not lines else lines


def wrap_long(text: str, width: int, rest: str) -> list[str]:
    """A line as it is where it fits, and else over several: what is at its end (a file and its line) is what
    people look for. Of one that is very long some words in the middle are left out."""
    if columns(text) <= width:
        return [text]
    if len(text) > _LONGEST_LINE:
        begin, end = text[: _LONGEST_LINE * 2 // 3], text[-_LONGEST_LINE // 3 :]
        text = f"{begin.rpartition(' ')[0]} ... {end.partition(' ')[2]}"
    return wrap(text, width, text[: len(text) - len(text.lstrip())], rest)


def fitting(word: str, room: int) -> int:
    """How many characters of the word fit into so many columns; at least one."""
    used = 0
    for index, char in enumerate(word):
        used += char_columns(char)
        if used > room:
            return max(1, index)
    return len(word)


def wrap_wide(text: str, width: int, indent: str = "", rest: str | None = None) -> list[str]:
    """`wrap` for text in which some characters take two columns and have no spaces between them (Chinese):
    broken beside these too.

    >>> wrap_wide("内存不够：调大 --mem，再看 `diag explain`。", 16)
    ['内存不够：调大', '--mem，再看', '`diag explain`。']
    """
    return _wrapped(_atoms(text), width, indent, rest)


def pad(text: str, width: int) -> str:
    """
    >>> pad("卡死", 6) + "|"
    '卡死  |'
    """
    return text + " " * max(0, width - columns(text))


def _atoms(text: str) -> Iterator[tuple[bool, str]]:
    """What may not be broken, and whether a space comes before it."""
    held, spaced, opens = "", False, False
    for token in _TOKEN.findall(text):
        if token.isspace():
            if held:
                yield spaced, held
            held, spaced, opens = "", True, False
            continue
        wide = len(token) == 1 and char_columns(token) == 2
        breaks = bool(held) and not opens and token not in _CLOSES and (wide or char_columns(held[-1]) == 2)
        if breaks:
            yield spaced, held
            held, spaced = "", False
        held += token
        opens = token in _OPENS
    if held:
        yield spaced, held
