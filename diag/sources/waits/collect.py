"""The raw facts about every thread of a process tree, and about whatever those threads wait for.

Nothing here stops a process, opens a path of the job, or asks a file system, but for the mount that a thread is held
up by, and that in a child process: readlink on descriptors, fdinfo and mountinfo answer also where the mount does not.
What is refused is a gap in the record, never an error.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diag.model import Payload
from diag.sources.host.process_tree import PROC, colon_fields, descendants, read_raw, read_text
from diag.sources.waits.decode import read_thread
from diag.sources.waits.mounts import Mounts
from diag.sources.waits.objects import Objects
from diag.sources.waits.proc_files import Quota, command_of, cpu_limit

SOURCE = "waits"
_THREADS = 256  # of one process
_PROCESSES = 64  # of the rank
_OTHERS = 8  # that the rank waits for, and that are not below it


class WaitReader:
    """Raises nothing: whatever could not be read is marked as such in the record."""

    def __init__(self, pid: int, proc: Path = PROC, *, spent: bool = False) -> None:
        """`spent`: and what each process has used since it began."""
        self.pid = pid
        self._proc = os.fspath(proc)
        self._spent = spent
        self._mounts = Mounts(self._proc)
        self._quota = Quota(pid, self._proc)
        self._others: tuple[int, ...] = ()  # that it waited for when last read

    def sample(
        self,
        over_seconds: float = 0.5,
        pause: Callable[[float], object] = time.sleep,
        other_ranks: frozenset[int] = frozenset(),
    ) -> Payload:
        """Two readings, `over_seconds` apart: what did not change in between waits. Costs some 40 us a thread."""
        job = (self.pid, *descendants(self.pid, Path(self._proc), other_ranks))[:_PROCESSES]
        first = {pid: self._threads(pid) for pid in dict.fromkeys((*job, *self._others))}
        quota = self._quota.read()
        began = time.monotonic()
        pause(over_seconds)
        over = time.monotonic() - began
        held_back = self._quota.since(quota)
        objects = Objects(self._proc, self._mounts)
        processes: dict[str, Any] = {}
        todo = list(job)
        for pid in todo:  # grows by those that others wait for
            row = self._process(pid, first.get(pid, {}), pid in job)
            if row is None:
                continue
            processes[str(pid)] = row
            if len(row["threads"]) == 1 and "futex" in str(next(iter(row["threads"].values())).get("wchan")):
                row["libraries"] = objects.libraries(pid)
            strangers = [other for other in self._learn(pid, row, objects) if other not in todo]
            todo += strangers[: max(0, _OTHERS - (len(todo) - len(job)))]
        self._others = tuple(int(number) for number, row in processes.items() if not row["job"])
        for number, row in processes.items():
            for native, name in objects.names(int(number)).items():
                if str(native) in row["threads"]:
                    row["threads"][str(native)]["name"] = name
        objects.close()
        objects.hear_mounts()
        if self._spent:
            for number, row in processes.items():
                for name in ("stat", "io"):
                    row[name] = read_text(f"{self._proc}/{number}/{name}").strip()
        return {
            "pid": self.pid,
            **({"uptime": read_text(f"{self._proc}/uptime").strip()} if self._spent else {}),
            "machine": platform.machine(),
            "over_seconds": round(over, 3),
            "ticks_per_second": os.sysconf("SC_CLK_TCK"),
            "quota": held_back,
            "processes": processes,
            "objects": objects.found,
            "not_checked": sorted(objects.gaps),
        }

    def _learn(self, pid: int, row: dict[str, Any], objects: Objects) -> list[int]:
        """What each thread waits for: the main one first, and those that it waits for. Only for these a process's
        memory is searched. Returns the processes on the other side."""
        threads = row["threads"]
        chain: list[str] = [str(pid)]
        others: list[int] = []
        for tid in chain:  # grows
            chain += [
                owner
                for owner in self._ask(pid, tid, threads, objects, others, deep=True)
                if owner not in chain
            ]
        for tid in threads.keys() - chain:
            self._ask(pid, tid, threads, objects, others, deep=False)
        return others

    def _ask(
        self, pid: int, tid: str, threads: dict[str, Any], objects: Objects, others: list[int], *, deep: bool
    ) -> list[str]:
        """Returns the threads of the process that the kernel or the interpreter names as owners."""
        seen = read_thread(threads.get(tid, {}))
        if seen is None:
            return []
        key, found = objects.learn(pid, int(tid), seen.blocked, deep=deep)
        if key:
            threads[tid]["object"] = key
        others += found
        return objects.owners(key)

    def _process(self, pid: int, before: dict[str, dict[str, str]], job: bool) -> dict[str, Any] | None:
        threads = self._threads(pid)
        if not threads:
            return None
        for tid, thread in threads.items():
            if tid in before:
                thread["before"] = {
                    name: before[tid][name]
                    for name in ("stat", "syscall", "schedstat", "switches")
                    if name in before[tid]
                }
        row: dict[str, Any] = {"command": command_of(self._proc, pid), "job": job, "threads": threads}
        if job and (limit := cpu_limit(self._proc, pid)) is not None:
            row["cpu_limit"] = limit
        if len(threads) == 1:  # whom but for itself only a signal may wake: those that it has handlers for
            row["caught"] = colon_fields(read_text(f"{self._proc}/{pid}/status")).get("SigCgt", "")
        if len(threads) >= _THREADS:
            row["threads_left_out"] = max(0, len(os.listdir(f"{self._proc}/{pid}/task")) - _THREADS)
        ns = {thread["ns"]: int(tid) for tid, thread in threads.items() if "ns" in thread}
        return row | ({"ns": ns} if ns else {})

    def _threads(self, pid: int) -> dict[str, dict[str, Any]]:
        try:
            tids = sorted(os.listdir(f"{self._proc}/{pid}/task"), key=int)[:_THREADS]
        except (OSError, ValueError):
            return {}
        return {tid: row for tid in tids if (row := self._thread(f"{self._proc}/{pid}/task/{tid}"))}

    def _thread(self, base: str) -> dict[str, Any] | None:
        stat = read_raw(f"{base}/stat")
        if stat is None:
            return None
        row: dict[str, Any] = {"stat": stat.decode(errors="replace").strip()}
        for name in ("wchan", "syscall", "schedstat"):
            if raw := read_raw(f"{base}/{name}"):
                row[name] = raw.decode(errors="replace").strip()
        status = read_text(f"{base}/status")
        counts = [line.split()[-1] for line in status.splitlines() if "ctxt_switches" in line]
        if len(counts) == 2:
            row["switches"] = " ".join(counts)
        inside = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
        if len(inside) > 1:
            row["ns"] = inside[-1]
        return row
