"""Files of /proc that several of this package read: of a process its command, its descriptors, its mounts, and how
often the CPU quota of its cgroup is used up."""

from __future__ import annotations

from pathlib import Path

from diag.launch.launchers.secrets import redacted
from diag.sources.host import mountinfo
from diag.sources.host.cgroup_paths import find
from diag.sources.host.process_tree import colon_fields, read_process, read_text

_COMMAND = 160
_QUOTA = {1: "cpu.cfs_quota_us", 2: "cpu.max"}


def command_of(proc: str, pid: int, most: int = _COMMAND) -> str:
    """As it was started, without what looks like a secret."""
    argv = read_text(f"{proc}/{pid}/cmdline").rstrip("\0").split("\0")
    return " ".join(redacted(argv))[:most].strip()


def parent_and_start(proc: str, pid: int) -> tuple[int, float]:
    """Its parent, and when it began, in ticks since boot; zeros for one that is gone."""
    process = read_process(pid, proc)
    return (process.parent, float(process.ticks)) if process is not None else (0, 0.0)


def cpu_limit(proc: str, pid: int) -> int | None:
    """Seconds of CPU time after which the kernel ends it (RLIMIT_CPU); None for no limit."""
    # Max cpu time              2                    6                    seconds   (Linux 6.18)
    lines = read_text(f"{proc}/{pid}/limits").splitlines()
    row = next((line.split() for line in lines if line.startswith("Max cpu time")), [])
    return int(row[3]) if len(row) > 3 and row[3].isdigit() else None


def fdinfo(proc: str, pid: int, fd: int) -> dict[str, str]:
    return colon_fields(read_text(f"{proc}/{pid}/fdinfo/{fd}"))


def open_mode(info: dict[str, str]) -> int:
    """0 to read, 1 to write, 2 both."""
    return int(info.get("flags", "0"), 8) & 3


def mounts(proc: str, pid: int | str) -> list[mountinfo.Mount]:
    return mountinfo.mounts(read_text(f"{proc}/{pid}/mountinfo"))


class Quota:
    """Of its cgroup and those above it, as far as they are seen: who is held back by it looks as if it computed."""

    def __init__(self, pid: int, proc: str) -> None:
        self._pid, self._proc = pid, proc
        self._levels: list[str] | None = None

    def read(self) -> dict[str, tuple[int, int]]:
        """By folder: the periods in which it had work, and those in which it was held back."""
        if self._levels is None:
            membership = read_text(f"{self._proc}/{self._pid}/cgroup")
            try:
                found = find(self._pid, membership, "cpu", _QUOTA, root=Path(self._proc))
                self._levels = [folder for _, folder in found.levels]
            except OSError:  # another user's process does not show its own view
                self._levels = []
        counts = {}
        for folder in self._levels:
            # nr_periods 20\nnr_throttled 20\nthrottled_time 1892736457     (Linux 6.18, v1; v2: throttled_usec)
            lines = read_text(f"{folder}/cpu.stat").splitlines()
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
