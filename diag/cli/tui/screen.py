"""Which key does what (their texts are in keys.yaml, for the last line of the screen and the page of help), and the page
that shows one thing on all of the screen; screen.tcss lays it out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from diag.cli.tui.line import Line, line, text_lines
from diag.cli.tui.panes import Growing, Row
from diag.cli.tui.words import say
from diag.text.columns import columns, pad, wrap, wrap_wide
from diag.text.tables import load_table

# Names of actions of `app.TopApp`. With priority are those that must be heard before what is typed after
# them.
KEYS: tuple[BindingType, ...] = (
    Binding("q", "leave", "quit"),
    Binding("ctrl+c", "quit", "quit", priority=True, show=False),
    Binding("ctrl+z", "suspend_process", show=False),
    Binding("tab", "other_pane(1)", "next pane", priority=True),
    Binding("shift+tab", "other_pane(-1)", show=False, priority=True),
    Binding("s", "stacks", "merged stacks"),
    Binding("f", "findings", "findings"),
    Binding("t", "timeline", "time line"),
    Binding("d", "dump", "dump now"),
    Binding("e", "explain", "explain"),
    Binding("c", "copy", "copy the next command"),
    Binding("slash", "filter", "filter", priority=True),
    Binding("greater_than_sign", "order(1)", "sort by the next column"),
    Binding("less_than_sign", "order(-1)", show=False),
    Binding("R", "backwards", "sort backwards"),
    Binding("question_mark,h", "help", "help"),
)


def _texts() -> dict[str, Any]:
    return load_table(Path(__file__).with_name("keys.yaml"))


def key_line(width: int, *, within: bool) -> Line:
    pieces: list[tuple[str, str]] = []
    room = width
    for key, text in _texts()["within" if within else "main"]:
        what = say(text)
        room -= len(key) + 1 + columns(what) + (1 if pieces else 0)
        if room < 0:
            break
        pieces += [(" " if pieces else "", ""), (key, "bold"), (f" {what}", "")]
    return tuple(pieces)


def _wrapped(text: str, width: int) -> list[str]:
    return (wrap if say(text) == text else wrap_wide)(say(text), width)


def help_lines(width: int) -> list[Line]:
    lines: list[Line] = []
    for key, what in _texts()["help"]:
        first, *rest = _wrapped(what, max(20, width - 16))
        lines += [
            ((f"  {pad(say(key), 14)}", "bold"), (first, "")),
            *text_lines(" " * 16 + text for text in rest),
        ]
    lines.append(line(""))
    for text in _texts()["marks"]:
        lines += text_lines("  " + row for row in _wrapped(text, max(20, width - 2)))
    return lines


class Pager(Screen[None]):
    """One thing on the whole screen: all of a finding, a rank, the stacks, the time line, a manual page, a
    dump."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,left", "app.pop_screen", "back", show=False)]

    def __init__(self, title: str, make: Callable[[int], list[Line]], kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.pane = Growing("page", title, make)

    def compose(self) -> ComposeResult:
        yield Row("page-head")
        yield self.pane
        yield Row("page-keys")
