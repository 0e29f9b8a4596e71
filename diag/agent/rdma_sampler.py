"""A sidecar's seldom look at what its rank has of RDMA: at the start, a minute later, when a suspicion
begins, and each five minutes. In a thread of its own, since a rank's memory map waits for the rank's own
changes of it."""

from __future__ import annotations

import threading
import time

from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.sources.network import rdma_access

_FIRST_SECONDS = 60.0  # NCCL opens its devices after the process group is made, most often within a minute
_SECONDS = 300.0  # a reading costs 2 ms of CPU for a torch rank, 45 ms with 10,000 open files
_AGAIN_SECONDS = 10.0  # however often suspicions come and go


class RdmaSampler(RankSampler):
    name = what = "rdma_access"
    sources = (rdma_access.SOURCE,)
    woken_by = ("closer",)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank)
        self._reader = rdma_access.RdmaAccessReader(rank.pid, rank.start_ticks)
        self._lock = threading.Lock()
        self._read_at = -_AGAIN_SECONDS
        self._readings = 0
        self._wait = 0.0

    def sample(self) -> None:
        since = time.monotonic() - self._read_at
        if since < _AGAIN_SECONDS:  # a suspicion has come soon after a reading
            self._wait = _AGAIN_SECONDS - since
            return
        self._read_at = time.monotonic()
        self._readings += 1
        self._wait = _FIRST_SECONDS if self._readings == 1 else _SECONDS
        self.read_access()

    def period(self, cpu: float, wall: float) -> float:
        return self._wait

    def read_access(self) -> str:
        """Returns why it could not be read, empty when it was."""
        if not self._lock.acquire(timeout=1.0):
            return "an earlier reading has not come back from the kernel"
        try:
            began = time.monotonic()
            self.reporter.record(rdma_access.SOURCE, self._reader.sample(), time.monotonic() - began)
            return ""
        except ProcessLookupError as error:
            return str(error)
        finally:
            self._lock.release()
