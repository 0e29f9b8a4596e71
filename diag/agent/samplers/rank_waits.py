"""What the threads of a suspected rank wait for: when the suspicion begins, soon again, then more and more seldom."""

from __future__ import annotations

import threading
import time

from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.launch.runs import start_ticks
from diag.sources import waits

_FIRST_SECONDS = 5.0  # what lasts is read again before it is reported
_LONGEST_SECONDS = (
    30.0  # a reading costs 10 ms of CPU for a torch rank, 120 where a lock has to be looked for
)
_GROWTH = 1.5
_OVER_SECONDS = 0.5  # between the two halves of a reading
_UNSUSPECTED_SECONDS = 3600.0  # until the hub orders otherwise


class WaitSampler(RankSampler):
    name = what = "waits"
    sources = (waits.SOURCE,)
    woken_by = ("closer",)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank)
        self._reader = waits.WaitReader(rank.pid)
        self._lock = threading.Lock()
        self._read_at = -_FIRST_SECONDS
        self._pause = self._wait = _FIRST_SECONDS

    def sample(self) -> None:
        if not self.rank.closer:
            self._pause, self._wait = _FIRST_SECONDS, _UNSUSPECTED_SECONDS
            return
        since = time.monotonic() - self._read_at
        if since < _FIRST_SECONDS:  # suspicions that come and go
            self._wait = _FIRST_SECONDS - since
            return
        self.read_waits()
        self._read_at = time.monotonic()
        self._wait, self._pause = self._pause, min(_LONGEST_SECONDS, self._pause * _GROWTH)

    def period(self, cpu: float, wall: float) -> float:
        return self._wait

    def read_waits(self, over_seconds: float = _OVER_SECONDS) -> str:
        """Returns why there is no reading, empty when there is."""
        if not self._lock.acquire(timeout=1.0):
            return "an earlier reading has not come back from the kernel"
        try:
            began = time.monotonic()
            payload = self._reader.sample(
                over_seconds, self.rank.gone.wait, other_ranks=self.rank.other_ranks
            )
            if not payload["processes"]:
                return "the process is gone"
            self.rank.strangers = tuple(
                (int(pid), ticks)
                for pid, row in payload["processes"].items()
                if not row["job"] and int(pid) not in self.rank.other_ranks and (ticks := start_ticks(pid))
            )
            self.reporter.record(waits.SOURCE, payload, time.monotonic() - began)
            return ""
        finally:
            self._lock.release()
