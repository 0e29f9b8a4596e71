"""From whoever has a record to the engine that is fed it: the queue between the threads, the stamp of told time,
the journal.

A hub has one for its node, the job hub one for the digests of all nodes.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from diag.engine.engine import Engine
from diag.engine.journal import JournalWriter
from diag.model import Change, Record

Queued = tuple[Record | None, Callable[[], None] | None]  # what to feed, what to call when that is in


class HubClock:
    """Wall time that never goes back and never repeats, whatever is done to the system's clock."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._last = 0.0

    def __call__(self) -> float:
        self._last = max(self._last + 1e-6, self._offset + time.monotonic())
        return self._last


@dataclass(eq=False)
class RecordFeed:
    """`put` is for any thread; all else is for the one thread that owns the engine, `take` and `feed` under its
    lock. `most`: records taken under one hold of the lock, which others wait for. `journal_failed` is called with
    the reason when the journal has to end."""

    engine: Engine
    clock: Callable[[], float]
    journal: JournalWriter | None
    most: int
    journal_failed: Callable[[str], None] = lambda problem: None
    _queue: queue.SimpleQueue[Queued] = field(default_factory=queue.SimpleQueue)

    def put(self, record: Record | None, then: Callable[[], None] | None = None) -> None:
        """Never waits. `then` is called on the owner's thread once this record, and all that was put before it,
        are in."""
        self._queue.put((record, then))

    def hurry(self) -> None:
        """`batch` is to return now, whatever there is. For any thread."""
        self._queue.put((None, None))

    def await_taken(self, seconds: float) -> bool:
        """Until all that was put before is in, for so long at most; whether it is."""
        reached = threading.Event()
        self.put(None, reached.set)
        return reached.wait(seconds)

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def batch(self, wait: float) -> list[Queued]:
        """What there is now; of nothing, what comes first within `wait` seconds and all that came with it."""
        found: list[Queued] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._queue.get(timeout=wait) if wait else self._queue.get_nowait())
            while len(found) < self.most:
                found.append(self._queue.get_nowait())
        return found

    def take(self, batch: Sequence[Queued]) -> list[Change]:
        """Feed these, and run the checks that are due."""
        changes: list[Change] = []
        for record, then in batch:
            if record is not None:
                changes += self.feed(record)
            if then is not None:
                then()
        return changes + self.engine.advance(self.clock())

    def feed(self, record: Record) -> list[Change]:
        stamped = replace(record, at=self.clock())
        if self.journal is not None:
            self._note(self.journal.write(stamped))
        return self.engine.feed(stamped)

    def flush(self) -> bool:
        """Make the journal readable by others up to now. Returns whether there is one."""
        if self.journal is not None:
            self._note(self.journal.flush())
        return self.journal is not None

    @property
    def works(self) -> bool:
        """There is a journal, and all that was written is in it."""
        return self.journal is not None and self.journal.failed is None

    def _note(self, problem: str | None) -> None:
        if problem is not None:
            self.journal_failed(problem)
