"""Plain logs as records: one pass over a stream of any size, at the times of its lines, with the
numbers of its lines."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from diag.engine.importers.readable import Readable
from diag.engine.importers.times import LineTimes
from diag.model import Record
from diag.sources.logs.output import PLAIN_LINES, PLAIN_RUN, QUIET, LineAssembler
from diag.sources.logs.output import SOURCE as OUTPUT

_CHUNK = 1 << 20
_EARLIEST = 1e8  # before it a clock only counts
_LAST, _FURTHER = 3, 100  # lines of a run that means nothing, in which its time is looked for


def log_records(
    file: Readable,
    name: str,
    at: float,
    rank: int | None = None,
    *,
    year: int | None = None,
    read: Callable[[int], None] = lambda size: None,
    literals: tuple[str, ...] = (),
    together: bool = False,
) -> Iterator[Record]:
    """`at`: when lines without times were written, a microsecond apart; 0.0 where that is not known. `year`: of times that
    have none; without it that of `at`.

    `read` is given how many bytes were read. `literals`: words of rules. `together`: lines of many
    moments are in one record, which has their times.
    """
    now, undated = 0.0, 0.0
    lines = LineAssembler(name, whole=True, runs=True, literals=literals)
    for moments in _timed(file, lines, at, year, read):
        records = []
        for stamp, payload in moments:
            if stamp is not None and 0.0 < now < _EARLIEST < stamp - undated:
                undated = stamp - now  # much came before the first time: the log stays without a date
            known = None if stamp is None else stamp - undated
            now = max((now or (at if known is None else known)) + 1e-6, known or 0.0)
            records.append(Record(OUTPUT, payload, rank=rank, at=now))
        yield from [_joined(records)] if together and len(records) > 1 else records


def _joined(records: Sequence[Record]) -> Record:
    lines: list[list[Any]] = []
    times = []
    for record in records:
        if lines:
            times.append([len(lines), record.at])
        lines += record.payload["lines"]
    first = records[0]
    return replace(first, payload={**first.payload, "lines": lines, "times": times})


def _last_dated(run: str) -> list[str]:
    """Any of a run's last lines may have the time; some further ones, where those have none."""
    last = run.rsplit("\n", _LAST)[-_LAST:]
    return last if any(line.count(":") >= 2 for line in last) else run.rsplit("\n", _FURTHER)[-_FURTHER:]


def parted(record: Record) -> Iterator[Record]:
    """The same as one record for each of its moments."""
    payload = record.payload
    lines, number, begin, at = payload["lines"], payload["first"], 0, record.at
    for end, then in (*payload.get("times", ()), (len(lines), 0.0)):
        own = lines[begin:end]
        part = {**payload, "lines": own, "first": number}
        part.pop("times", None)
        yield replace(record, payload=part, at=at)
        number += sum(lines_in(text, kind) for text, kind in own)
        begin, at = end, then


def lines_in(text: str, kind: int) -> int:
    """How many lines an item holds."""
    return text.count("\n") + 1 if kind in (PLAIN_RUN, PLAIN_LINES) else int(kind in (0, QUIET))


def _timed(
    file: Readable, lines: LineAssembler, at: float, year: int | None, read: Callable[[int], None]
) -> Iterator[list[tuple[float | None, dict[str, Any]]]]:
    """One payload for the lines of each moment, and their time: None where none has so far. Of a piece of the file all of
    them."""
    if year is None and at > 0:
        year = datetime.fromtimestamp(min(at, 4e9), timezone.utc).year
    times = LineTimes(year)
    for number, payload in enumerate(payloads(file, lines, read)):
        if number == 0:  # what is before the first line with a time is not much older
            any(times.read(item[0]) for item in payload["lines"])
        yield list(_moments(payload, times))


def payloads(file: Readable, lines: LineAssembler, read: Callable[[int], None]) -> Iterator[dict[str, Any]]:
    data = b"?"
    while data:
        data = file.read(_CHUNK)
        read(len(data))
        payload = lines.feed(data, final=not data)
        if payload is not None:
            yield payload


def _moments(payload: dict[str, Any], times: LineTimes) -> Iterator[tuple[float | None, dict[str, Any]]]:
    lines: list[list[Any]] = []
    number = first = payload["first"]
    begins = times.at
    for item in payload["lines"]:
        text, kind = item
        runs = kind in (PLAIN_RUN, PLAIN_LINES)
        moved = [times.read(line) for line in (_last_dated(text) if runs else (text,))]
        if any(moved) and lines:
            yield begins, {**payload, "lines": lines, "first": first}
            lines, first = [], number
        begins = times.at
        lines.append(item)
        number += lines_in(text, kind)
    if lines:
        yield begins, {**payload, "lines": lines, "first": first}


def merged(logs: Iterable[Iterator[Record]]) -> Iterator[Record]:
    """Several logs of one job in the order of their times; those without any are where their files were
    written."""
    return heapq.merge(*logs, key=lambda record: record.at)
