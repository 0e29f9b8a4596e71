"""The processes of a job below its root, and those that Ray runs for it elsewhere: of a Ray that was started before the job
its workers hang below the raylet."""

from __future__ import annotations

from pathlib import Path

from diag.sources import ray
from diag.sources.host.process_tree import FULL_SCAN_EVERY, PROC, Tree

_MOST_ASKED = 64  # processes below the root, the nearest first: a driver is among them


class RayTree(Tree):
    """`beside`: the workers of a session whose driver is the root or below it, as of the last scan that looked."""

    def __init__(self, pid: int, root: Path = PROC) -> None:
        super().__init__(pid, root)
        self.beside: frozenset[int] = frozenset()
        self._proc = root
        self._looks = 0
        self._session: tuple[ray.Session, int] | None = None

    def scan(self, full: bool = False) -> tuple[int, ...]:
        below = super().scan(full)
        if self._looks % FULL_SCAN_EVERY == 0:
            self._find((self.pid, *below))
        self._looks += 1
        if self._session is None:
            return below
        session, driver = self._session
        if session.raylet in below:
            return below
        self.beside = frozenset(session.workers_of(driver)).difference(below)
        return (*below, *sorted(self.beside))

    def _find(self, pids: tuple[int, ...]) -> None:
        if self._session is None or not self._session[0].is_alive():
            found = ray.session_of(pids[:_MOST_ASKED], self._proc)
            self._session = None if found is None or found[1] is None else (found[0], found[1])
            self.beside = frozenset()
