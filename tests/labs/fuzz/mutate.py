"""Inputs made from recorded ones: trees of JSON with parts replaced, text line by line, bytes. A seed gives
the same input."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

__all__ = ["JUNK", "Form", "deep", "mutated"]

Form = Literal["json", "text", "bytes"]

# What breaks parsers: wrong kinds, numbers beyond what fits, text that is none, names that mean something to
# Python.
JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**70,
    -(2**70),
    10**400,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    "x",
    "0",
    "-1",
    "max",
    "nan",
    "9" * 5000,
    "\x00",
    "\x1b[2J\x1b]52;c;cXVpdA==\x07",
    "\ud800",
    "\u202e\u2066",
    "a" * 10_000,
    "../../etc/passwd",
    "/dev/zero",
    "__class__",
    "{{7*7}}",
    "<script>",
    "=cmd()",
    "%s%n",
    "\n\n\r\n",
    "\u0660\u0661",
    "1_000",
    [],
    [None],
    [[]],
    {},
    {"": None},
    {"x": {}},
    [0] * 300,
    ["rank"] * 50,
)
_PIECES: tuple[bytes, ...] = (
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"\r",
    b"\n",
    b"\x1b[2J",
    b"\x1b]8;;http://x\x07",
    b"\x9b31m",
    b"\xe2\x80\xae",
    b"\xef\xbb\xbf",
    b"-1",
    b"0",
    b"nan",
    b"inf",
    b"1e999",
    b"18446744073709551616",
    b"9" * 4400,
    b"[" * 200,
    b"{" * 200,
    b"(" * 200,
    b" " * 500,
    b"a" * 3000,
    b"%",
    b"\\",
    b'"',
    b"'",
    b"\xd9\xa3",
    b": ",
    b"=",
    b"|",
    b"Traceback (most recent call last):\n",
    b"rank",
    b"[rank7]: ",
)
_INTEGERS = (
    0,
    1,
    -1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    0x7FFFFFFFFFFFFFFF,
    -(2**63),
    1 << 40,
)


def mutated(
    data: bytes, form: Form, pool: Sequence[bytes], chance: random.Random, most: int = 65_536
) -> bytes:
    """Another input, like this one, and sometimes with parts of others. At most `most` bytes."""
    if form == "json" and chance.random() < 0.96:
        try:
            made = _json(json.loads(data), pool, chance)
            text = json.dumps(made).encode()
            if len(text) <= most:
                return text
        except (ValueError, RecursionError):
            pass
    changes = _TEXT if form == "text" and chance.random() < 0.9 else _BYTES
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        data = chance.choice(changes)(data, pool, chance)[:most]
    return data


def deep(levels: int, inner: Any = 1) -> Any:
    """Lists in lists."""
    for _ in range(levels):
        inner = [inner]
    return inner


# --- trees
# ------------------------------------------------------------------------------------------------------


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """(container, key) of each part; at most some thousands."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting and len(found) < 4000:
        node = waiting.pop()
        items = (
            list(node.items())
            if isinstance(node, dict)
            else list(enumerate(node))
            if isinstance(node, list)
            else []
        )
        for key, part in items:
            found.append((node, key))
            if isinstance(part, (dict, list)):
                waiting.append(part)
    return found


def _json(tree: Any, pool: Sequence[bytes], chance: random.Random) -> Any:
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        places = _places(tree)
        if not places:
            return chance.choice(JUNK)
        container, key = chance.choice(places)
        _change(container, key, places, pool, chance)
    return tree


def _change(
    container: Any, key: Any, places: list[tuple[Any, Any]], pool: Sequence[bytes], chance: random.Random
) -> None:
    what, value = chance.randrange(10), container[key]
    if what <= 3:
        container[key] = copy.deepcopy(chance.choice(JUNK))
    elif what == 4:
        del container[key]
    elif what == 5:
        other, where = chance.choice(places)
        try:
            container[key] = copy.deepcopy(other[where])
        except (KeyError, IndexError):
            container[key] = None
    elif what == 6 and isinstance(container, list):
        container[key:key] = [copy.deepcopy(value) for _ in range(chance.choice((1, 2, 60)))]
    elif what == 7:
        container[key] = deep(chance.choice((1, 40, 300)), value)
    elif what == 8 and pool:
        try:
            parts = _places(json.loads(chance.choice(pool)))
        except (ValueError, RecursionError):
            return
        if parts:
            other, where = chance.choice(parts)
            container[key] = other[where]
    else:
        container[key] = _near(value, chance)


