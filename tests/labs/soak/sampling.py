"""What diag's processes hold and use now, read from /proc; and CSV files that are whole at every moment."""

from __future__ import annotations

import contextlib
import csv
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

__all__ = ["Disk", "Row", "Rows", "diag_processes", "disk_of", "look_at", "read_rows"]

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Row:
    """Of one process at one moment. `at`: seconds since the beginning; memory in bytes; `cpu`: seconds since
    it started, with those of children that it waited for."""

    at: float
    process: str
    rss: int
    private: int
    fds: int
    threads: int
    cpu: float


@dataclass(frozen=True, slots=True)
class Disk:
    """The run directory in bytes and its parts, how many files dumps and journal have, and the machine's
    load."""

    at: float
    total: int
    journal: int
    output: int
    nccl: int
    dumps: int
    dump_files: int
    journal_files: int
    load: float


def look_at(pid: int, at: float, process: str) -> Row | None:
    """None when it is gone."""
    home = Path(f"/proc/{pid}")
    try:
        stat = (home / "stat").read_text().rpartition(")")[2].split()
        rollup = (home / "smaps_rollup").read_text()
        fds = len(os.listdir(home / "fd"))
    except OSError:
        return None
    private = sum(
        int(line.split()[1]) << 10
        for line in rollup.splitlines()
        if line.startswith(("Private_C", "Private_D"))
    )
    if stat[0] in "ZX":
        return None
    return Row(
        round(at, 3),
        process,
        int(stat[21]) * _PAGE,
        private,
        fds,
        int(stat[17]),
        sum(map(int, stat[11:15])) / _TICK,
    )


def diag_processes(hub: int, job: int) -> dict[str, int]:
    """hub, sidecar-RANK and whatever else is a child of the hub."""
    found = {"hub": hub}
    with contextlib.suppress(psutil.Error):
        sidecars: list[psutil.Process] = []
        for child in psutil.Process(hub).children():
            if child.pid == job:
                continue
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                if "diag.agent.sidecar" in words:
                    sidecars.append(child)
                elif words and words[0]:
                    found[f"other-{child.pid}"] = child.pid
        found |= {
            f"sidecar-{number}": child.pid
            for number, child in enumerate(sorted(sidecars, key=lambda one: one.pid))
        }
    return found


def disk_of(run_dir: Path, at: float) -> Disk:
    """As `du` counts: what files take, not how long they are."""
    sizes: dict[str, int] = {}
    for folder, _, names in os.walk(run_dir):
        for name in names:
            with contextlib.suppress(OSError):
                path = Path(folder, name)
                sizes[str(path.relative_to(run_dir))] = path.stat().st_blocks * 512

    def part(prefix: str) -> int:
        return sum(size for name, size in sizes.items() if name.startswith(prefix))

    def count(prefix: str) -> int:
        return sum(name.startswith(prefix) for name in sizes)

    return Disk(
        round(at, 3),
        sum(sizes.values()),
        part("journal-"),
        part("output"),
        part("nccl/"),
        part("dumps/"),
        count("dumps/"),
        count("journal-"),
        os.getloadavg()[0],
    )


class Rows:
    """Appends dataclasses to a CSV file."""

    def __init__(self, path: Path, kind: type) -> None:
        self._file = open(path, "w", newline="")  # noqa: SIM115 - closed by close()
        self._writer = csv.DictWriter(self._file, [field.name for field in fields(kind)])
        self._writer.writeheader()

    def add(self, row: Any) -> None:
        self._writer.writerow(asdict(row))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path, kind: type) -> list[Any]:
    types: Mapping[str, Any] = {"float": float, "int": int, "str": str}
    with open(path, newline="") as file:
        return [
            kind(**{field.name: types[str(field.type)](row[field.name]) for field in fields(kind)})
            for row in csv.DictReader(file)
        ]


def moments(every: float, seconds: float) -> Iterator[float]:
    """Seconds since the beginning, each when it has come."""
    began, number = time.monotonic(), 0
    while (due := number * every) <= seconds:
        time.sleep(max(0.0, began + due - time.monotonic()))
        yield time.monotonic() - began
        number = max(number + 1, int((time.monotonic() - began) / every))
