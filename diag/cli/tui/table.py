"""The table of ranks: which columns fit, which rows are shown in which order, and a row as a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from diag.cli.tui.line import Line, right
from diag.cli.tui.state import Row, State
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
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?(?:,|$)")


def _share(value: float | None) -> str:
    return _NEVER if value is None else compact(format_ratio(min(value, 99.99)))


def _bytes(value: float | None) -> str:
    return _NEVER if value is None else compact(format_bytes(value))


@dataclass(frozen=True, slots=True)
class _Column:
    """`least` columns wide; where room is short those of the highest `drop` go first. `value` is what is sorted
    by, the largest first but for names and numbers of ranks (`rising`); unknown values come last."""

    name: str
    least: int
    drop: int
    value: Callable[[Row], float | str | None]
    text: Callable[[Row, float], str]
    left: bool = False
    rising: bool = False


def _moved(row: Row, now: float) -> str:
    return _NEVER if row.progress_at is None else compact(format_seconds(now - row.progress_at))


def _named(name: str, drop: int, value: Callable[[Row], str]) -> _Column:
    return _Column(
        name,
        len(name),
        drop,
        lambda row: value(row) or None,
        lambda row, now: value(row) or _NEVER,
        True,
        True,
    )


def _measured(
    name: str,
    least: int,
    drop: int,
    value: Callable[[Row], float | None],
    text: Callable[[float | None], str],
) -> _Column:
    return _Column(name, least, drop, value, lambda row, now: text(value(row)))


_COLUMNS = (
    _Column("rank", 4, 0, lambda row: row.rank, lambda row, now: str(row.rank), rising=True),
    _named("host", 4, lambda row: row.host),
    _named("state", 0, lambda row: row.state),
    _Column("moved", 5, 1, lambda row: row.progress_at, _moved, rising=True),
    _named("activity", 2, lambda row: row.activity),
    _measured("CPU", 5, 3, lambda row: row.cpu_ratio, _share),
    _measured("RSS", 5, 5, lambda row: row.rss_bytes, _bytes),
    _measured("GPU", 4, 3, lambda row: row.gpu.utilization_ratio if row.gpu else None, _share),
    _measured("GPU mem", 7, 6, lambda row: row.gpu.memory_used_bytes if row.gpu else None, _bytes),
    _Column("pid", 7, 7, lambda row: row.pid, lambda row, now: str(row.pid) if row.pid else _NEVER),
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
        self.rows = _ordered(_matching(state.rows.values(), wanted), order, backwards, self.culprits)
        self.of = len(state.rows)
        self._columns, self._where = _chosen(self.rows, self.now, width, order)
        self.width = width

    def head(self) -> Line:
        """The names of the columns, with the order marked."""
        mark = "^" if self.backwards else "v"
        texts = [" "]
        for column, room in self._columns:
            name = column.name + (mark if column.name == self.order else "")
            texts.append(_in(name, room, column.left))
        texts.append("where" if self._where else "")
        return ((cut(" ".join(texts), self.width), "dim"),)

    def row(self, index: int, *, chosen: bool = False) -> Line:
        row = self.rows[index]
        culprit = row.rank in self.culprits
        pieces = [(">" if chosen else " ", ""), ("!" if culprit else " ", "critical")]
        for column, room in self._columns:
            style = "critical" if culprit and column.name == "rank" else ""
            if column.name == "state":
                style = _STATE_STYLES.get(row.state, "")
            text = _in(column.text(row, self.now), room, column.left)
            pieces.append((text if column is _COLUMNS[0] else " " + text, style))
        if self._where:
            pieces.append((" " + cut(_standing(row), self._where), "dim" if row.exit else ""))
        return tuple(pieces)

    def index_of(self, rank: int | None) -> int | None:
        return next((index for index, row in enumerate(self.rows) if row.rank == rank), None)


def _standing(row: Row) -> str:
    """Where it is blocked; of one that ended, how."""
    return row.exit or row.where or row.no_stack or _NEVER


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
        longest = max((columns(column.text(row, now)) for row in rows), default=0)
        most = _HOST_MOST if column.left else longest
        name = len(column.name) + (column.name == order)  # with the mark of the order
        wanted.append((column, max(column.least, name, min(longest, most))))
    while True:
        left = width - 1 - sum(room + 1 for _, room in wanted) - 1
        dropped = max(column.drop for column, _ in wanted)
        if left >= _WHERE_LEAST or dropped == 0:
            return wanted, max(0, left)
        wanted = [one for one in wanted if one[0].drop < dropped]


def _ordered(rows: Iterable[Row], order: str, backwards: bool, culprits: frozenset[int]) -> list[Row]:
    by_rank = sorted(rows, key=lambda row: row.rank)
    if order == "trouble":

        def trouble(row: Row) -> tuple[bool, int]:
            known = row.state in _STATE_ORDER
            return row.rank not in culprits, _STATE_ORDER.index(row.state) if known else len(_STATE_ORDER)

        return sorted(by_rank, key=trouble, reverse=backwards)
    column = next(each for each in _COLUMNS if each.name == order)
    known = [row for row in by_rank if column.value(row) is not None]
    known.sort(key=column.value, reverse=backwards == column.rising)  # type: ignore[arg-type]
    return known + [row for row in by_rank if column.value(row) is None]


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
    texts = (row.host, row.state, row.activity, row.context, row.where, row.caller, row.exit, row.no_stack)
    return " ".join(texts).lower()
