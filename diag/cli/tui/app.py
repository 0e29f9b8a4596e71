"""The screen of `diag top`: puts panes together, takes keys and the source's state, and asks the source for more in
threads (stacks, a dump). Its texts are made in `rendering`, `table`, `spark`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input

from diag.cli.tui import rendering, spark
from diag.cli.tui.line import Line, line
from diag.cli.tui.panes import ListPane, Pane, RankPane, Row
from diag.cli.tui.screen import KEYS, Pager, help_lines, key_line
from diag.cli.tui.source import Link, Source
from diag.cli.tui.state import State
from diag.cli.tui.table import ORDERS, Table
from diag.cli.tui.words import say, speak
from diag.text.columns import cut
from diag.text.errors import DiagError
from diag.text.sanitize import clean
from diag.text.units import format_seconds

_WIDE = 130  # columns: from here on the chosen rank's details are beside the table
_TALL = 34  # lines: from here on the time line is below it
_TIMELINE_MOST = 9  # lines of it
_MESSAGE_SECONDS = 8.0
_STACKS_SECONDS = 2.0  # between two requests for the stacks of one rank: it may move all the time
_DUMP_SECONDS = 12.0  # of the hub, with what it is given beyond its deadline


class TopApp(App[None]):
    """`source` is started when the screen is up; `document` is its first answer. What it is asked for later is in `stacks`
    (of one rank, or why there are none) and `next_command` (of a dump)."""

    TITLE = "diag top"
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "screen.tcss"
    BINDINGS: ClassVar[list[BindingType]] = list(KEYS)

    class Woken(Message):
        """There is something in the inbox."""

    def __init__(
        self, source: Source, document: dict[str, Any], *, lang: str = "en", blocks: bool = True
    ) -> None:
        super().__init__(ansi_color=True)
        speak(lang)
        self.source = source
        self.state = State()
        self.state.take_document(document)
        self.link = Link("LIVE")
        self._linked_at = time.monotonic()
        self.lang = lang
        self.marks = spark.BLOCKS if blocks else spark.PLAIN
        self.order, self.is_backwards, self.wanted = "trouble", False, ""
        self.copied = ""
        self.stacks: dict[int, tuple[dict[str, Any] | None, str]] = {}
        self.next_command = ""
        # rank, since when it was at that place, when
        self._asked: tuple[int | None, float | None, float] = (None, None, 0.0)
        self._dumping = False
        self._message: Line = ()
        self._message_until = 0.0

    def compose(self) -> ComposeResult:
        yield Row("head")
        yield ListPane("findings")
        with Horizontal(id="middle"):
            with Vertical(id="left"):
                yield RankPane("ranks")
                yield Pane("timeline", say("Time line"))
            yield Pane("side", say("Rank"))
        yield Input(id="filter", placeholder=say("text to match, or ranks: 8-15"), select_on_focus=False)
        yield Row("keys")

    def on_mount(self) -> None:
        # not in the main thread: tests
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        self.ranks.focus()
        self.refill()
        self.set_interval(1.0, self._tick)
        self.source.start(self._wake)

    @property
    def ranks(self) -> RankPane:
        return self.screen_stack[0].query_one("#ranks", RankPane)

    def on_unmount(self) -> None:
        self.source.stop()

    # -- hearing ------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self.post_message(self.Woken())

    def on_top_app_woken(self) -> None:
        parts, link = self.source.inbox.take()
        if link is not None:
            self.link, self._linked_at = link, time.monotonic()
        for part, value in parts.items():
            try:
                self.state.take(part, value)
            except ValueError as error:
                self.link = Link(self.link.word, f"not understood: {clean(str(error))[:80]}")
        self.refill()

    def _tick(self) -> None:
        if self._message and time.monotonic() > self._message_until:
            self._message = ()
            self._foot()
        if self.link.word == "LOST":
            self._heads()

    def say(self, text: str, style: str = "bold", seconds: float = _MESSAGE_SECONDS) -> None:
        self._message, self._message_until = line(say(text), style), time.monotonic() + seconds
        self._foot()

    # -- drawing ------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        self.call_after_refresh(self.refill)

    def refill(self) -> None:
        """All anew. Sizes first: what is in a pane depends on its width."""
        if not self.is_running or not self.screen_stack:
            return
        base = self.screen_stack[0]
        width, height = self.size
        side, timeline = base.query_one("#side", Pane), base.query_one("#timeline", Pane)
        side.display, timeline.display = width >= _WIDE, height >= _TALL
        if timeline.display:
            drawn = spark.timeline_lines(self.state, timeline.size.width or width, self.marks, _TIMELINE_MOST)
            timeline.styles.height = len(drawn) + 1
            timeline.show(drawn)
        self._fill_findings(base.query_one("#findings", ListPane), width, height)
        ranks = self.ranks
        table = Table(
            self.state, ranks.size.width or width, self.order, backwards=self.is_backwards, wanted=self.wanted
        )
        wanted = f", filter: {self.wanted}" if self.wanted else ""
        of = f"{len(table.rows)} of {table.of}" if self.wanted else str(table.of)
        ranks.show_table(table, say(f"Ranks: {of}, by {self.order}{wanted}"))
        self._fill_side(side, ranks)
        self._heads()
        self._foot()
        if isinstance(self.screen, Pager):
            self.screen.pane.refill()

    def _fill_findings(self, pane: ListPane, width: int, height: int) -> None:
        found = self.state.findings
        pane.of = len(found)
        pane.chosen = max(0, min(pane.chosen, len(found) - 1))
        # lines of the panes below
        others = 3 + min(len(self.state.rows), 8) + (_TIMELINE_MOST + 1 if height >= _TALL else 0)
        most = max(4, int(height * 0.4) - 1, height - 4 - others)
        lines = rendering.findings_pane(self.state, pane.chosen, width, most, self.lang)
        pane.styles.height = len(lines) + 1
        over = f"{len(self.state.past)} over" if self.state.past else ""
        title = ", ".join(filter(None, [str(len(found)) if found else "", over]))
        pane.show(lines, say(f"Findings: {title}" if title else "Findings"))

    def _fill_side(self, side: Pane, ranks: RankPane) -> None:
        if side.display and ranks.chosen is not None:
            side.show(self.of_rank(ranks.chosen, side.size.width or 60), say(f"Rank {ranks.chosen}"))
            self.ask_stacks(ranks.chosen)

    def _heads(self) -> None:
        about = self.link.about
        if self.link.word == "LOST":
            about = f"{format_seconds(time.monotonic() - self._linked_at)}: {say(about)}"
        lines = rendering.head_lines(self.state, self.link.word, about, self.size.width)
        for row in self._rows("head"):
            row.show(lines)

    def _foot(self) -> None:
        foot = self._message
        if not foot and self.link.command:
            foot = line(say(f"next: {self.link.command}"), "bold")
        for row in self._rows("keys"):
            within = row.id == "page-keys"
            width = self.size.width
            row.show([line(cut(foot[0][0], width), foot[0][1]) if foot else key_line(width, within=within)])

    def _rows(self, name: str) -> list[Row]:
        return [
            row for screen in self.screen_stack for row in screen.query(Row) if (row.id or "").endswith(name)
        ]

    # -- asking for more ------------------------------------------------------------------------------

    def of_rank(self, rank: int, width: int) -> list[Line]:
        row = self.state.rows.get(rank)
        if row is None:
            return [line(say(f"rank {rank} is no longer reported"), "dim")]
        return rendering.rank_lines(row, self.state, *self.stacks.get(rank, (None, "")), width)

    def ask_stacks(self, rank: int) -> None:
        """Once, and again when the rank moved."""
        row = self.state.rows.get(rank)
        if row is None:
            return
        known, since, at = self._asked
        if known == rank and (since == row.stack_since or time.monotonic() - at < _STACKS_SECONDS):
            return
        self._asked = (rank, row.stack_since, time.monotonic())
        url = self.state.url_of(rank)
        self.run_worker(
            partial(self._stacks_of, rank, url),
            group="stacks",
            exclusive=True,
            thread=True,
            exit_on_error=False,
        )

    def _stacks_of(self, rank: int, url: str) -> None:
        try:
            answer: tuple[dict[str, Any] | None, str] = (self.source.stacks(rank, url), "")
        except DiagError as error:
            answer = (None, _with_hint(error))
        self.stacks = {rank: answer}
        with contextlib.suppress(RuntimeError):  # the screen is gone
            self.call_from_thread(self.refill)

    def action_dump(self) -> None:
        if self._dumping:
            return
        self._dumping = True
        self.say("dump: reading every rank, 8 s at most ...", seconds=_DUMP_SECONDS)
        self.run_worker(
            partial(self._make_dump, max(60, self.size.width)), group="dump", thread=True, exit_on_error=False
        )

    def _make_dump(self, columns: int) -> None:
        answer: dict[str, Any] | DiagError
        try:
            answer = self.source.dump(columns, self.lang)
        except DiagError as error:
            answer = error
        with contextlib.suppress(RuntimeError):
            self.call_from_thread(self._take_dump, answer)

    def _take_dump(self, answer: dict[str, Any] | DiagError) -> None:
        self._dumping = False
        if isinstance(answer, DiagError):
            self.say(f"no dump: {_with_hint(answer)}", "critical")
            return
        self.next_command = rendering.format_next(answer)
        self.show_page("Dump", partial(rendering.dump_lines, answer), "dump")
        self.say(rendering.format_bundle(answer))

    # -- keys ---------------------------------------------------------------------------------------------

    def show_page(self, title: str, make: Callable[[int], list[Line]], kind: str) -> None:
        if isinstance(self.screen, Pager):
            again = self.screen.kind == kind
            self.pop_screen()
            if again and kind != "rank":  # the same key once more closes it
                return
        self.push_screen(Pager(say(title), make, kind), callback=None)
        self.call_after_refresh(self.refill)

    def action_leave(self) -> None:
        if isinstance(self.screen, Pager):
            self.pop_screen()
        else:
            self.exit()

    def action_other_pane(self, by: int) -> None:
        if isinstance(self.screen, Pager):
            return
        panes = [pane for pane in self.screen.query(Pane) if pane.display]
        here = next((index for index, pane in enumerate(panes) if pane.has_focus), 0)
        panes[(here + by) % len(panes)].focus()

    def on_pane_moved(self, event: Pane.Moved) -> None:
        base = self.screen_stack[0]
        if isinstance(event.pane, RankPane):
            self._fill_side(base.query_one("#side", Pane), event.pane)
        elif isinstance(event.pane, ListPane):
            self._fill_findings(event.pane, *self.size)

    def on_pane_opened(self, event: Pane.Opened) -> None:
        pane = event.pane
        if isinstance(pane, ListPane) and self.state.findings:
            finding = self.state.findings[pane.chosen]
            self.show_page("Finding", partial(self._finding, finding["id"], finding["subject"]), "finding")
        elif isinstance(pane, ListPane):
            self.action_findings()
        elif pane.id == "timeline":
            self.action_timeline()
        elif pane.id in ("ranks", "side"):
            rank = self.ranks.chosen
            if rank is not None:
                self.ask_stacks(rank)
                self.show_page(f"Rank {rank}", partial(self.of_rank, rank), "rank")

    def _finding(self, name: str, subject: str, width: int) -> list[Line]:
        for finding in [*self.state.findings, *self.state.past]:
            if (finding["id"], finding["subject"]) == (name, subject):
                return rendering.finding_lines(finding, self.state, width, self.lang)
        return [line(say("it is over"), "dim")]

    def action_stacks(self) -> None:
        self.show_page("Merged stacks, outliers first", partial(rendering.stacks_lines, self.state), "stacks")

    def action_findings(self) -> None:
        self.show_page("Findings", partial(rendering.findings_lines, self.state, lang=self.lang), "findings")

    def action_timeline(self) -> None:
        self.show_page("Time line", partial(spark.timeline_lines, self.state, marks=self.marks), "timeline")

    def action_help(self) -> None:
        self.show_page("Keys", help_lines, "help")

    def action_explain(self) -> None:
        found = self.state.findings
        if not found and not self.state.past:
            self.say("nothing found: nothing to explain")
            return
        pane = self.screen_stack[0].query_one("#findings", ListPane)
        name = (found[pane.chosen] if found else self.state.past[0])["id"]
        self.show_page(f"diag explain {name}", partial(rendering.manual_lines, name, self.lang), "explain")

    def action_copy(self) -> None:
        found = self.state.findings or self.state.past
        fallback = f"diag explain {found[0]['id']}" if found else "diag dump --all-ranks"
        command = self.link.command or self.next_command or self.state.report["next_command"] or fallback
        self.copied = command
        self.copy_to_clipboard(command)
        self.say(f"copied: {command}")

    # -- order and filter ---------------------------------------------------------------------------------

    def action_order(self, by: int) -> None:
        names = list(ORDERS)
        self.order = names[(names.index(self.order) + by) % len(names)]
        self.ranks.choose_first()
        self.refill()

    def action_backwards(self) -> None:
        self.is_backwards = not self.is_backwards
        self.ranks.choose_first()
        self.refill()

    def action_filter(self) -> None:
        if isinstance(self.screen, Pager):
            self.pop_screen()
        base = self.screen_stack[0]
        field = base.query_one("#filter", Input)
        if field.has_focus:
            field.insert_text_at_cursor("/")
            return
        field.display = True
        base.set_focus(field)  # at once: what is typed next is for it

    def on_input_changed(self, event: Input.Changed) -> None:
        self.wanted = clean(event.value)
        self.refill()

    def on_input_submitted(self) -> None:
        self._end_filter()

    def on_key(self, event: Any) -> None:
        field = self.screen_stack[0].query_one("#filter", Input)
        if event.key == "escape" and not isinstance(self.screen, Pager) and (field.has_focus or self.wanted):
            field.value = ""
            self._end_filter()

    def _end_filter(self) -> None:
        field = self.screen_stack[0].query_one("#filter", Input)
        field.display = False
        self.screen_stack[0].set_focus(self.ranks)
        if self.wanted:
            self.say(f"filter: {self.wanted}   (Esc clears it)")


def _with_hint(error: DiagError) -> str:
    return f"{error}" + (f" ({error.hint})" if error.hint else "")