def _near(value: Any, chance: random.Random) -> Any:
    """Of the same kind, and yet not what it was."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        small = abs(value) < 1e300
        return chance.choice(
            [
                value + 1,
                value - 1,
                -value,
                value * 2,
                value * 1e6 if small else 0,
                float(value) if small else 0,
                str(value),
            ]
        )
    if isinstance(value, str):
        try:
            made = chance.choice(_TEXT)(value.encode(), (), chance)
        except UnicodeEncodeError:  # half of a pair
            return value[: chance.randrange(len(value) + 1)]
        return made.decode("utf-8", "replace")[:20_000]
    if isinstance(value, dict) and value:
        return {
            chance.choice(["", "x", "\ud800", "rank"]) if chance.random() < 0.2 else name: part
            for name, part in value.items()
        }
    return [value, value]


# --- text and bytes
# ---------------------------------------------------------------------------------------------

_Change = Callable[[bytes, Sequence[bytes], random.Random], bytes]


def _cut(data: bytes, pool: Sequence[bytes], chance: random.Random) -> bytes:
    begin = chance.randrange(len(data) + 1)
    return data[:begin] + data[begin + chance.choice((1, 1, 4, 40, 4000)) :]


def _end(data: bytes, pool: Sequence[bytes], chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _insert(data: bytes, pool: Sequence[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(_PIECES) + data[at:]


def _overwrite(data: bytes, pool: Sequence[bytes], chance: random.Random) -> bytes:
    at, piece = chance.randrange(len(data) + 1), chance.choice(_PIECES)
    return data[:at] + piece + data[at + len(piece) :]


def _flip(data: bytes, pool: Sequence[bytes], chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(min(len(made), chance.choice((1, 1, 2, 16)))):
        made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


def _integer(data: bytes, pool: Sequence[bytes], chance: random.Random) -> bytes:
    width = chance.choice((1, 2, 4, 8))
    at = chance.randrange(len(data) + 1)
    number = chance.choice((*_INTEGERS, len(data), len(data) - at)) & ((1 << 8 * width) - 1)
    return data[:at] + number.to_bytes(width, chance.choice(("little", "big"))) + data[at + width :]  # type: ignore[arg-type]


def _copy_within(data: bytes, pool: Sequence[bytes], chance: random.Random) -> bytes:
    begin, at = chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)
    return (
        data[:at] + data[begin : begin + chance.choice((2, 16, 200))] * chance.choice((1, 1, 30)) + data[at:]
    )


def _cross(data: bytes, pool: Sequence[bytes], chance: random.Random) -> bytes:
    other = chance.choice(pool) if pool else data
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _digits(data: bytes, pool: Sequence[bytes], chance: random.Random) -> bytes:
    """Another number in place of one that is there."""
    places = [at for at, byte in enumerate(data[:20_000]) if 48 <= byte < 58]
    if not places:
        return data
    begin = end = chance.choice(places)
    while end < len(data) and 48 <= data[end] < 58:
        end += 1
    return (
        data[:begin]
        + chance.choice((b"", b"0", b"-1", b"9" * 30, b"9" * 4400, b"1e400", b"nan", b"\xd9\xa3", b"1_0"))
        + data[end:]
    )


def _lines(data: bytes, pool: Sequence[bytes], chance: random.Random) -> bytes:
    """Lines left out, said twice, in another order, or of another text."""
    lines = data.split(b"\n")
    at, what = chance.randrange(len(lines)), chance.randrange(5)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines[at:at] = [lines[at]] * chance.choice((1, 3, 200))
    elif what == 2:
        other = chance.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif what == 3 and pool:
        lines.insert(at, chance.choice(chance.choice(pool).split(b"\n")))
    else:
        begin = chance.randrange(len(lines[at]) + 1)
        lines[at] = lines[at][:begin] + chance.choice(lines)
    return b"\n".join(lines)


_BYTES: tuple[_Change, ...] = (
    _cut,
    _end,
    _insert,
    _overwrite,
    _flip,
    _flip,
    _integer,
    _integer,
    _copy_within,
    _cross,
)
_TEXT: tuple[_Change, ...] = (
    _cut,
    _end,
    _insert,
    _insert,
    _overwrite,
    _copy_within,
    _cross,
    _digits,
    _digits,
    _lines,
    _lines,
)
