"""Reads the stack of what has started the ranks that are there, while others have not appeared: by its memory alone, which
neither stops it nor lets it know."""

from __future__ import annotations

import threading
import time

from diag.agent.samplers.context import NodeContext, NodeSampler
from diag.model import Record
from diag.sources.stacks import remote_stack
from diag.state.view import JobView

_CALM_SECONDS = 3600.0  # missing ranks wake it
_AGAIN_SECONDS = 10.0
_DEADLINE = 1.0


class StarterSampler(NodeSampler):
    name, what, sources = "starter", "the launcher's stack", (remote_stack.SOURCE,)

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node.reporter, _CALM_SECONDS)
        self._node = node
        self._stacks = remote_stack.RemoteStacks()
        self._lock = threading.Lock()
        self._todo: tuple[int, int, int] | None = None  # a rank, its pid, its parent
        self._asked_at = -_AGAIN_SECONDS

    @classmethod
    def of(cls, node: NodeContext) -> StarterSampler:
        return cls(node)

    def tend(self, closer: bool, job: JobView) -> None:
        now = time.monotonic()
        if not closer or len(job.ranks) >= job.world_size or now - self._asked_at < _AGAIN_SECONDS:
            return
        for rank in job.alive_ranks():
            pid = rank.placement.pid
            parent = rank.tree.main.ppid if rank.tree is not None else 0
            if rank.node or pid == self._node.pid or parent <= 1:  # diag's own child has no launcher
                continue
            self._asked_at = now
            with self._lock:
                self._todo = rank.rank, pid, parent
            self.wake()
            return

    def period(self, cpu: float, wall: float) -> float:
        return wall + _CALM_SECONDS

    def sample(self) -> None:
        with self._lock:
            todo, self._todo = self._todo, None
        if todo is None:
            return
        rank, pid, parent = todo
        payload = self._stacks.dump(parent, _DEADLINE, parent_pid=pid)
        if "failed" not in payload:
            self.reporter.put(Record(remote_stack.SOURCE, payload, rank, self.reporter.host))
