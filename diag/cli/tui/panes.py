"""The widgets: panes of lines that scroll, the table of ranks, the findings. They draw what plain functions
made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from diag.cli.tui.line import Line, line
from diag.cli.tui.table import Table
from diag.cli.tui.words import say
from diag.text.columns import columns, cut

# The terminal's own colours, so that they fit its background.
STYLES: dict[str, Style] = {
    "": Style(),
    "bold": Style(bold=True),
    "dim": Style(dim=True),
    "critical": Style(color="red", bold=True),
    "warning": Style(color="yellow"),
    "info": Style(color="cyan"),
    "ok": Style(color="green"),
    "bold reverse": Style(bold=True, reverse=True),
    "critical reverse": Style(color="red", bold=True, reverse=True),
    "warning reverse": Style(color="yellow", bold=True, reverse=True),
    "ok reverse": Style(color="green", bold=True, reverse=True),
}


def strip_of(pieces: Line, width: int, *, below: Style | None = None) -> Strip:
    """Exactly `width` columns. Segments hold text as it is: nothing in it is markup."""
    segments = [
        Segment(text, STYLES[style] if below is None else below + STYLES[style]) for text, style in pieces
    ]
    return Strip(segments).adjust_cell_length(width, below or STYLES[""])


class Row(Widget):
    """Lines that do not scroll."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        self._lines = lines
        self.refresh()

    def render_line(self, y: int) -> Strip:
        return strip_of(self._lines[y] if y < len(self._lines) else (), self.size.width)


class Pane(Widget, can_focus=True):
    """A title, and lines below it of which some are seen. `lines` are made by `show`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup,ctrl+b,b", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+f,space", "page(1)", "page down", show=False),
        Binding("home,g", "edge(-1)", "first", show=False),
        Binding("end,G", "edge(1)", "last", show=False),
        Binding("enter", "open", "details", show=False),
    ]

    @dataclass
    class Opened(Message):
        """Enter was pressed on what is chosen."""

        pane: Pane

    @dataclass
    class Moved(Message):
        """Another one was chosen."""

        pane: Pane

    def __init__(self, id: str, title: str = "") -> None:
        super().__init__(id=id)
        self.title = title
        self._lines: list[Line] = []
        self._top = 0

    # -- what is shown ------------------------------------------------------------------------------------

    def show(self, lines: list[Line], title: str = "") -> None:
        self._lines = lines
        self.title = title or self.title
        self._settle()

    def count(self) -> int:
        return len(self._lines)

    def heads(self) -> list[Line]:
        """Lines under the title that do not scroll."""
        return []

    def draw(self, index: int) -> Strip:
        return strip_of(self._lines[index], self.size.width)

    @property
    def room(self) -> int:
        """Lines that are seen at once."""
        return max(1, self.size.height - 1 - len(self.heads()))

    def _settle(self) -> None:
        self._top = max(0, min(self._top, self.count() - self.room))
        self.refresh()

    def on_resize(self) -> None:
        self._settle()

    def render_line(self, y: int) -> Strip:
        heads = self.heads()
        if y == 0:
            return self._title_strip()
        if y <= len(heads):
            return strip_of(heads[y - 1], self.size.width)
        index = self._top + y - 1 - len(heads)
        return self.draw(index) if index < self.count() else strip_of((), self.size.width)

    def _title_strip(self) -> Strip:
        width, last = self.size.width, min(self.count(), self._top + self.room)
        where = f" {self._top + 1}-{last} {say('of')} {self.count()} " if self.count() > self.room else ""
        text = cut(f" {self.title} ", max(3, width - len(where)))
        pad = " " * max(0, width - columns(text) - len(where))
        return strip_of(line(text + pad + where, "bold reverse" if self.has_focus else "bold"), width)

    # -- keys ---------------------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        self._top += by
        self._settle()

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.room - 1))

    def action_edge(self, to: int) -> None:
        self.action_move(to * self.count())

    def action_open(self) -> None:
        self.post_message(self.Opened(self))


class ListPane(Pane):
    """The findings: moving chooses another one, and whoever receives `Moved` makes the lines anew."""

    def __init__(self, id: str, title: str = "") -> None:
        super().__init__(id, title)
        self.chosen = 0
        self.of = 0

    def action_move(self, by: int) -> None:
        before = self.chosen
        self.chosen = max(0, min(self.of - 1, self.chosen + by))
        if before != self.chosen:
            self.post_message(self.Moved(self))

    def action_edge(self, to: int) -> None:
        self.action_move(to * max(1, self.of))


class RankPane(Pane):
    """The table. Until a key moves it, the first row is the chosen one: the culprit; then the rank that was
    chosen."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._table: Table | None = None
        self._rank: int | None = None
        self._index = 0

    def show_table(self, table: Table, title: str) -> None:
        self._table = table
        self.title = title
        index = table.index_of(self._rank)
        if index is None:
            index = 0 if self._rank is None else min(self._index, max(0, len(table.rows) - 1))
        self._index = index
        self._follow()

    @property
    def chosen(self) -> int | None:
        """The rank."""
        rows = self._table.rows if self._table is not None else []
        return rows[self._index].rank if self._index < len(rows) else None

    def choose_first(self) -> None:
        """After the order changed: what comes first is what was asked for."""
        self._rank = None
        self._top = 0

    def count(self) -> int:
        return len(self._table.rows) if self._table is not None else 0

    def heads(self) -> list[Line]:
        return [self._table.head()] if self._table is not None else []

    def draw(self, index: int) -> Strip:
        assert self._table is not None
        chosen = index == self._index
        below = Style(reverse=True) if chosen and self.has_focus else Style(bold=True) if chosen else None
        return strip_of(self._table.row(index, chosen=chosen), self.size.width, below=below)

    def action_move(self, by: int) -> None:
        self._index = max(0, min(self.count() - 1, self._index + by))
        self._rank = self.chosen
        self._follow()
        self.post_message(self.Moved(self))

    def _follow(self) -> None:
        if self._index < self._top:
            self._top = self._index
        elif self._index >= self._top + self.room:
            self._top = self._index - self.room + 1
        self._settle()

    def on_resize(self) -> None:
        self._follow()


class Growing(Pane):
    """Lines that are made anew for each width and state."""

    def __init__(self, id: str, title: str, make: Callable[[int], list[Line]]) -> None:
        super().__init__(id, title)
        self.make = make

    def refill(self) -> None:
        if self.size.width:
            self.show(self.make(self.size.width))

    def on_resize(self) -> None:
        self.refill()
