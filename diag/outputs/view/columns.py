"""Rows of ranks as columns: what thousands of ranks have in common is said once. For the wire; pure.

A column is one of {"all": value}, {"from": first} (whole numbers in order), {"of": [values], "at": "..."} (the
place of each row's: one sign of DIGITS each, two where there are more than 64 values), {"each": [values]}, or of objects
{"parts": {key: column}, "none": [rows that have none]}. What changes with every reading is coarser than in rows, and as
fine as a screen shows it: moments to 0.1 s, memory to three digits, shares to 1 %.
"""

from __future__ import annotations

import marshal
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["DIGITS", "columns", "rows_of", "with_columns"]

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_FEW, _MANY = len(DIGITS), len(DIGITS) ** 2

_WATTS = 10


def _moment(value: float) -> float:
    return round(value, 1)


def _memory(value: float) -> int:
    """The three digits of a size that are shown, in bytes.

    >>> _memory(8484028416), _memory(0)
    (8482560410, 0)
    """
    unit = 1
    while value / unit >= 1023.5:  # as format_bytes
        unit *= 1024
    size = value / unit
    scale = 10 ** max(0, 2 - math.floor(math.log10(size))) if size >= 1 else 100
    return round(math.floor(size * scale + 0.5) / scale * unit)


def _share(value: float) -> float:
    return round(value, 2)


def _shares(value: Mapping[str, float]) -> dict[str, float]:
    return {kind: _share(share) for kind, share in value.items()}


def _power(value: float) -> int:
    return round(value / _WATTS) * _WATTS


_OF_GPU: Mapping[str, Callable[[Any], Any]] = {
    "utilization_ratio": _share, "memory_used_bytes": _memory, "power_watts": _power
}  # fmt: skip


def _gpu(value: Mapping[str, Any]) -> dict[str, Any]:
    coarse = {name: change(value[name]) for name, change in _OF_GPU.items() if value.get(name) is not None}
    return {**value, **coarse}


_COARSE: Mapping[str, Callable[[Any], Any]] = {
    "progress_at": _moment, "stack_since": _moment, "rss_bytes": _memory, "peak_rss_bytes": _memory,
    "time_shares": _shares, "gpu": _gpu,
}  # fmt: skip


def with_columns(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a state, their rows of ranks as columns, which have the pids of ranks: stacks have only those of
    children."""
    stacks = [{**one, "pids": []} if one["kind"] == "rank" else one for one in parts["stacks"]]
    return {**parts, "ranks": columns(parts["ranks"]), "stacks": stacks}


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """
    >>> columns([{"rank": 0, "state": "running"}, {"rank": 1, "state": "running"}])
    {'count': 2, 'columns': {'rank': {'from': 0}, 'state': {'all': 'running'}}}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        "count": len(rows),
        "columns": {name: _column(name, [row.get(name) for row in rows]) for name in names},
    }


def _column(name: str, values: list[Any]) -> dict[str, Any]:
    coarse = _COARSE.get(name)
    if coarse is not None:
        values = [None if value is None else coarse(value) for value in values]
    places: dict[bytes, int] = {}
    known: list[Any] = []
    at = []
    for value in values:
        key = marshal.dumps(value, 2)  # tells 1 from True, which are equal, and takes dicts
        place = places.setdefault(key, len(known))
        if place == len(known):
            known.append(value)
        at.append(place)
    if len(known) == 1:
        return {"all": known[0]}
    if 4 * len(known) <= len(values):
        return _coded(known, at)
    if all(isinstance(value, Mapping) or value is None for value in known):
        return _parts([value for value in values if value is not None], values)
    first = values[0]
    if type(first) is int and values == list(range(first, first + len(values))):
        return {"from": first}
    return _coded(known, at) if 2 * len(known) <= len(values) else {"each": values}


def _coded(known: list[Any], at: list[int]) -> dict[str, Any]:
    if len(known) > _MANY:
        return {"each": [known[place] for place in at]}
    signs = DIGITS if len(known) <= _FEW else [high + low for high in DIGITS for low in DIGITS]
    return {"of": known, "at": "".join([signs[place] for place in at])}


def _places(column: Mapping[str, Any]) -> list[int]:
    low = [DIGITS.index(sign) for sign in column["at"]]
    return (
        low
        if len(column["of"]) <= _FEW
        else [_FEW * high + each for high, each in zip(low[::2], low[1::2], strict=True)]
    )


def _parts(there: list[Any], values: list[Any]) -> dict[str, Any]:
    names = dict.fromkeys(name for value in there for name in value)
    found = {name: _column("", [value.get(name) for value in there]) for name in names}
    return {"parts": found, "none": [row for row, value in enumerate(values) if value is None]}


def rows_of(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows again, as the page takes them apart; what a row had not is None, what an object had not is left out.

    >>> rows_of(columns([{"rank": 0}, {"rank": 1, "exit": None}]))
    [{'rank': 0, 'exit': None}, {'rank': 1, 'exit': None}]
    """
    rows: list[dict[str, Any]] = [{} for _ in range(table["count"])]
    for name, column in table["columns"].items():
        for row, value in zip(rows, _values(column, len(rows)), strict=True):
            row[name] = value
    return rows


def _values(column: Mapping[str, Any], count: int) -> list[Any]:
    if "parts" in column:
        none = set(column["none"])
        objects: list[dict[str, Any]] = [{} for _ in range(count - len(none))]
        for name, part in column["parts"].items():
            for each, value in zip(objects, _values(part, len(objects)), strict=True):
                if value is not None:
                    each[name] = value
        rest = iter(objects)
        return [None if row in none else next(rest) for row in range(count)]
    if "from" in column:
        return list(range(column["from"], column["from"] + count))
    if "of" in column:
        return [column["of"][place] for place in _places(column)]
    return list(column["each"]) if "each" in column else [column["all"]] * count
