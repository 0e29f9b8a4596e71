"""Text from outside as a terminal may print them: they move no cursor, and forge no line of ours. Imports
little."""

from __future__ import annotations

import re
import unicodedata

_LONGEST_LINE = 2000  # characters of a log line that are read

# CSI, OSC (closed by BEL or ST, or left open), DCS and kin, two-character escapes; 8-bit CSI.
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b]*(?:\x1b\\)?|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)

_PAINT = re.compile(r"(\x1b\[[0-9;]{0,20}m)")


def clean(text: str) -> str:
    r"""One line that prints as it reads: escape sequences dropped, whatever else does not print shown as an
    escape.

    >>> clean("\x1b[31mloss\x1b[0m\t0.5\x07 \u202e")
    'loss 0.5\\x07 \\u202e'
    """
    text = _ESCAPE_SEQUENCE.sub("", text[:_LONGEST_LINE])
    if text.isprintable():
        return text
    return "".join(map(_printable, text))


def _printable(char: str) -> str:
    if char.isprintable():
        return char
    if char in "\t\n\r\v\f" or unicodedata.category(char) == "Zs":
        return " "
    return char.encode("unicode_escape").decode("ascii")


def clean_lines(text: str, *, colour: bool = False) -> str:
    r"""Several lines, each cleaned and none left out; of escape sequences with `colour` those that only paint
    are kept.

    >>> clean_lines("one\x1b[2J\n\n\x1b[1;31mtwo\x1b[0m", colour=True)
    'one\n\n\x1b[1;31mtwo\x1b[0m'
    """
    lines = [_PAINT.split(line) if colour else [line] for line in text.split("\n")]
    return "\n".join(
        "".join(piece if at % 2 else clean(piece) for at, piece in enumerate(pieces)) for pieces in lines
    )
