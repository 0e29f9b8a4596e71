"""Which key does what, and the page that shows one thing on all of the screen; screen.tcss lays it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from diag.cli.tui.line import Line
from diag.cli.tui.panes import Growing, Row

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
