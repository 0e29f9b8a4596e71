"""A line of the screen: pieces of text, each with the name of its style. Plain text is the same without the
names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from diag.text.columns import columns

# (text, style); a style is one of `panes.STYLES` or empty. A word always says the same as a colour.
Line: TypeAlias = tuple[tuple[str, str], ...]


def line(text: str, style: str = "") -> Line:
    return ((text, style),)


def text_lines(texts: Iterable[str], style: str = "") -> list[Line]:
    return [line(text, style) for text in texts]


def plain(pieces: Line) -> str:
    return "".join(text for text, _ in pieces).rstrip()


def right(text: str, width: int) -> str:
    """At the right edge of `width` columns."""
    return " " * max(0, width - columns(text)) + text
