"""What comes over the TCP connection that a rank waits at: bytes from reading to reading, and when they were work."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.waits import Wait, WaitsRead
from diag.state.wait_chain import follow

# Slower than any download worth waiting for; pings, keep-alives and an event stream without events stay far below.
_WORK_BYTES_PER_SECOND = 1024.0
_GAP_SECONDS = 90.0  # under suspicion a rank is read every 5 to 30 s: what came before was no wait


@dataclass(frozen=True, slots=True)
class Feed:
    """Of the connection at the end of what its main thread waits for, since the reading that saw it there first.
    `worked_at`: the last reading before which work came, over this connection or one before; 0 for none."""

    connection: tuple[str, str]
    since: float
    began_with: int
    at: float
    received: int
    worked_at: float = 0.0

    @property
    def bytes(self) -> int:
        return self.received - self.began_with

    def is_of(self, wait: Wait) -> bool:
        return self.connection == (wait.local, wait.peer)


def fed(before: Feed | None, read: WaitsRead, at: float) -> Feed | None:
    """With one more reading. One in which the rank does something else (it works on what came) changes nothing."""
    chain = follow(read, read.pid)
    wait = chain.last.wait if chain is not None else None
    if wait is None or wait.received_bytes is None:
        return before
    worked = before.worked_at if before is not None else 0.0
    if before is None or not before.is_of(wait) or not 0 < at - before.at <= _GAP_SECONDS:
        return Feed((wait.local, wait.peer), at, wait.received_bytes, at, wait.received_bytes, worked)
    if wait.received_bytes - before.received >= _WORK_BYTES_PER_SECOND * (at - before.at):
        worked = at
    return Feed(before.connection, before.since, before.began_with, at, wait.received_bytes, worked)
