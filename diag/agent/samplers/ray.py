"""Reads Ray where the job uses it: its processes, what they do and wait for, and what it says of itself."""

from __future__ import annotations

import time

from diag.agent.samplers.context import NodeContext, NodeSampler
from diag.sources import ray
from diag.sources.host.process_tree import Tree
from diag.state.view import JobView

_SECONDS, _CLOSER_SECONDS = 20.0, 10.0
_SEARCH_SECONDS = 10.0


class RaySampler(NodeSampler):
    name, what, sources = "ray", "Ray's processes", (ray.SOURCE,)
    delay_seconds = 5.0
    read_for_dumps = True

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node.reporter, _SECONDS)
        self._node = node
        self._reader: ray.RayReader | None = None
        self._closer = False
        self._ended = 0  # ranks
        self._searched_at = -_SEARCH_SECONDS

    @classmethod
    def of(cls, node: NodeContext) -> RaySampler:
        return cls(node)

    def tend(self, closer: bool, job: JobView) -> None:
        self._closer = closer
        ended = sum(not one.alive for one in job.ranks.values())
        if ended > self._ended and self._reader is not None:
            self.wake()  # Ray's logs may say why
        self._ended = ended

    def finish(self) -> None:
        if self._reader is not None:
            self.read(self.what, ray.SOURCE, self._reader.sample)

    def sample(self) -> None:
        reader = self._found()
        if reader is not None:
            self.read(self.what, ray.SOURCE, reader.sample)

    def period(self, cpu: float, wall: float) -> float:
        return max(
            _CLOSER_SECONDS if self._closer else _SECONDS, super().period(cpu, wall) if cpu > 0.1 else 0.0
        )

    def _found(self) -> ray.RayReader | None:
        if self._reader is not None and self._reader.session.is_alive():
            return self._reader
        now = time.monotonic()
        if now - self._searched_at < _SEARCH_SECONDS or not self._node.pid:
            return None
        self._searched_at = now
        tree = Tree(self._node.pid)
        found = ray.session_of((self._node.pid, *tree.scan(full=True)))
        self._reader = None if found is None else ray.RayReader(*found)
        return self._reader

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
