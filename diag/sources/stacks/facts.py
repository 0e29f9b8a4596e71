"""The facts that come of stacks, whoever read them: whose they are, the sample, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from diag.model import Payload, Record
from diag.model.observations import Observation, SourceFailed, SourceWorks, StackSample, ThreadStack


def asked_of(pid: int, parent_pid: int | None) -> dict[str, Any]:
    """What each payload begins with: {"pid", "parent_pid"?}."""
    return {"pid": pid} if parent_pid is None else {"pid": pid, "parent_pid": parent_pid}


def owner(payload: Payload) -> tuple[int, int | None]:
    """The process's pid, and the rank's where it is one of its children. Raises KeyError or TypeError."""
    pid, parent = payload["pid"], payload.get("parent_pid")
    if type(pid) is not int or (parent is not None and type(parent) is not int):
        raise TypeError("pid is not a number")
    return pid, parent


def failure(
    record: Record, source: str, explain: Callable[[Payload], tuple[str, str]]
) -> Iterator[Observation]:
    """Other sources report what ended; a child that cannot be read (a compiler) takes nothing from its rank."""
    if record.payload["failed"] != "gone" and record.payload.get("parent_pid") is None:
        yield SourceFailed(record.rank, source, *explain(record.payload))


def sample(record: Record, source: str, threads: tuple[ThreadStack, ...]) -> Iterator[Observation]:
    pid, parent = owner(record.payload)
    yield SourceWorks(record.rank, source)
    yield StackSample(record.rank, pid, threads, source, record.read_at, parent)
