"""The table of ranks: which columns fit, which rows are shown in which order, and a row as a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from diag.cli.tui.line import Line, right
from diag.cli.tui.state import Row, State
from diag.text.columns import columns, cut
from diag.text.units import compact, format_bytes, format_ratio, format_seconds

_NEVER = "-"  # nobody could read it
_WHERE_LEAST = 20  # columns of where a rank stands; less tells nothing
_HOST_MOST = 24
# what comes first when sorted by trouble; of the others none is more urgent
_STATE_ORDER = ("hung", "dead", "stalled")
_STATE_STYLES = {"hung": "critical", "dead": "critical", "stalled": "warning", "finished": "dim"}
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?(?:,|$)")


def _share(value: float | None) -> str:
    return _NEVER if value is None else compact(format_ratio(min(value, 99.99)))


def _bytes(value: float | None) -> str:
    return _NEVER if value is None else compact(format_bytes(value))


@dataclass(frozen=True, slots=True)
class _Column:
    """`least` columns wide; where room is short those of the highest `drop` go first. `text` is told the
    time."""

    name: str
    least: int
    drop: int
    text: Callable[[Row, float], str]
    left: bool = False


def _moved(row: Row, now: float) -> str:
    return _NEVER if row.progress_at is None else compact(format_seconds(now - row.progress_at))


_COLUMNS = (
    _Column("rank", 4, 0, lambda row, now: str(row.rank)),
    _Column("host", 4, 4, lambda row, now: row.host, True),
    _Column("state", 5, 0, lambda row, now: row.state, True),
    _Column("moved", 5, 1, _moved),
    _Column("activity", 8, 2, lambda row, now: row.activity or _NEVER, True),
    _Column("CPU", 5, 3, lambda row, now: _share(row.cpu)),
    _Column("RSS", 5, 5, lambda row, now: _bytes(row.rss_bytes)),
    _Column("GPU", 4, 3, lambda row, now: _share(row.gpu.utilization if row.gpu else None)),
    _Column("GPU mem", 7, 6, lambda row, now: _bytes(row.gpu.used_bytes if row.gpu else None)),
    _Column("pid", 7, 7, lambda row, now: str(row.pid) if row.pid else _NEVER),
)

# Name of an order -> what is sorted by; unknown values come last. The largest first but for names and numbers
# of ranks.
ORDERS: dict[str, Callable[[Row], float | str | None]] = {
    "trouble": lambda row: None,
    "rank": lambda row: row.rank,
    "host": lambda row: row.host or None,
    "state": lambda row: row.state,
    "moved": lambda row: row.progress_at,
    "activity": lambda row: row.activity or None,
    "CPU": lambda row: None if row.cpu is None else -row.cpu,
    "RSS": lambda row: None if row.rss_bytes is None else -row.rss_bytes,
    "GPU": lambda row: None if row.gpu is None or row.gpu.utilization is None else -row.gpu.utilization,
    "GPU mem": lambda row: None if row.gpu is None or row.gpu.used_bytes is None else -row.gpu.used_bytes,
}


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
    """Where it stands; of one that ended, how."""
    return row.exit or row.where or row.no_stack or _NEVER


def _in(text: str, room: int, left: bool) -> str:
    text = cut(text, room) if room > 3 else text[:room]
    return text + " " * (room - columns(text)) if left else right(text, room)


def _chosen(rows: Sequence[Row], now: float, width: int, order: str) -> tuple[list[tuple[_Column, int]], int]:
    """The columns that fit with their widths, and what is left for where a rank stands (0: too little)."""
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
    key = ORDERS[order]
    told = [row for row in by_rank if key(row) is not None]
    return sorted(told, key=key, reverse=backwards) + [row for row in by_rank if key(row) is None]  # type: ignore[arg-type]


def _matching(rows: Iterable[Row], wanted: str) -> list[Row]:
    """Those in which each word of the filter occurs; a number, or `8-15,31`, is of ranks."""
    found = list(rows)
    for word in wanted.lower().split():
        if _RANGE.match(word) and not _RANGE.sub("", word):
            spans = [(int(low), int(high or low)) for low, high in _RANGE.findall(word)]
            found = [row for row in found if any(low <= row.rank <= high for low, high in spans)]
        else:
            found = [row for row in found if word in _words(row)]
    return found


def _words(row: Row) -> str:
    told = (row.host, row.state, row.activity, row.context, row.where, row.caller, row.exit, row.no_stack)
    return " ".join(told).lower()
