"""Payloads of records as typed values.

A journal or a capture may be a stranger's, cut off or damaged: nothing of its types is believed.
"""

from __future__ import annotations

import functools
import re
import reprlib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from diag.model import Payload, Record
from diag.model.observations import Observation, Parser, Unparsed

UNFIT = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_Kind = TypeVar("_Kind")


def guarded(source: str, what: str = "not a payload of this source") -> Callable[[Parser], Parser]:
    """A parser that reports `Unparsed` where it would raise: the payload is none of this source, or damaged."""

    def decorate(read: Parser) -> Parser:
        @functools.wraps(read)
        def parse(record: Record) -> Iterator[Observation]:
            try:
                yield from read(record)
            except UNFIT as error:
                why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                yield Unparsed(
                    record.rank, source, f"{what}: {why}"[:200], reprlib.repr(record.payload)[:200]
                )

        return parse

    return decorate


def failures_of(source: str) -> Mapping[str, tuple[str, str]]:
    """Reason and remedy by the word in the payload, of failures.yaml."""
    from diag.text.tables import load_table

    return cast(
        "Mapping[str, tuple[str, str]]", load_table(Path(__file__).with_name("failures.yaml"))[source]
    )


def explained(failures: Mapping[str, tuple[str, str]], payload: Payload) -> tuple[str, str]:
    """Reason and remedy of a payload that has "failed" (a key of `failures`) and perhaps "detail", for people."""
    failed, detail = word(payload["failed"]), word(payload.get("detail"))
    reason, remedy = failures.get(failed, (failed, ""))
    return (f"{reason}: {detail}" if detail else reason), remedy


# --- values of which nothing is known: those that do not fit are none


def mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, (list, tuple)) else []


def rows(value: Any, *kinds: type) -> Iterator[list[Any]]:
    """Of a list of lists those with an item of each of these types."""
    for row in sequence(value):
        if isinstance(row, list) and len(row) == len(kinds) and all(map(isinstance, row, kinds)):
            yield row


def word(value: Any, most: int = 200) -> str:
    return value[:most] if isinstance(value, str) else ""


def texts(value: Any, most: int = 300) -> tuple[str, ...] | None:
    return (
        tuple(word(item, most) for item in value if isinstance(item, str))
        if isinstance(value, list)
        else None
    )


def integer(value: Any) -> int:
    """JSON has some numbers as strings."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        value = int(value)
    return value if type(value) is int and abs(value) < 1 << 63 else 0


@functools.lru_cache(
    maxsize=4096
)  # a world's ranks are the same in the dump of every rank, and are kept once
def numbers_in(text: str) -> tuple[int, ...]:
    """None of more than a million.

    >>> numbers_in("[0, 1, 2]"), numbers_in("0-2,8")
    ((0, 1, 2), (0, 1, 2, 8))
    """
    found: list[int] = []
    for begin, end in re.findall(r"(\d{1,7})(?:-(\d{1,7}))?", text):
        first, last = int(begin), int(end or begin)
        if last - first + len(found) >= 1 << 20:
            return ()
        found.extend(range(first, last + 1))
    return tuple(found)


def whole(value: Any, most: int = 1 << 64) -> int | None:
    """A count: no negative number, no bool."""
    return value if type(value) is int and 0 <= value < most else None


def scaled(value: Any, unit: Any) -> Any:
    """A count in the unit of a fact: whole where the unit is."""
    count = whole(value)
    return None if count is None else count * unit


def wholes(value: Any, *names: str) -> list[int] | None:
    """The counts of these names; None unless all are there."""
    found = [number for name in names if (number := whole(mapping(value).get(name))) is not None]
    return found if len(found) == len(names) else None


# --- whole dataclasses


def from_mapping(kind: type[_Kind], data: Mapping[str, Any], **known: Any) -> _Kind:
    """A dataclass of plain values from those of the same names, `known` ones as they are.

    What has a default may be missing. Raises one of UNFIT for what is missing else, or cannot be made to fit.
    """
    values = {
        name: convert(data[name])
        for name, (convert, optional) in _fields(kind).items()  # type: ignore[arg-type]
        if name not in known and (name in data or not optional)
    }
    return kind(**known, **values)


@functools.cache
def _fields(kind: type) -> dict[str, tuple[Callable[[Any], Any], bool]]:
    hints = get_type_hints(kind)
    return {
        field.name: (functools.partial(_convert, hints[field.name]), field.default is not MISSING)
        for field in fields(kind)
        if field.init
    }


def _convert(hint: Any, value: Any) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _convert(parts[0], value)
    if origin is tuple:
        if isinstance(value, str):
            raise TypeError("text where a list belongs")
        return tuple(_convert(parts[0], item) for item in value)
    return hint(value)
