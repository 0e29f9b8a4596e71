"""The keys, as the last line of the screen and as the page of help; their texts are in keys.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diag.cli.tui.line import Line, line, text_lines
from diag.text.columns import wrap
from diag.text.tables import load_table


def _texts() -> dict[str, Any]:
    return load_table(Path(__file__).with_suffix(".yaml"))


def key_line(width: int, *, within: bool) -> Line:
    pieces: list[tuple[str, str]] = []
    room = width
    for key, what in _texts()["within" if within else "main"]:
        room -= len(key) + 1 + len(what) + (1 if pieces else 0)
        if room < 0:
            break
        pieces += [(" " if pieces else "", ""), (key, "bold"), (f" {what}", "")]
    return tuple(pieces)


def help_lines(width: int) -> list[Line]:
    lines: list[Line] = []
    for key, what in _texts()["help"]:
        first, *rest = wrap(what, max(20, width - 16))
        lines += [((f"  {key:14}", "bold"), (first, "")), *text_lines(" " * 16 + text for text in rest)]
    lines.append(line(""))
    for text in _texts()["marks"]:
        lines += text_lines(wrap(text, width, "  ", "  "))
    return lines
