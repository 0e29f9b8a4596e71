"""What a rank writes into files of its own: often looked at, and seldom searched for."""

from __future__ import annotations

import contextlib
import time

from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.sources.logs import written

_SECONDS = 5.0
_SEARCH_SECONDS = 10.0  # then twice as long each time: a logger's file is opened at the start
_LONGEST_SEARCH_SECONDS = 300.0


class WrittenSampler(RankSampler):
    """On a thread of its own: the file system of such a file may not answer."""

    name = what = "own log files"
    sources = (written.SOURCE,)
    delay_seconds = _SECONDS

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank, _SECONDS)
        self._reader = written.WrittenReader(rank.pid)
        self._search_at = 0.0
        self._pause = _SEARCH_SECONDS

    def sample(self) -> None:
        now = time.monotonic()
        with contextlib.suppress(OSError):  # gone, or not to be looked at: then there is one channel less
            if now >= self._search_at:
                self._reader.find()
                self._search_at = now + self._pause
                self._pause = min(_LONGEST_SEARCH_SECONDS, 2 * self._pause)
            payload = self._reader.sample()
            if payload["files"]:
                self.reporter.record(written.SOURCE, payload, time.monotonic() - now)
