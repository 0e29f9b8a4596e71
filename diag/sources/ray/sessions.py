"""Which processes are Ray's, by what they hold open and by what Ray calls its files: drivers and workers each have a log of
their own in the folder of their session, named after their pid."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from diag.sources.host.job_files import Files, JobFiles
from diag.sources.host.process_tree import PROC, read_argv, read_process
from diag.state.own_code import package_of

# ray 2.60, of one session:
#   python-core-driver-01000000ffffffffffffffffffffffffffffffffffffffffffffffff_5339.log
#   python-core-worker-1f130145731c71c35d5baeabf8a7da6a355c1ce12d388d37f5c98fc6_5964.log
_CORE_LOG = re.compile(
    r"python-core-(?P<kind>driver|worker)-(?P<worker>[0-9a-f]{8,64})_(?P<pid>\d{1,9})\.log"
)
_JOB_LINE = re.compile(
    rb":job_id:([0-9a-f]{8})"
)  # the first line of a worker's output; before, it has no job

# Opens what a process names, with its rights and beneath its root.
Opens = Callable[[int, Path], Files]


@dataclass(frozen=True, slots=True)
class Session:
    """`folder` is Ray's own of this session (/tmp/ray/session_...), `raylet` its process on this machine."""

    folder: str
    raylet: int
    proc: Path = field(default=PROC, compare=False)
    files: Files = field(default_factory=Files, compare=False, repr=False)
    _jobs: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def logs(self) -> str:
        return f"{self.folder}/logs"

    def is_alive(self) -> bool:
        process = read_process(self.raylet, self.proc)
        return process is not None and process.comm == "raylet" and process.state not in "ZX"

    def members(self) -> Members:
        """Of the moment. Costs a listing of its folder of logs and one small file for each process that it names."""
        drivers: list[int] = []
        workers: list[int] = []
        names: dict[int, str] = {}
        for match in self._core_logs():
            pid = int(match["pid"])
            process = read_process(pid, self.proc)
            if process is None or process.state in "ZX":
                names[pid] = match["worker"]
            elif match["kind"] == "worker":
                names[pid] = match["worker"]
                if process.parent == self.raylet:
                    workers.append(pid)
            elif not _is_of_ray(pid, self.proc) and _holds(pid, f"{self.logs}/{match[0]}", self.proc):
                drivers.append(pid)
                names[pid] = match["worker"]
        return Members(tuple(sorted(drivers)), tuple(sorted(workers)), names)

    def workers_of(self, driver: int, members: Members | None = None) -> list[int]:
        """Those that run for this driver, or for none yet. Others run for other drivers, as `ray job submit` has one of its
        own."""
        members = members or self.members()
        job = members.job(driver)
        return [pid for pid in members.workers if self._job_of(pid, members.names[pid], job) in ("", job)]

    def _job_of(self, worker: int, name: str, job: str) -> str:
        """Ray's number of the job, which a worker keeps; empty where it has none yet, or that cannot be read."""
        if (known := self._jobs.get(name)) is not None:
            return known
        for prefix in ("ffffffff", job):
            try:
                head = self.files.read(f"{self.logs}/worker-{name}-{prefix}-{worker}.out", 80)
            except OSError:
                continue
            if (found := _JOB_LINE.match(head)) is not None:
                return self._jobs.setdefault(name, found[1].decode())
        return ""

    def _core_logs(self) -> list[re.Match[str]]:
        try:
            names = self.files.names(self.logs)
        except OSError:
            return []
        return [found for name in names if (found := _CORE_LOG.fullmatch(name)) is not None]


@dataclass(frozen=True, slots=True)
class Members:
    """`names`: Ray's number of each driver and worker, also of those that have ended."""

    drivers: tuple[int, ...]
    workers: tuple[int, ...]
    names: dict[int, str]

    def job(self, driver: int) -> str:
        """Ray's number of a driver's job is how the driver's own begins."""
        return self.names.get(driver, "")[:8]


def session_of(
    pids: Iterable[int], proc: Path = PROC, opens: Opens = JobFiles
) -> tuple[Session, int | None] | None:
    """The session that these processes started or are drivers of, and the driver among them; the first that is found."""
    own = dict.fromkeys(pids)
    for pid in own:
        if (session := _of_raylet(pid, proc, opens)) is not None:
            drivers = [one for one in session.members().drivers if one in own]
            return session, drivers[0] if drivers else None
    for pid in own:
        folder = _folder_of_driver(pid, proc)
        found = (one for one in sessions(proc, opens) if one.folder == folder) if folder else iter(())
        if (session := next(found, None)) is not None:
            return session, pid
    return None


def sessions(proc: Path = PROC, opens: Opens = JobFiles) -> Iterator[Session]:
    """All that run on this machine."""
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        if (session := _of_raylet(pid, proc, opens)) is not None:
            yield session


def _of_raylet(pid: int, proc: Path, opens: Opens) -> Session | None:
    process = read_process(pid, proc)
    if process is None or process.comm != "raylet" or process.state in "ZX":
        return None
    # --raylet_socket_name=/tmp/ray/session_2026-11-27_18-32-54_107522_5339/sockets/raylet
    for word in read_argv(pid, proc):
        name, equals, value = word.partition("=")
        if name == "--raylet_socket_name" and equals and value.startswith("/"):
            try:
                return Session(value.rpartition("/sockets/")[0], pid, proc, opens(pid, proc))
            except OSError:  # it ended
                return None
    return None


def _is_of_ray(pid: int, proc: Path) -> bool:
    """A program of Ray's own, as its dashboard, which connects to it as a driver does."""
    words = read_argv(pid, proc)
    program = next((word for word in words[1:] if word.endswith(".py")), "")
    return "".join(words[:1]).startswith("ray::") or package_of(program) == "ray"


def _holds(pid: int, path: str, proc: Path) -> bool:
    """Whether it has this file open."""
    return any(link == path for link in _links(pid, proc))


def _folder_of_driver(pid: int, proc: Path) -> str:
    for link in _links(pid, proc):
        folder, _, name = link.rpartition("/logs/")
        found = _CORE_LOG.fullmatch(name) if folder else None
        if found is not None and found["kind"] == "driver" and int(found["pid"]) == pid:
            return folder
    return ""


def _links(pid: int, proc: Path) -> Iterator[str]:
    base = f"{os.fspath(proc)}/{pid}/fd"
    try:
        for fd in os.listdir(base):
            yield os.readlink(f"{base}/{fd}")
    except OSError:
        return
