"""The processes of a job below its root, and those that Ray runs for it elsewhere: of a Ray that was started before the job
its workers hang below the raylet."""

from __future__ import annotations

from pathlib import Path

from diag.launch.launchers.secrets import redacted
from diag.sources import ray
from diag.sources.host.process_tree import FULL_SCAN_EVERY, PROC, Tree, read_argv
from diag.text.errors import DiagError

_SELDOM = 360  # scans: a job without Ray is asked for it half-hourly
_SHOWN = 100  # letters of a command
_MOST_ASKED = 64  # processes below the root, the nearest first: a driver is among them


def driver_on_this_machine(proc: Path = PROC) -> int:
    """Its pid. Raises DiagError where Ray does not run here, or not for one driver alone."""
    sessions = [*ray.sessions(proc)]
    drivers = [pid for session in sessions for pid in session.members().drivers]
    if len(drivers) == 1:
        return drivers[0]
    if not sessions:
        raise DiagError(
            "Ray does not run on this machine: no process of it (raylet) was found",
            hint="run this on the node of the driver; in a container, in the same one",
            exit_code=2,
        )
    if not drivers:
        raise DiagError(
            f"Ray runs here (raylet, pid {sessions[0].raylet}), and no driver on this machine is connected to it",
            hint="run this on the node of the driver (of `ray job submit` that is the head node), after its ray.init",
            exit_code=2,
        )
    words = {
        pid: " ".join(redacted([word for word in read_argv(pid, proc) if word]))[:_SHOWN] for pid in drivers
    }
    raise DiagError(
        f"{len(drivers)} drivers run on Ray here, and none was chosen: "
        + "; ".join(f"pid {pid} ({command})" for pid, command in words.items()),
        hint=" or ".join(f"diag watch --pid {pid}" for pid in drivers),
        exit_code=2,
    )


class RayTree(Tree):
    """`beside`: the workers of a session whose driver is the root or below it, as of the last scan that looked."""

    def __init__(self, pid: int, root: Path = PROC) -> None:
        super().__init__(pid, root)
        self.beside: frozenset[int] = frozenset()
        self._proc = root
        self._scanned, self._look_at = 0, 1
        self._session: tuple[ray.Session, int] | None = None

    @property
    def driver(self) -> int | None:
        """Of Ray, where the root is one or has one below it."""
        return None if self._session is None else self._session[1]

    def scan(self, full: bool = False) -> tuple[int, ...]:
        below = super().scan(full)
        self._scanned += 1
        if self._scanned >= self._look_at:
            self._find((self.pid, *below))
            rarer = FULL_SCAN_EVERY if self._session is not None else max(FULL_SCAN_EVERY, self._scanned // 2)
            self._look_at = self._scanned + min(rarer, _SELDOM)
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
