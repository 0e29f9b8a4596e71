"""All calls of a Flight Recorder's ring in some kilobytes: of each group the distinct calls as a table, and which of
them stood at each of the group's numbers.

`pack` makes that of torch's dumps, `unpack` makes facts of it; `flight_recorder` asks. Sends and receives are left
out: their numbers are not those of their peers.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from diag.model import pack_ranks
from diag.model.observations import CallSequence, CollectiveEntry, Frame
from diag.sources.collectives.fr_trace import MAX_TENSORS, members_of, settle, shapes
from diag.sources.payload import integer, mapping, numbers_in, sequence, word

# Ours: torch keeps 2,000 calls unless told otherwise, and an answer of 16 MiB, all that is read, has 50,000.
_MOST_CALLS, _MOST_GROUPS = 1 << 16, 1000
_MOST_BYTES = 4 << 20  # of one group's numbers, unpacked
_MOST_FRAMES = 40  # of a call, the innermost


@dataclasses.dataclass(slots=True)
class _Row:
    desc: str = ""
    kinds: dict[tuple[Any, ...], int] = dataclasses.field(default_factory=dict)
    frames: dict[tuple[str, int, str], int] = dataclasses.field(default_factory=dict)
    numbers: list[int] = dataclasses.field(
        default_factory=list
    )  # step to the next number, kind, step, kind ...
    seq: int = 0


def pack(traces: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each group: "backend", "group", "desc", "ranks" (as 0-7; empty where no recorder says), "kinds"
    (operation, sizes in and out, types, whether it is pending; where the dump has frames, their places in "frames"), and
    "calls": base64 of zlib of a JSON list that has, for each call in the order of issue, what its number is above the last
    one's, and its kind."""
    members: dict[str, str] = {}  # a gloo group's name serves NCCL too, which says who is in it
    rows: dict[tuple[str, str], _Row] = {}
    for trace in traces:
        for config in mapping(trace.get("pg_config")).values():
            ranks = word(mapping(config).get("ranks"), 1 << 20)
            if found := members_of(ranks):
                members.setdefault(word(mapping(config).get("name")), pack_ranks(found))
        raw = [entry for entry in sequence(trace.get("entries")) if isinstance(entry, dict)]
        for item, entry in zip(raw, settle(raw, mapping(trace.get("pg_status"))), strict=True):
            if entry.is_p2p:
                continue
            row = rows.get((entry.backend, entry.group))
            if row is None:
                if len(rows) >= _MOST_GROUPS:
                    continue
                row = rows[entry.backend, entry.group] = _Row()
            row.desc = entry.desc
            kind: tuple[Any, ...] = (
                entry.op,
                entry.input_sizes,
                entry.output_sizes,
                entry.dtypes,
                entry.pending,
            )
            if "frames" in item:
                kind = (*kind, _places(item["frames"], row.frames))
            row.numbers += (entry.seq - row.seq, row.kinds.setdefault(kind, len(row.kinds)))
            row.seq = entry.seq
    return [
        {
            "backend": backend,
            "group": group,
            "desc": row.desc,
            "ranks": members.get(group, ""),
            "kinds": [list(kind) for kind in row.kinds],
            **({"frames": [list(frame) for frame in row.frames]} if row.frames else {}),
            "calls": base64.b64encode(zlib.compress(json.dumps(row.numbers).encode())).decode(),
        }
        for (backend, group), row in rows.items()
    ]


def _places(frames: Any, known: dict[tuple[str, int, str], int]) -> tuple[int, ...]:
    """In the table; outermost first, where torch has the innermost first."""
    found = [
        (word(one.get("filename"), 1000), integer(one.get("line")), word(one.get("name")))
        for one in sequence(frames)[:_MOST_FRAMES]
        if isinstance(one, dict)
    ]
    return tuple(known.setdefault(one, len(known)) for one in reversed(found))


def ring_seconds(traces: Iterable[Mapping[str, Any]]) -> float | None:
    """From the oldest call that is kept to the newest, in the ring that turns fastest; None without two calls."""
    found = []
    for trace in traces:
        times = [
            at
            for entry in sequence(trace.get("entries"))
            if isinstance(entry, dict) and type(at := entry.get("time_created_ns")) is int and at > 0
        ]
        if len(times) > 1:
            found.append((max(times) - min(times)) / 1e9)
    return min(found, default=None)


def unpack(rows: Any) -> Iterator[CallSequence]:
    """Raises ValueError or TypeError for what `pack` did not make."""
    for row in sequence(rows)[:_MOST_GROUPS]:
        backend, group, desc = word(row["backend"]), word(row["group"]), word(row["desc"])
        kinds = tuple(_kind((backend, group, desc), kind) for kind in row["kinds"][:_MOST_CALLS])
        numbers = _numbers(row["calls"])
        calls, seq = [], 0
        for step, kind in zip(numbers[::2], numbers[1::2], strict=True):
            seq += step
            if not 0 <= kind < len(kinds):
                raise ValueError("a call of a kind that is not there")
            calls.append((seq, kind))
        stacks = _stacks(row) if "frames" in row else ()
        yield CallSequence(backend, group, desc, numbers_in(row["ranks"]), kinds, tuple(calls), stacks)


def _stacks(row: Mapping[str, Any]) -> tuple[tuple[Frame, ...], ...]:
    frames = [
        Frame(word(name), word(file, 1000), integer(line))
        for file, line, name in sequence(row["frames"])[:_MOST_CALLS]
    ]
    stacks = []
    for kind in row["kinds"][:_MOST_CALLS]:
        places = kind[5][:_MOST_FRAMES] if len(kind) > 5 else ()
        if not all(type(at) is int and 0 <= at < len(frames) for at in places):
            raise ValueError("a frame that is not there")
        stacks.append(tuple(frames[at] for at in places))
    return tuple(stacks)


def _kind(place: tuple[str, str, str], kind: Any) -> CollectiveEntry:
    op, inputs, outputs, dtypes, pending = kind[:5]
    types = tuple(word(item) for item in sequence(dtypes)[: 2 * MAX_TENSORS])
    sizes = (shapes(inputs), shapes(outputs))
    return CollectiveEntry(*place, 0, 0, False, word(op), *sizes, types, "", False, pending is True, 0, 0.0)


def _numbers(packed: str) -> list[int]:
    try:
        reader = zlib.decompressobj()
        text = reader.decompress(base64.b64decode(packed), _MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"no packed calls: {error}") from None
    numbers = json.loads(text)
    if (
        not reader.eof
        or not isinstance(numbers, list)
        or len(numbers) > 2 * _MOST_CALLS
        or not all(type(one) is int and abs(one) < 1 << 63 for one in numbers)
    ):
        raise ValueError("no packed calls")
    return numbers
