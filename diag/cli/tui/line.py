"""A line of the screen: pieces of text, each with the name of its style. Plain text is the same without the
names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from diag.text.columns import char_columns, columns

# (text, style); a style is one of `panes.STYLES` or empty. A word always says the same as a colour.
Line: TypeAlias = tuple[tuple[str, str], ...]


def line(text: str, style: str = "") -> Line:
    return ((text, style),)


def text_lines(texts: Iterable[str], style: str = "") -> list[Line]:
    return [line(text, style) for text in texts]


def plain(pieces: Line) -> str:
    return "".join(text for text, _ in pieces).rstrip()


def fit(pieces: Line, width: int) -> Line:
    """Cut where it is wider than `width` columns, at the column.

    >>> fit((("rank ", ""), ("12345", "bold")), 7)
    (('rank ', ''), ('12', 'bold'))
    """
    fitted: list[tuple[str, str]] = []
    room = width
    for text, style in pieces:
        size = columns(text)
        if size >= room:
            fitted.append((_first(text, room), style))
            break
        fitted.append((text, style))
        room -= size
    return tuple(fitted)


def _first(text: str, room: int) -> str:
    if text.isascii():
        return text[:room]
    for index, char in enumerate(text):
        room -= char_columns(char)
        if room < 0:
            return text[:index]
    return text


def right(text: str, width: int) -> str:
    """At the right edge of `width` columns."""
    return " " * max(0, width - columns(text)) + text
