"""Frames of C code, as `diag dump --native` and py-spy's text have them: what is in the stacks of libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from diag.model import Record
from diag.model.observations import NativeFramesRead, Observation
from diag.sources.payload import guarded, integer, sequence

SOURCE = "native_stack"
_MOST = 400
_LONGEST = 200  # characters of a name: those of C++ have all their template's arguments
_PYTHON = (".py", ".pyx", ".pyi", ">")


def record(threads: Iterable[Mapping[str, Any]], pid: int, rank: int, host: str) -> Record:
    """Of py-spy's JSON."""
    return Record(SOURCE, {"pid": pid, "frames": native_frames(threads)}, rank, host)


def native_frames(threads: Iterable[Mapping[str, Any]]) -> list[str]:
    frames = (frame for thread in threads for frame in thread.get("frames", ()))
    named = (
        f"{str(frame['name'])[:_LONGEST]} {str(frame.get('filename') or '')[-_LONGEST:]}".rstrip()
        for frame in frames
        if not str(frame.get("filename") or "").endswith(_PYTHON) and not str(frame["name"]).startswith("0x")
    )
    return [*dict.fromkeys(named)][:_MOST]


def seen(rank: int | None, pid: int, frames: Sequence[Any]) -> Iterator[Observation]:
    if frames:
        yield NativeFramesRead(rank, pid, tuple(str(one)[: 2 * _LONGEST + 1] for one in frames[:_MOST]))


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    yield from seen(record.rank, integer(record.payload["pid"]), sequence(record.payload["frames"]))
