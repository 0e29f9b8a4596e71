"""Processes of other jobs on this machine: which belong together, and whether what started them is still
there.

Reads /proc only. What started this very command is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from diag.launch.launchers import identify, launches
from diag.sources.host.process_tree import PROC, read_environ, read_raw, split_stat

_REAPERS = frozenset([
    "systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "conmon", "containerd-shim", "s6-svscan", "runit", "launchd",
    "pause",
])  # fmt: skip
# What a training starts that may outlive it: torch's DataLoader workers and compile workers, vLLM's processes
# (proctitles), Python's spawned children.
_WORKER_COMMS = ("pt_data_worker", "pt_data_pin", "VLLM::")
_WORKER_WORDS = (
    "torch._inductor.compile_worker",
    "torch/_inductor/compile_worker",
    "multiprocessing.spawn import spawn_main",
)


@dataclass(frozen=True, slots=True)
class Process:
    """`rank` is None for what is not a rank or a child of one; `job` is what the members of one job have in
    common. `by_agent`: a launcher that stays (torchrun, accelerate, deepspeed) started it."""

    pid: int
    parent: int
    comm: str
    argv: tuple[str, ...]
    state: str = "S"
    age_seconds: float = 0.0
    resident_bytes: int = 0
    uid: int = 0
    rank: int | None = None
    job: tuple[str, ...] = ()
    by_agent: bool = False

    @property
    def is_python(self) -> bool:
        first = self.argv[0].rpartition("/")[2] if self.argv else ""
        return any(name.startswith(("python", "pt_")) for name in (first, self.comm)) or launches(self.argv)

    @property
    def is_worker(self) -> bool:
        words = " ".join(self.argv[:6])[:2000]
        titled = self.comm.startswith(_WORKER_COMMS) or words.startswith("VLLM::")
        return titled or any(word in words for word in _WORKER_WORDS)


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Processes of one job. `launcher` is what started its ranks, where that lives; `left_over`: it is gone.
    `sure` is False where process 1 is a Python program that may have started them itself."""

    members: tuple[Process, ...]
    launcher: Process | None
    left_over: bool
    sure: bool = True

    @property
    def ranks(self) -> list[int]:
        return sorted({one.rank for one in self.members if one.rank is not None})


def processes_here(proc: Path = PROC, now: float | None = None) -> dict[int, Process]:
    """All that may be read, by pid."""
    uptime = _uptime(proc) if now is None else now
    found = (_process(int(name), proc, uptime) for name in os.listdir(proc) if name.isdecimal())
    return {process.pid: process for process in found if process is not None}


def _process(pid: int, proc: Path, uptime: float) -> Process | None:
    raw = read_raw(f"{proc}/{pid}/stat")
    try:
        _, comm, fields = split_stat((raw or b"").decode(errors="replace"))
        state, parent, ticks, pages = fields[0], int(fields[1]), int(fields[19]), int(fields[21])
        uid = os.stat(f"{proc}/{pid}").st_uid  # noqa: PTH116 - one call for each of thousands
    except (ValueError, IndexError, OSError):
        return None
    argv = tuple((read_raw(f"{proc}/{pid}/cmdline") or b"").decode(errors="replace").rstrip("\0").split("\0"))
    age = uptime - ticks / os.sysconf("SC_CLK_TCK")
    plain = Process(pid, parent, comm, argv, state, max(0.0, age), pages * os.sysconf("SC_PAGE_SIZE"), uid)
    if argv == ("",):  # a thread of the kernel
        return plain
    env = read_environ(pid, proc)
    identity = identify(env) if env else None
    if env is None or identity is None:
        return plain
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
    return replace(
        plain,
        rank=None if launches(argv) else identity.rank,
        job=(identity.launcher, *(env.get(name, "") for name in names)),
        by_agent="TORCHELASTIC_RUN_ID" in env or identity.launcher == "deepspeed",
    )


def _uptime(proc: Path) -> float:
    words = (read_raw(f"{proc}/uptime") or b"").split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return time.monotonic()


def group(processes: Mapping[int, Process], own: int) -> list[JobGroup]:
    """The jobs among these processes, left-over ones first. `own` is this process: its ancestors and
    descendants are not a job."""
    ours = {pid for pid in processes if own in _line(pid, processes)} | set(_line(own, processes))
    groups: dict[tuple[object, ...], list[Process]] = {}
    launchers: dict[tuple[object, ...], Process | None] = {}
    for process in processes.values():
        if process.pid in ours or process.state in "ZX" or launches(process.argv):
            continue
        if process.rank is None and not process.is_worker:
            continue
        parent = processes.get(_top(process, processes).parent)
        left_over, sure = _is_left_over(process, parent, processes)
        if process.rank is None and not left_over:
            continue  # a worker of a job without ranks that runs
        key = (left_over, sure, process.job, None if left_over or parent is None else parent.pid)
        groups.setdefault(key, []).append(process)
        launchers[key] = None if left_over else parent
    found = [
        JobGroup(tuple(sorted(members, key=lambda one: one.pid)), launchers[key], bool(key[0]), bool(key[1]))
        for key, members in groups.items()
        if any(one.is_python or one.is_worker for one in members)
    ]
    return sorted(found, key=lambda one: (not one.left_over, one.members[0].pid))


def _line(pid: int, processes: Mapping[int, Process]) -> Iterator[int]:
    """A process and those above it."""
    for _ in range(200):
        yield pid
        if pid not in processes or processes[pid].parent in (0, pid):
            return
        pid = processes[pid].parent


def _top(process: Process, processes: Mapping[int, Process]) -> Process:
    """The rank that a process is, or is below of: its environment is the rank's."""
    for pid in _line(process.pid, processes):
        above = processes.get(processes[pid].parent) if pid in processes else None
        if above is None or above.rank != process.rank or above.job != process.job or launches(above.argv):
            return processes[pid]
        if process.rank is None and not above.is_worker:
            return processes[pid]
    return process


def _is_left_over(
    process: Process, parent: Process | None, processes: Mapping[int, Process]
) -> tuple[bool, bool]:
    """(left over, sure). Only what a launcher that stays had started, or a worker: process 1 is the parent of
    a rank too that was started with nohup."""
    if parent is None or not (process.by_agent or process.is_worker):
        return False, True
    if parent.pid != 1 and parent.comm not in _REAPERS:
        return False, True
    return True, not (parent.is_python or launches(parent.argv))
