"""Which processes are Ray's, by what they hold open and by what Ray calls its files: drivers and workers each have a log of
their own in the folder of their session, named after their pid."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from diag.sources.host.process_tree import PROC, read_argv, read_process

# ray 2.60, of one session:
#   python-core-driver-01000000ffffffffffffffffffffffffffffffffffffffffffffffff_5339.log
#   python-core-worker-1f130145731c71c35d5baeabf8a7da6a355c1ce12d388d37f5c98fc6_5964.log
_CORE_LOG = re.compile(
    r"python-core-(?P<kind>driver|worker)-(?P<worker>[0-9a-f]{8,64})_(?P<pid>\d{1,9})\.log"
)
_MOST_FILES = 20_000
_JOB_LINE = re.compile(r":job_id:([0-9a-f]{8})")  # the first line of a worker's output; before, it has no job


@dataclass(frozen=True, slots=True)
class Session:
    """`folder` is Ray's own of this session (/tmp/ray/session_...), `raylet` its process on this machine."""

    folder: str
    raylet: int
    proc: Path = field(default=PROC, compare=False)

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
        for match in _core_logs(self.logs):
            pid = int(match["pid"])
            process = read_process(pid, self.proc)
            if process is None or process.state in "ZX":
                names[pid] = match["worker"]
            elif match["kind"] == "worker":
                names[pid] = match["worker"]
                if process.parent == self.raylet:
                    workers.append(pid)
            elif not _is_of_ray(pid, self.proc) and holds(pid, f"{self.logs}/{match[0]}", self.proc):
                drivers.append(pid)
                names[pid] = match["worker"]
        return Members(tuple(sorted(drivers)), tuple(sorted(workers)), names)

    def workers_of(self, driver: int, members: Members | None = None) -> list[int]:
        """Those that run for this driver, or for none yet: where it is the only one, all."""
        members = members or self.members()
        if len(members.drivers) < 2:
            return list(members.workers)
        job = members.job(driver)
        return [pid for pid in members.workers if self.is_of_job(pid, members.names[pid], job)]

    def is_of_job(self, worker: int, name: str, job: str) -> bool:
        """Whether a worker runs for this job of Ray's, or for none yet."""
        for prefix in ("ffffffff", job):
            try:
                with open(f"{self.logs}/worker-{name}-{prefix}-{worker}.out", encoding="utf-8") as file:
                    found = _JOB_LINE.match(file.readline(80))
            except (OSError, ValueError):
                continue
            return found is None or found[1] == job
        return True


@dataclass(frozen=True, slots=True)
class Members:
    """`names`: Ray's number of each driver and worker, also of those that have ended."""

    drivers: tuple[int, ...]
    workers: tuple[int, ...]
    names: dict[int, str]

    def job(self, driver: int) -> str:
        """Ray's number of a driver's job is how the driver's own begins."""
        return self.names.get(driver, "")[:8]


def session_of(pids: Iterable[int], proc: Path = PROC) -> tuple[Session, int | None] | None:
    """The session that these processes started or are drivers of, and the driver among them; the first that is found."""
    own = dict.fromkeys(pids)
    for pid in own:
        if (session := _of_raylet(pid, proc)) is not None:
            drivers = [one for one in session.members().drivers if one in own]
            return session, drivers[0] if drivers else None
    for pid in own:
        if (folder := _folder_of_driver(pid, proc)) and (raylet := _raylet_of(folder, proc)) is not None:
            return raylet, pid
    return None


def sessions(proc: Path = PROC) -> Iterator[Session]:
    """All that run on this machine."""
    for pid in _pids(proc):
        if (session := _of_raylet(pid, proc)) is not None:
            yield session


def holds(pid: int, path: str, proc: Path = PROC) -> bool:
    """Whether it has this file open."""
    return any(link == path for link in _links(pid, proc))


def _is_of_ray(pid: int, proc: Path) -> bool:
    """A program of Ray's own, as its dashboard, which connects to it as a driver does."""
    words = read_argv(pid, proc)
    return words[:1] != [] and (
        words[0].startswith("ray::")
        or any("/site-packages/ray/" in word for word in words[1:4] if word.endswith(".py"))
    )


def _of_raylet(pid: int, proc: Path) -> Session | None:
    process = read_process(pid, proc)
    if process is None or process.comm != "raylet" or process.state in "ZX":
        return None
    # --raylet_socket_name=/tmp/ray/session_2026-11-27_18-32-54_107522_5339/sockets/raylet
    for word in read_argv(pid, proc):
        name, equals, value = word.partition("=")
        if name == "--raylet_socket_name" and equals and value.startswith("/"):
            return Session(value.rpartition("/sockets/")[0], pid, proc)
    return None


def _raylet_of(folder: str, proc: Path) -> Session | None:
    return next((one for one in sessions(proc) if one.folder == folder), None)


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


def _core_logs(folder: str) -> list[re.Match[str]]:
    try:
        names = os.listdir(folder)[:_MOST_FILES]
    except OSError:
        return []
    return [found for name in names if (found := _CORE_LOG.fullmatch(name)) is not None]


def _pids(proc: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(proc) if name.isdigit())
