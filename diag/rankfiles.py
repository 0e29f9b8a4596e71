"""The files that ranks print to, beside what the relay reads: found by the finder, and NCCL's own in the run directory."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from diag.sources.output import FileFollower

__all__ = ["RankFiles"]

# NCCL makes its file with the first communicator, which a model that loads may hold up for long.
_AWAIT_SECONDS = 4 * 3600.0
_MOST_FILES, _OLD_SECONDS = 256, 600.0  # three a rank of the largest nodes; beyond, those that nobody has used for so long
_THROUGH_ROOT = re.compile(r"/proc/\d+/root/", re.ASCII)


class RankFiles:
    """Follows each file once. `put` takes a payload of lines and whose they are, `lost` a file that cannot be read any more."""

    def __init__(
        self, put: Callable[[dict[str, Any] | None, int | None], None], lost: Callable[[Path, OSError], None]
    ) -> None:
        self._put = put
        self._lost = lost
        self._followers: dict[Path, tuple[int | None, FileFollower]] = {}
        self._used: dict[Path, float] = {}  # when each was last named by a process, or grew
        self._left_out: set[Path] = set()
        self._awaited: list[tuple[tuple[Path, ...], int | None, float, float]] = []  # places, rank, not before, until

    def leave_out(self, paths: Iterable[Path]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                self._left_out.add(path.resolve())

    def follow(self, path: Path, stream: str, rank: int | None, *, from_end: bool = False) -> None:
        real = self._known_as(path)
        if real in self._left_out:
            return
        self._used[real] = time.monotonic()
        if real in self._followers:
            other, follower = self._followers[real]
            if other != rank:
                self._followers[real] = (None, follower)  # several ranks print to it: the lines are nobody's
            return
        with contextlib.suppress(OSError):
            self._followers[real] = (rank, FileFollower(real, stream, from_end=from_end))

    def _known_as(self, path: Path) -> Path:
        """The name that the file is followed by. What is seen through another process's root keeps that name, as links in it lead
        elsewhere, unless another rank's root shows the same file."""
        if not _THROUGH_ROOT.match(str(path)):
            return path.resolve()
        return next((known for known in self._followers if _is_one_file(known, path)), path)

    def await_nccl(self, named: str, pid: int, rank: int, *, host: str = "") -> None:
        """Follow the NCCL_DEBUG_FILE that a rank was given, once NCCL has made it.

        NCCL (src/debug.cc) fills in %h (the host's name up to the first dot), %p and %%, and begins the file anew: what was
        there before the rank was started is another run's.
        """
        try:
            began = psutil.Process(pid).create_time()
            folder = Path(os.readlink(f"/proc/{pid}/cwd"))
        except (psutil.Error, OSError):
            return
        short = (host or socket.gethostname()).partition(".")[0]
        filled = {"%h": short, "%p": str(pid), "%%": "%"}
        path = folder / re.sub("%[hp%]", lambda match: filled[match[0]], named)
        inside = Path(f"/proc/{pid}/root{path}")  # where the rank has another file system than diag
        self._awaited.append(((path, inside), rank, began - 1.0, time.monotonic() + _AWAIT_SECONDS))

    def _follow_awaited(self) -> None:
        still = []
        for waiting in self._awaited:
            places, rank, began, until = waiting
            made = next((place for place in places if _is_newer_file(place, began)), None)
            if made is not None:
                self.follow(made, f"nccl:{made.name}", rank)
            elif time.monotonic() < until:
                still.append(waiting)
        self._awaited = still

    def read_new(self, home: Path | None) -> None:
        """What came since last time; files that NCCL made in the run directory `home` are followed from now on."""
        if home is not None:
            for path in (home / "nccl").glob("*.log"):
                if path not in self._followers and path not in self._left_out:
                    self.follow(path, f"nccl:{path.name}", None)
        self._follow_awaited()
        for path, (rank, follower) in list(self._followers.items()):
            try:
                payload = follower.read_new()
            except OSError as error:
                del self._followers[path]
                self._lost(path, error)
                continue
            if payload is not None:
                self._used[path] = time.monotonic()
            self._put(payload, rank)
        self._leave_old()

    def _leave_old(self) -> None:
        """Each attempt of an elastic job has files of its own: those of attempts long ago are read to their ends and closed, or a
        job that is restarted for weeks leaves diag without file descriptors."""
        if len(self._followers) <= _MOST_FILES:
            return
        by_use = sorted(self._followers, key=lambda path: self._used.get(path, 0.0))
        for path in by_use[:-_MOST_FILES]:
            if time.monotonic() - self._used.get(path, 0.0) < _OLD_SECONDS:
                break
            rank, follower = self._followers.pop(path)
            with contextlib.suppress(OSError):
                for payload in follower.read_rest():
                    self._put(payload, rank)
            follower.close()
            self._left_out.add(path)
            self._used.pop(path, None)

    def read_rest(self) -> None:
        """To their ends: nobody writes any more."""
        self._follow_awaited()
        for rank, follower in list(self._followers.values()):
            with contextlib.suppress(OSError):
                for payload in follower.read_rest():
                    self._put(payload, rank)


def _is_one_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _is_newer_file(path: Path, since: float) -> bool:
    """A regular file (never a FIFO or a terminal: NCCL_DEBUG_FILE=/dev/stderr is usual) that was written since then."""
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_mtime >= since
