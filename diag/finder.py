"""Finds the ranks of a job among the descendants of its root process, by their environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diag.launchers import Identity, identify, relevant
from diag.model import Placement
from diag.sources.tree import Tree, is_python, read_environ, read_raw, split_stat

__all__ = ["Found", "RankFinder"]

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Found:
    """A rank's process. `variables` is the allow-listed part of its environment."""

    placement: Placement
    command: str
    variables: dict[str, str]
    distributed: bool = True


class RankFinder:
    """Call `scan` about once a second: it reads the environment of each new process once.

    A rank is the topmost Python process with a rank's variables: DataLoader workers below it inherit them, and a shell
    above it (`srun bash -c 'python train.py'`) has them as well. A rank that is no Python at all is taken as it is.
    """

    def __init__(self, root_pid: int, host: str, proc: Path = PROC) -> None:
        self.root_pid = root_pid
        self._host = host
        self._proc = proc
        self._tree = Tree(root_pid, proc)
        self._known: dict[tuple[int, int], Identity | None] = {}
        self._told: dict[int, tuple[int, int]] = {}  # rank -> (pid, start_ticks)
        self.denied = 0
        self.python_pids: list[int] = []

    def scan(self) -> list[Found]:
        """Ranks that are new, or whose process is another than last time (elastic restart)."""
        pids = self._tree.scan()
        stats = {pid: stat for pid in (self.root_pid, *pids) if (stat := self._stat(pid)) is not None}
        identities: dict[int, Identity] = {}
        for pid, (ticks, _) in stats.items():
            identity = self._identity(pid, ticks)
            if identity is not None:
                identities[pid] = identity
        self._forget({(pid, ticks) for pid, (ticks, _) in stats.items()})
        found = []
        for rank, pid in self._topmost(identities, stats).items():
            ticks = stats[pid][0]
            if self._told.get(rank) == (pid, ticks):
                continue
            described = self._describe(pid, ticks, identities[pid])
            if described is not None:
                self._told[rank] = (pid, ticks)
                found.append(described)
        return found

    def sole_process(self) -> Found | None:
        """For a command without ranks: its topmost Python process (the root itself, or below a shell) as rank 0."""
        pids = (self.root_pid, *self._tree.scan())
        pid = next((pid for pid in pids if is_python(pid, self._proc)), None)
        stat = self._stat(pid) if pid is not None else None
        if pid is None or stat is None:
            return None
        return self._describe(pid, stat[0], Identity(0, 0, 1, "local", 0, 1), distributed=False)

    def _topmost(self, identities: dict[int, Identity], stats: dict[int, tuple[int, int]]) -> dict[int, int]:
        chosen: dict[int, int] = {}
        for pid in sorted(identities, key=lambda pid: self._depth(pid, stats)):
            rank = identities[pid].rank
            above = chosen.get(rank)
            if above is None:
                chosen[rank] = pid
            elif self._is_below(pid, above, stats) and not is_python(above, self._proc) and is_python(pid, self._proc):
                chosen[rank] = pid
        return chosen

    def _depth(self, pid: int, stats: dict[int, tuple[int, int]]) -> int:
        depth = 0
        while pid in stats and depth < 64:
            pid, depth = stats[pid][1], depth + 1
        return depth

    def _is_below(self, pid: int, above: int, stats: dict[int, tuple[int, int]]) -> bool:
        for _ in range(64):
            if pid == above:
                return True
            if pid not in stats:
                return False
            pid = stats[pid][1]
        return False

    def _identity(self, pid: int, ticks: int) -> Identity | None:
        """Read again while a process is young: between fork and exec it still shows its parent's environment."""
        key = (pid, ticks)
        known = self._known.get(key)
        if known is not None:
            return known
        env = read_environ(pid, self._proc)
        if env is None:
            self.denied += key not in self._known
            self._known.setdefault(key, None)
            return None
        identity = identify(env)
        self._known[key] = identity
        return identity

    def _forget(self, alive: set[tuple[int, int]]) -> None:
        for key in [key for key in self._known if key not in alive]:
            del self._known[key]

    def _stat(self, pid: int) -> tuple[int, int] | None:
        raw = read_raw(f"{self._proc}/{pid}/stat")
        if not raw:
            return None
        try:
            _, _, fields = split_stat(raw.decode("utf-8", "replace"))
            return int(fields[19]), int(fields[1])
        except (ValueError, IndexError):
            return None

    def _describe(self, pid: int, ticks: int, who: Identity, *, distributed: bool = True) -> Found | None:
        env = read_environ(pid, self._proc) or {}
        raw = read_raw(f"{self._proc}/{pid}/cmdline") or b""
        command = " ".join(word.decode("utf-8", "replace") for word in raw.split(b"\0") if word)
        place = Placement(
            rank=who.rank, local_rank=who.local_rank, world_size=who.world_size, host=self._host, pid=pid,
            start_ticks=ticks, node_rank=who.node_rank, local_world_size=who.local_world_size, launcher=who.launcher,
        )
        return Found(place, command[:2000], relevant(env), distributed)

    def output_files(self, pid: int) -> Iterator[tuple[str, Path]]:
        """Regular files that a process's stdout and stderr go to (torchrun --log-dir, a shell's redirection)."""
        for number, name in ((1, "stdout"), (2, "stderr")):
            try:
                target = Path(os.readlink(self._proc / str(pid) / "fd" / str(number)))
            except OSError:
                continue
            if target.is_absolute() and target.is_file():
                yield name, target
