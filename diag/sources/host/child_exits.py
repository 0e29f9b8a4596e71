"""How processes below a rank ended, by the kernel: a pool or a launcher waits for them itself and tells nobody of it.

Each is watched by a descriptor of its own (pidfd), which costs nothing before it ends. One that lives for less than the time
between two looks at the rank's children is not seen.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterable, Iterator

from diag.model import Payload, Record
from diag.model.observations import ChildEnded, Observation
from diag.sources.host.exits import ExitWatch, how_ended
from diag.sources.payload import guarded, integer

SOURCE = "child_exits"
_MOST = 256  # watched at one time


class ChildExits:
    """Raises nothing: of whom it may not learn, or whose parent was faster, it says nothing."""

    def __init__(self) -> None:
        self._watches: dict[int, ExitWatch] = {}
        self._told: set[int] = set()  # that have ended, and are still named: as zombies, or by an older look

    @property
    def watched(self) -> set[int]:
        return {*self._watches}

    def watch(self, pids: Iterable[int]) -> None:
        """These from now on; of those that are watched already none is left out before it has ended."""
        named = {*pids}
        self._told &= named
        for pid in named - self._told - self._watches.keys():
            if len(self._watches) < _MOST:
                with contextlib.suppress(OSError):  # no more descriptors
                    self._watches[pid] = ExitWatch(pid)

    def ended(self, seconds: float) -> list[Payload]:
        """Those that have, otherwise than well, as soon as there is one, or after that time."""
        poll = select.poll()
        for watch in self._watches.values():
            if (number := watch.fileno()) is not None:
                poll.register(number, select.POLLIN)
        poll.poll(seconds * 1000)
        found = []
        for pid, watch in list(self._watches.items()):
            payload = watch.wait(timeout=0)
            if payload is not None:
                watch.close()
                del self._watches[pid]
                self._told.add(pid)
                if payload["status"]:
                    found.append(payload)
        return found

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    payload = record.payload
    code, signal = how_ended(integer(payload["status"]))
    yield ChildEnded(record.rank, integer(payload["pid"]), code, signal)
