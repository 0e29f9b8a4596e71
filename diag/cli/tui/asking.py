"""The part of the screen that asks its source for more, in threads: the stacks of the chosen rank,
and a dump."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from textual.app import App

from diag.cli.tui import rendering
from diag.cli.tui.line import Line, line
from diag.cli.tui.source import Source
from diag.cli.tui.state import State
from diag.text.errors import DiagError

_STACKS_SECONDS = 2.0  # between two questions for the stacks of one rank: it may move all the time
_DUMP_SECONDS = 12.0  # of the hub, with what it is given beyond its deadline


class Asking(App[None]):
    """The answers are in `stacks` (of one rank, or why there are none) and `next_command` (of a dump)."""

    source: Source
    state: State
    lang: str

    def __init__(self) -> None:
        super().__init__(ansi_color=True)
        self.stacks: dict[int, tuple[dict[str, Any] | None, str]] = {}
        self.next_command = ""
        # rank, since when it stood there, when
        self._asked: tuple[int | None, float | None, float] = (None, None, 0.0)
        self._dumping = False

    def refill(self) -> None:
        raise NotImplementedError

    def say(self, text: str, style: str = "bold", seconds: float = 8.0) -> None:
        raise NotImplementedError

    def show_page(self, title: str, make: Callable[[int], list[Line]], kind: str) -> None:
        raise NotImplementedError

    def of_rank(self, rank: int, width: int) -> list[Line]:
        row = self.state.rows.get(rank)
        if row is None:
            return [line(f"rank {rank} is no longer reported", "dim")]
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
            answer = (None, f"{error}" + (f" ({error.hint})" if error.hint else ""))
        with contextlib.suppress(RuntimeError):  # the screen is gone
            self.call_from_thread(self._take_stacks, rank, answer)

    def _take_stacks(self, rank: int, answer: tuple[dict[str, Any] | None, str]) -> None:
        self.stacks = {rank: answer}
        self.refill()

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
            self.say(f"no dump: {answer}" + (f" ({answer.hint})" if answer.hint else ""), "critical")
            return
        self.next_command = rendering.format_next(answer)
        self.show_page("Dump", partial(rendering.dump_lines, answer), "dump")
        self.say(rendering.format_bundle(answer))
