"""How often the CPU quota of a process's cgroup is used up: who is held back by it looks as if it computed."""

from __future__ import annotations

from pathlib import Path

from diag.sources.host.cgroup_paths import find
from diag.sources.host.process_tree import read_raw

_QUOTA = {1: "cpu.cfs_quota_us", 2: "cpu.max"}


class Quota:
    """Of its cgroup and those above it, as far as they are seen."""

    def __init__(self, pid: int, proc: str) -> None:
        self._pid, self._proc = pid, proc
        self._levels: list[str] | None = None

    def read(self) -> dict[str, tuple[int, int]]:
        """By folder: the periods in which it had work, and those in which it was held back."""
        if self._levels is None:
            membership = (read_raw(f"{self._proc}/{self._pid}/cgroup") or b"").decode(errors="replace")
            try:
                found = find(self._pid, membership, "cpu", _QUOTA, root=Path(self._proc))
                self._levels = [folder for _, folder in found.levels]
            except OSError:  # another user's process does not show its own view
                self._levels = []
        counts = {}
        for folder in self._levels:
            # nr_periods 20\nnr_throttled 20\nthrottled_time 1892736457     (Linux 6.18, v1; v2: throttled_usec)
            lines = (read_raw(f"{folder}/cpu.stat") or b"").decode(errors="replace").splitlines()
            values = dict(line.split(maxsplit=1) for line in lines if " " in line)
            if "nr_throttled" in values:
                counts[folder] = int(values["nr_periods"]), int(values["nr_throttled"])
        return counts

    def since(self, before: dict[str, tuple[int, int]]) -> dict[str, int]:
        """Of the level that held it back most; empty where none did."""
        rows = [
            (now[1] - before[folder][1], now[0] - before[folder][0])
            for folder, now in self.read().items()
            if folder in before
        ]
        throttled, periods = max(rows, default=(0, 0))
        return {"throttled": throttled, "periods": periods} if throttled > 0 else {}
