"""What the first rank of a node runs on."""

from __future__ import annotations

import contextlib
import time

from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.sources.host import software
from diag.text.errors import SourceUnavailable

# Ours, each after the one before: of a short run there is one; imports are over; what is loaded late has been.
_SECONDS = (2.0, 15.0, 60.0, 600.0)


class SoftwareSampler(RankSampler):
    """Four readings, each recorded if it differs. On a thread of its own: a memory map waits for its process, a folder of
    packages for its file system. Where it may not look, a comparison of runs says so; no check needs it."""

    name = what = "software"
    sources = (software.SOURCE,)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank)
        self._last: object = None

    def run(self) -> None:
        if self.rank.local_rank > 0:
            return
        for seconds in _SECONDS:
            if self._wake.wait(seconds) or self.stopped:
                return
            self.sample()

    def sample(self) -> None:
        began = time.monotonic()
        with contextlib.suppress(SourceUnavailable):
            payload = software.read(self.rank.pid)
            if payload != self._last:
                self._last = payload
                self.reporter.record(software.SOURCE, payload, time.monotonic() - began)
