"""The process of a rank: /proc, the limits that it lives under, and its end."""

from __future__ import annotations

import contextlib
import threading
import time

from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.model import Payload
from diag.sources.host import cgroup, exits, proc, shm
from diag.sources.host.process_tree import split_stat

_LIMITS_SECONDS = 60.0
_LEAST_PAUSE_SECONDS = 0.05


class ExitSampler(RankSampler):
    """Waits for the rank's end, which is that of all others."""

    name = what = "exit"
    sources = (exits.SOURCE,)

    def run(self) -> None:
        watch = exits.ExitWatch(self.rank.pid, self.rank.start_ticks)
        while (payload := watch.wait(timeout=3600.0)) is None:
            pass
        self.rank.memory.read_cgroup()  # the OOM counter of the moment of death
        self.reporter.record(exits.SOURCE, payload)
        self.rank.end()


class ProcessSampler(RankSampler):
    name = what = "proc"
    sources = (proc.SOURCE, cgroup.SOURCE, shm.SOURCE)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank, rank.proc_seconds)
        self._reader: proc.ProcessReader | None = None
        self._lock = threading.Lock()
        self._limits_at = self._node_at = -1e9

    def sample(self) -> None:
        rank, now = self.rank, time.monotonic()
        node = now - self._node_at >= rank.node_seconds
        try:
            self.read_process(limits=now - self._limits_at >= _LIMITS_SECONDS, detail=rank.closer or node)
        except proc.ProcessGone:
            self.stop()
            return
        if now - self._limits_at >= _LIMITS_SECONDS:
            self._limits_at = now
        if node:
            self._node_at = now
            rank.memory.read_cgroup()
            rank.memory.read_shm()
        elif rank.memory.crowded:
            rank.memory.read_cgroup()

    def period(self, cpu: float, wall: float) -> float:
        return max(self.every_seconds, wall + _LEAST_PAUSE_SECONDS)

    def read_process(self, *, limits: bool, detail: bool) -> None:
        """For several threads. Raises ProcessGone."""
        if self._reader is None:
            self._reader = proc.ProcessReader(self.rank.pid, start_ticks=self.rank.start_ticks)
        if limits:
            self.reporter.record(proc.SOURCE, self._reader.limits())
        began = time.monotonic()
        with self._lock:
            payload = self._reader.sample(detail=detail, other_ranks=self.rank.other_ranks)
        self.rank.children = _child_names(payload)
        self.reporter.record(proc.SOURCE, payload, time.monotonic() - began)


def _child_names(payload: Payload) -> list[tuple[int, str]]:
    """Pid and name of the children in a proc payload; Python ones cannot be distinguished by it."""
    names = []
    for child in payload["children"]:
        with contextlib.suppress(ValueError):
            names.append(split_stat(child.get("stat") or "")[:2])
    return names
