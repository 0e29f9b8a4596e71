"""A job that runs: wait for what it prints, find its ranks and workers, and do something to them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Run", "kill_data_worker", "kill_map_worker", "kill_rank", "terminate_rank"]


@dataclass(frozen=True, slots=True)
class Run:
    """`root` is the process that was started, `log` the file that its output goes to."""

    root: psutil.Process
    log: Path
    deadline: float

    def wait_for(self, text: str, count: int = 1) -> bool:
        """False when the job ended, or its time is up, before `text` was printed."""
        while (
            time.monotonic() < self.deadline
            and self.root.is_running()
            and self.root.status() != psutil.STATUS_ZOMBIE
        ):
            if self.log.read_text(errors="replace").count(text) >= count:
                return True
            time.sleep(0.05)
        return False

    def ranks(self) -> dict[int, psutil.Process]:
        """Global rank to its process: the topmost one that has RANK in its environment."""
        found: dict[int, psutil.Process] = {}
        for process in self.root.children(recursive=True):
            try:
                rank = process.environ().get("RANK")
            except psutil.Error:
                continue
            if rank is not None:
                found.setdefault(int(rank), process)
        return found

    def children(self, rank: int, name: str | None = None) -> list[psutil.Process]:
        """The children of a rank; `name` is what the kernel calls them (pt_data_worker)."""
        process = self.ranks().get(rank)
        children = process.children() if process is not None else []
        return [child for child in children if name is None or child.name() == name]


def kill_rank(rank: int, after: str, how: signal.Signals = signal.SIGKILL) -> Callable[[Run], None]:
    """Kill a rank once `after` was printed."""

    def act(run: Run) -> None:
        if run.wait_for(after):
            run.ranks()[rank].send_signal(how)

    return act


def terminate_rank(rank: int, after: str) -> Callable[[Run], None]:
    """SIGTERM to a rank once `after` was printed."""
    return kill_rank(rank, after, signal.SIGTERM)


def kill_data_worker(rank: int, after: str) -> Callable[[Run], None]:
    """Kill a DataLoader worker of a rank once `after` was printed."""

    def act(run: Run) -> None:
        if not run.wait_for(after):
            return
        while time.monotonic() < run.deadline and run.root.is_running():
            if workers := run.children(rank, "pt_data_worker"):
                workers[0].kill()
                return
            time.sleep(0.05)

    return act


def kill_map_worker(rank: int, after: str) -> Callable[[Run], None]:
    """Kill one of the processes that `datasets` maps with, once `after` was printed."""

    def act(run: Run) -> None:
        if not run.wait_for(after):
            return
        while time.monotonic() < run.deadline and run.root.is_running():
            # The manager of `multiprocess` is the first child, the pool's processes come after it.
            if len(children := run.children(rank)) >= 3:
                children[-1].kill()
                return
            time.sleep(0.01)

    return act
