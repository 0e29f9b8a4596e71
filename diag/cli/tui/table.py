"""The table of ranks: which columns fit, which rows are shown in which order, and a row as a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from diag.cli.tui.line import Line, right
from diag.cli.tui.state import Row, State
from diag.cli.tui.words import say, told
from diag.text.columns import columns, cut
from diag.text.units import compact, format_bytes, format_ratio, format_seconds

_NEVER = "-"  # not readable
_WHERE_LEAST = 20  # columns of where a rank is blocked; less is of no use
_HOST_MOST = 24
# what comes first when sorted by trouble; of the others none is more urgent
_STATE_ORDER = ("hung", "dead", "delaying", "stalled")
_STATE_STYLES = {
    "hung": "critical",
    "dead": "critical",
    "delaying": "warning",
    "stalled": "warning",
    "finished": "dim",
}
_IN_WORDS = ("state", "activity")  # columns whose values are words of diag
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?(?:,|$)")


@dataclass(frozen=True, slots=True)
class _Column:
    """`least` columns wide; where room is short those of the highest `drop` go first. `value` (of a row, at a moment) is
    what is sorted by, the largest first but for names and numbers of ranks (`rising`); unknown values come last."""

    name: str
    least: int
    drop: int
    value: Callable[[Row, float], Any]
    format: Callable[[Any], str] = str
    left: bool = False
    rising: bool = False

    def text(self, row: Row, now: float) -> str:
        value = self.value(row, now)
        return _NEVER if value is None else self.format(value)


def _named(name: str, drop: int) -> _Column:
    return _Column(name, len(name), drop, lambda row, now: getattr(row, name) or None, left=True, rising=True)


def _share(value: float) -> str:
    return compact(format_ratio(min(value, 99.99)))


def _bytes(value: float) -> str:
    return compact(format_bytes(value))


def _unmoved(row: Row, now: float) -> float | None:
    return None if row.progress_at is None else now - row.progress_at


_COLUMNS = (
    _Column("rank", 4, 0, lambda row, now: row.rank, rising=True),
    _named("host", 4),
    _named("state", 0),
    _Column("moved", 5, 1, _unmoved, lambda seconds: compact(format_seconds(seconds))),
    _named("activity", 2),
    _Column("CPU", 5, 3, lambda row, now: row.cpu_ratio, _share),
    _Column("RSS", 5, 5, lambda row, now: row.rss_bytes, _bytes),
    _Column("GPU", 4, 3, lambda row, now: row.gpu and row.gpu.utilization_ratio, _share),
    _Column("GPU mem", 7, 6, lambda row, now: row.gpu and row.gpu.memory_used_bytes, _bytes),
    _Column("pid", 7, 7, lambda row, now: row.pid or None),
)
ORDERS = ("trouble", *(column.name for column in _COLUMNS if column.name != "pid"))


class Table:
    """The rows of a state in an order, those that a filter leaves. `width` columns; rows are drawn one by
    one."""

    def __init__(
        self, state: State, width: int, order: str = "trouble", *, backwards: bool = False, wanted: str = ""
    ) -> None:
        self.now = state.now
        self.culprits = state.culprits()
        self.order, self.backwards = order, backwards
        self.rows = self._ordered(_matching(state.rows.values(), wanted))
        self.of = len(state.rows)
        self._columns, self._where = _chosen(self.rows, self.now, width, order)
        self.width = width

    def head(self) -> Line:
        """The names of the columns, with the order marked."""
        mark = "^" if self.backwards else "v"
        texts = [" "]
        for column, room in self._columns:
            name = say(column.name) + (mark if column.name == self.order else "")
            texts.append(_in(name, room, column.left))
        texts.append(say("where") if self._where else "")
        return ((cut(" ".join(texts), self.width), "dim"),)

    def row(self, index: int, *, chosen: bool = False) -> Line:
        row = self.rows[index]
        culprit = row.rank in self.culprits
        pieces = [(">" if chosen else " ", ""), ("!" if culprit else " ", "critical")]
        for column, room in self._columns:
            style = "critical" if culprit and column.name == "rank" else ""
            if column.name == "state":
                style = _STATE_STYLES.get(row.state, "")
            text = column.text(row, self.now)
            text = _in(say(text) if column.name in _IN_WORDS else text, room, column.left)
            pieces.append((text if column is _COLUMNS[0] else " " + text, style))
        if self._where:
            where = told(row.exit) or row.where or told(row.no_stack) or _NEVER  # of one that ended, how
            pieces.append((" " + cut(where, self._where), "dim" if row.exit else ""))
        return tuple(pieces)

    def _ordered(self, rows: Iterable[Row]) -> list[Row]:
        by_rank = sorted(rows, key=lambda row: row.rank)
        if self.order == "trouble":
            return sorted(by_rank, key=self._trouble, reverse=self.backwards)
        column = next(each for each in _COLUMNS if each.name == self.order)
        values = {row.rank: column.value(row, self.now) for row in by_rank}
        known = [row for row in by_rank if values[row.rank] is not None]
        known.sort(key=lambda row: values[row.rank], reverse=self.backwards == column.rising)
        return known + [row for row in by_rank if values[row.rank] is None]

    def _trouble(self, row: Row) -> tuple[bool, int]:
        known = row.state in _STATE_ORDER
        return row.rank not in self.culprits, _STATE_ORDER.index(row.state) if known else len(_STATE_ORDER)

    def index_of(self, rank: int | None) -> int | None:
        return next((index for index, row in enumerate(self.rows) if row.rank == rank), None)


def _in(text: str, room: int, left: bool) -> str:
    text = cut(text, room) if room > 3 else text[:room]
    return text + " " * (room - columns(text)) if left else right(text, room)


def _chosen(rows: Sequence[Row], now: float, width: int, order: str) -> tuple[list[tuple[_Column, int]], int]:
    """The columns that fit with their widths, and what is left for where a rank is blocked (0: too little)."""
    one_host = len({row.host for row in rows}) <= 1
    no_gpu = all(row.gpu is None for row in rows)
    wanted = []
    for column in _COLUMNS:
        if (column.name == "host" and one_host) or (column.name.startswith("GPU") and no_gpu):
            continue
        texts = (column.text(row, now) for row in rows)
        said = map(say, texts) if column.name in _IN_WORDS else texts
        longest = max(map(columns, said), default=0)
        most = _HOST_MOST if column.left else longest
        name = columns(say(column.name)) + (column.name == order)  # with the mark of the order
        wanted.append((column, max(column.least, name, min(longest, most))))
    while True:
        left = width - 1 - sum(room + 1 for _, room in wanted) - 1
        dropped = max(column.drop for column, _ in wanted)
        if left >= _WHERE_LEAST or dropped == 0:
            return wanted, max(0, left)
        wanted = [one for one in wanted if one[0].drop < dropped]


def _matching(rows: Iterable[Row], wanted: str) -> list[Row]:
    """Those in which each word of the filter occurs; a number, or `8-15,31`, is of ranks."""
    found = list(rows)
    for word in wanted.lower().split():
        if _RANGE.match(word) and not _RANGE.sub("", word):
            spans = [(int(low), int(high or low)) for low, high in _RANGE.findall(word)]
            found = [row for row in found if any(low <= row.rank <= high for low, high in spans)]
        else:
            found = [row for row in found if word in _searched(row)]
    return found


def _searched(row: Row) -> str:
    texts = (
        row.host,
        row.state,
        say(row.state),
        row.activity,
        row.context,
        row.where,
        row.caller,
        row.exit,
        row.no_stack,
    )
    return " ".join(texts).lower()
