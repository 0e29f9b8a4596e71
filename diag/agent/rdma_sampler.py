"""A sidecar's seldom look at what its rank has of RDMA: at the start, a minute later, when a suspicion
begins, and each five minutes. In a thread of its own, since a rank's memory map waits for the rank's own
changes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from diag.sources.network import rdma_access

__all__ = ["RankRdma"]

_FIRST_SECONDS = 60.0  # NCCL opens its devices after the process group is made, most often within a minute
_SECONDS = 300.0  # a reading costs 2 ms of CPU for a torch rank, 45 ms with 10,000 open files
_AGAIN_SECONDS = 10.0  # however often suspicions come and go
_POLL_SECONDS = 2.0


class RankRdma:
    """`record` takes a source's name, its payload and the seconds that it took; `gone` ends the watch."""

    def __init__(
        self, pid: int, start_ticks: int, record: Callable[[str, Any, float], None], gone: threading.Event
    ) -> None:
        self._reader = rdma_access.RdmaAccessReader(pid, start_ticks)
        self._record = record
        self._gone = gone
        self._lock = threading.Lock()

    def watch(self, suspicion: Callable[[], bool]) -> None:
        """Until the rank is gone."""
        wait = _FIRST_SECONDS
        while not self._gone.is_set():
            suspected, began = suspicion(), time.monotonic()
            self.read()
            while not self._gone.wait(_POLL_SECONDS):
                passed = time.monotonic() - began
                if passed >= wait or (suspicion() and not suspected and passed >= _AGAIN_SECONDS):
                    break
                suspected &= suspicion()
            wait = _SECONDS

    def read(self) -> str:
        """Returns why it could not be read, empty when it was."""
        if not self._lock.acquire(timeout=1.0):
            return "an earlier reading has not come back from the kernel"
        try:
            began = time.monotonic()
            self._record(rdma_access.SOURCE, self._reader.sample(), time.monotonic() - began)
            return ""
        except ProcessLookupError as error:
            return str(error)
        finally:
            self._lock.release()
