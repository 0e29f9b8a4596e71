"""Plain logs as records: one pass over a stream of any size, at the times that its lines tell, with the
numbers of its lines."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from diag.engine.importers.readable import Readable
from diag.engine.importers.times import LineTimes
from diag.model import Record
from diag.sources.logs.output import PLAIN_LINES, PLAIN_RUN, LineAssembler
from diag.sources.logs.output import SOURCE as OUTPUT

__all__ = ["log_records", "merged"]

_CHUNK = 1 << 20
_LAST = 3  # lines of a run that tell nothing: one of them may tell the time


def log_records(
    file: Readable,
    name: str,
    at: float,
    rank: int | None = None,
    read: Callable[[int], None] = lambda size: None,
) -> Iterator[Record]:
    """`at`: when the file was written, for a log whose lines tell no times; those stand at one moment, a
    microsecond apart.

    `read` is told how many bytes were read.
    """
    lines = LineAssembler(name, whole=True)
    written = datetime.fromtimestamp(min(at, 4e9), timezone.utc) if at > 0 else datetime.now(timezone.utc)
    times = LineTimes(written.year)
    ticks = _Ticks(at)
    begun = False
    while True:
        data = file.read(_CHUNK)
        read(len(data))
        payload = lines.feed(data, final=not data)
        if payload is not None:
            if not begun:
                begun = True
                for item in payload[
                    "lines"
                ]:  # what stands before the first line with a time is not much older
                    if times.read(item[0]):
                        ticks.at = times.at or at
                        break
            yield from _timed(payload, times, ticks, rank)
        if not data:
            return


class _Ticks:
    def __init__(self, at: float) -> None:
        self.at = at

    def next(self, told: float | None) -> float:
        self.at = max(self.at + 1e-6, told or 0.0)
        return self.at


def _timed(payload: dict[str, Any], times: LineTimes, ticks: _Ticks, rank: int | None) -> Iterator[Record]:
    """One record for the lines of each moment."""
    lines: list[list[Any]] = []
    number = first = payload["first"]
    begins = times.at
    for item in payload["lines"]:
        text, kind = item
        if kind in (PLAIN_RUN, PLAIN_LINES):
            moved = False
            for line in text.rsplit("\n", _LAST)[-_LAST:]:
                moved |= times.read(line)
        else:
            moved = times.read(text)
        if moved and lines:
            yield Record(
                OUTPUT, {**payload, "lines": lines, "first": first}, rank=rank, at=ticks.next(begins)
            )
            lines, first = [], number
        begins = times.at
        lines.append(item)
        number += text.count("\n") + 1 if kind in (PLAIN_RUN, PLAIN_LINES) else 0 if kind else 1
    if lines:
        yield Record(OUTPUT, {**payload, "lines": lines, "first": first}, rank=rank, at=ticks.next(begins))


def merged(logs: Iterable[Iterator[Record]]) -> Iterator[Record]:
    """Several logs of one job in the order of their times; those without any stand where their files were
    written."""
    return heapq.merge(*logs, key=lambda record: record.at)
