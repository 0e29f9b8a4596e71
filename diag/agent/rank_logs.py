"""The files that ranks print to, beside what the relay reads: found by the finder, and NCCL's own in the run
directory."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from diag.sources.host.job_files import JobFiles
from diag.sources.logs.output import FileFollower

# NCCL makes its file with the first communicator, which a model that loads may hold up for long.
_AWAIT_SECONDS = 4 * 3600.0
# three a rank of the largest nodes; beyond, those that have not been used for so long
_MOST_FILES, _OLD_SECONDS = (256, 600.0)
_THROUGH_ROOT = re.compile(r"/proc/\d+/root(?=/)", re.ASCII)
_LOOK_SECONDS = 2.0  # a rank that root started may become another user at any time
_DESCRIPTORS = {"stdout": 1, "stderr": 2}


@dataclass(eq=False)
class RankFiles:
    """Follows each file once. `put` takes a payload of lines and whose they are, `lost` a file that cannot be
    read any more."""

    put: Callable[[dict[str, Any] | None, int | None], None]
    lost: Callable[[Path, OSError], None]
    literals: tuple[str, ...] = ()  # of rules: see LineAssembler
    _followers: dict[Path, tuple[int | None, FileFollower]] = field(default_factory=dict)
    _used: dict[Path, float] = field(default_factory=dict)  # when each was last named by a process, or grew
    _left_out: set[Path] = field(default_factory=set)
    # whose, path, rank, not before, until
    _awaited: list[tuple[JobFiles, Path, int | None, float, float]] = field(default_factory=list)
    _look_at: float = 0.0
    # by pid; followers hold them
    _jobs: weakref.WeakValueDictionary[int, JobFiles] = field(default_factory=weakref.WeakValueDictionary)

    def leave_out(self, paths: Iterable[Path]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                self._left_out.add(path.resolve())

    def follow(
        self, path: Path, stream: str, rank: int | None, *, from_end: bool = False, pid: int = 0
    ) -> None:
        """`pid`: of the process that prints to it, as whose file it is opened; 0 where it is diag's own."""
        real = self._known_as(path)
        if real in self._left_out:
            return
        self._used[real] = time.monotonic()
        if real in self._followers:
            other, follower = self._followers[real]
            if other != rank:
                # several ranks print to it: the lines are of no rank
                self._followers[real] = (None, follower)
            return
        try:
            follower = self._open(real, stream, pid, from_end=from_end)
        except PermissionError as error:
            self.lost(path, error)
        except OSError:
            pass
        else:
            self._followers[real] = (rank, follower)

    def _open(self, path: Path, stream: str, pid: int, *, from_end: bool) -> FileFollower:
        if not pid:
            return FileFollower(path, stream, from_end=from_end, literals=self.literals)
        files = self._files_of(pid)
        name = files.inside(_THROUGH_ROOT.sub("", str(path), count=1))

        def guarded() -> int | None:
            files.look()  # a rank may have become another user since
            return None if files.plain else files.open_file(name)

        number = _DESCRIPTORS.get(stream.partition(":")[0])
        opened = None if files.plain or number is None else files.open_printed(number)
        return FileFollower(
            path, stream, from_end=from_end, opened=opened, guarded=guarded, literals=self.literals
        )

    def _files_of(self, pid: int) -> JobFiles:
        """Raises OSError when it is gone."""
        found = self._jobs.get(pid)
        if found is None or found.has_ended():
            found = self._jobs[pid] = JobFiles(pid)
        return found

    def _known_as(self, path: Path) -> Path:
        """The name that the file is followed by. What is seen through another process's root keeps that name,
        as links in it lead elsewhere, unless another rank's root shows the same file."""
        if not _THROUGH_ROOT.match(str(path)):
            return path.resolve()
        return next((known for known in self._followers if _is_one_file(known, path)), path)

    def await_nccl(self, named: str, pid: int, rank: int, *, host: str = "") -> None:
        """Follow the NCCL_DEBUG_FILE that a rank was given, once NCCL has made it.

        NCCL (src/debug.cc) fills in %h (the host's name up to the first dot), %p and %%, and begins the file
        anew: what was there before the rank was started is another run's.
        """
        try:
            began = psutil.Process(pid).create_time()
            files = self._files_of(pid)
            folder = Path(files.cwd())
        except (psutil.Error, OSError):
            return
        short = (host or socket.gethostname()).partition(".")[0]
        filled = {"%h": short, "%p": str(pid), "%%": "%"}
        path = folder / re.sub("%[hp%]", lambda match: filled[match[0]], named)
        self._awaited.append((files, path, rank, began - 1.0, time.monotonic() + _AWAIT_SECONDS))

    def _look(self) -> None:
        """See as whom the ranks run, while they can be seen: a file may change its name when they have ended."""
        if os.geteuid() == 0 and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECONDS
            for files in list(self._jobs.values()):
                files.look()

    def _follow_awaited(self) -> None:
        still = []
        for waiting in self._awaited:
            files, path, rank, began, until = waiting
            if _is_newer_file(files, path, began):
                seen = Path(f"/proc/{files.pid}/root{path}") if files.apart else path
                self.follow(seen, f"nccl:{path.name}", rank, pid=files.pid)
            elif time.monotonic() < until:
                still.append(waiting)
        self._awaited = still

    def read_new(self, home: Path | None) -> None:
        """What came since last time; files that NCCL made in the run directory `home` are followed from now
        on."""
        if home is not None:
            for path in (home / "nccl").glob("*.log"):
                if path not in self._followers and path not in self._left_out:
                    self.follow(path, f"nccl:{path.name}", None)
        self._look()
        self._follow_awaited()
        for path, (rank, follower) in list(self._followers.items()):
            try:
                payload = follower.read_new()
            except OSError as error:
                del self._followers[path]
                self.lost(path, error)
                continue
            if payload is not None:
                self._used[path] = time.monotonic()
            self.put(payload, rank)
        self._leave_old()

    def _leave_old(self) -> None:
        """Each attempt of an elastic job has files of its own: those of attempts long ago are read to their
        ends and closed, or a job that is restarted for weeks leaves diag without file descriptors."""
        if len(self._followers) <= _MOST_FILES:
            return
        by_use = sorted(self._followers, key=lambda path: self._used.get(path, 0.0))
        for path in by_use[:-_MOST_FILES]:
            if time.monotonic() - self._used.get(path, 0.0) < _OLD_SECONDS:
                break
            rank, follower = self._followers.pop(path)
            with contextlib.suppress(OSError):
                for payload in follower.read_rest():
                    self.put(payload, rank)
            follower.close()
            self._left_out.add(path)
            self._used.pop(path, None)

    def read_rest(self) -> None:
        """To their ends: no process writes any more."""
        self._follow_awaited()
        for rank, follower in list(self._followers.values()):
            with contextlib.suppress(OSError):
                for payload in follower.read_rest():
                    self.put(payload, rank)


def _is_one_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _is_newer_file(files: JobFiles, path: Path, since: float) -> bool:
    """A regular file (never a FIFO or a terminal: NCCL_DEBUG_FILE=/dev/stderr is usual) that was written
    since then."""
    try:
        found = files.stat(str(path))
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_mtime >= since
