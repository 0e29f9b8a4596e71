"""Looks, once all ranks of this node have ended, at what the command that diag runs still waits for."""

from __future__ import annotations

import time
from collections.abc import Callable

from diag.agent.samplers.context import NodeContext, NodeSampler
from diag.agent.samplers.sampler import Reporter
from diag.sources import waits

# A command may convert for hours what its ranks have made: it is looked at less and less often.
_SECONDS, _LONGEST_SECONDS, _GROWTH = 5.0, 60.0, 1.5


class OutlivingSampler(NodeSampler):
    """`pid` gives the command's process, or None while a rank lives, or none was there yet."""

    name, what, sources = "command", "the command after its ranks", (waits.SOURCE,)
    delay_seconds = _SECONDS

    def __init__(self, reporter: Reporter, pid: Callable[[], int | None]) -> None:
        super().__init__(reporter, _SECONDS)
        self._pid = pid
        self._pause = _SECONDS

    @classmethod
    def of(cls, node: NodeContext) -> OutlivingSampler:
        return cls(node.reporter, node.outliving)

    def sample(self) -> None:
        pid = self._pid()
        if pid is None:
            self._pause = _SECONDS
            return
        self._pause = min(_LONGEST_SECONDS, self._pause * _GROWTH)
        began = time.monotonic()
        payload = waits.WaitReader(pid, spent=True).sample()
        if payload["processes"]:
            self.reporter.record(waits.SOURCE, payload, time.monotonic() - began)

    def period(self, cpu: float, wall: float) -> float:
        return wall + self._pause
