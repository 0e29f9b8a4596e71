"""What the threads of a suspected rank wait for: when the suspicion begins, soon again, then more and more seldom."""

from __future__ import annotations

import threading
import time

from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.sources import waits

_FIRST_SECONDS = 5.0  # what lasts is read again before it is reported
_LONGEST_SECONDS = 30.0  # a reading costs 5 to 50 ms of CPU for a torch rank with its children
_GROWTH = 1.5
_OVER_SECONDS = 0.5  # between the two halves of a reading


class WaitSampler(RankSampler):
    name = what = "waits"
    sources = (waits.SOURCE,)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank)
        self._reader = waits.WaitReader(rank.pid)
        self._lock = threading.Lock()

    def run(self) -> None:
        rank, pause = self.rank, _FIRST_SECONDS
        while not rank.gone.is_set():
            with rank.changed:
                rank.changed.wait_for(lambda: rank.closer or rank.gone.is_set())
            if rank.gone.is_set():
                return
            self.read_waits()
            began = time.monotonic()
            with rank.changed:
                rank.changed.wait_for(lambda: rank.gone.is_set() or not rank.closer, pause)
            pause = min(_LONGEST_SECONDS, pause * _GROWTH) if rank.closer else _FIRST_SECONDS
            if not rank.closer and time.monotonic() - began < _FIRST_SECONDS:  # suspicions that come and go
                rank.gone.wait(_FIRST_SECONDS)

    def read_waits(self, over_seconds: float = _OVER_SECONDS) -> str:
        """Returns why there is no reading, empty when there is."""
        if not self._lock.acquire(timeout=1.0):
            return "an earlier reading has not come back from the kernel"
        try:
            began = time.monotonic()
            payload = self._reader.sample(over_seconds, self.rank.gone.wait)
            if not payload["processes"]:
                return "the process is gone"
            self.reporter.record(waits.SOURCE, payload, time.monotonic() - began)
            return ""
        finally:
            self._lock.release()
