"""The files that CMD writes its output to, so that the job outlives diag: bounded on disk, with room kept
ahead.

`relay` follows them. A job that writes to a file cannot be blocked by a slow terminal nor killed by a closed
pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from diag.text.units import format_bytes

KEEP_BYTES = 1 << 30  # ours: days of a talkative job, and 1 % of a usual node disk
RESERVE_BYTES = 16 << 20  # ours: minutes of a job's output, to survive while someone frees a full disk
CHUNK = 256 << 10  # measured: larger reads relay no faster

_BLOCK = 4096
_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h
_IN_MODIFY = 2  # linux/inotify.h

Report = Callable[[str], None]


class OutputFileError(Exception):
    """No file for CMD's output can be had here; the text says why. Give CMD diag's own stdout instead."""


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """fallocate(2) with a mode, which os.posix_fallocate does not take."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if call(ctypes.c_int(fd), ctypes.c_int(mode), ctypes.c_int64(offset), ctypes.c_int64(length)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class Cursor:
    """A place in a lane, and what has been written after it."""

    def __init__(self, lane: OutputFile) -> None:
        self._lane = lane
        self.offset = 0  # in the file

    def read_new(self, limit: int = CHUNK) -> bytes:
        """The next bytes, at most `limit`; b"" when there are none yet. Moves on over them."""
        size = self._lane.size()
        if size < self.offset:
            self._start_over(size)
        if size <= self.offset:
            return b""
        try:
            data = os.pread(self._lane.fd, limit, self.offset)
        except MemoryError:  # of a small ulimit -v: a little at a time, as long as there is that
            data = os.pread(self._lane.fd, min(limit, _BLOCK), self.offset)
        self.offset += len(data)
        return data

    def skip(self) -> int:
        """Go to the end without reading; how many bytes that was."""
        size = self._lane.size()
        if size < self.offset:
            self._start_over(size)
        skipped, self.offset = size - self.offset, size
        return skipped

    def _start_over(self, size: int) -> None:
        self._lane.report_once(
            "cut",
            f"{self._lane.path} was cut from {self.offset} to {size} bytes by another process; output "
            "not yet shown may be lost; diag bounds this file itself, it needs no log rotation",
        )
        try:  # after `> file` that is 0; after a cut inside a punched file it jumps over the hole
            self.offset = os.lseek(self._lane.fd, 0, os.SEEK_DATA)
        except OSError:  # nothing but hole
            self.offset = size


class OutputFile:
    """One output file of CMD. Make it with `open_output_file`."""

    def __init__(
        self, path: Path, fd: int, write_fd: int, *, keep_bytes: int, reserve_bytes: int, report: Report
    ) -> None:
        self.path = path
        self.fd = fd
        self.write_fd = write_fd  # for the child; close_write() once it runs
        self.relayed = 0  # set by the relay: what may be punched
        self._keep = keep_bytes
        self._reserve = reserve_bytes
        self._report = report
        self.maintain_bytes = max(64 << 10, reserve_bytes // 4)  # how much new output wants a maintain()
        self._reported: set[str] = set()
        self._punched = 0
        self._reserved = 0
        self._last_size = 0

    def size(self) -> int:
        return os.lseek(self.fd, 0, os.SEEK_END)  # a third of the cost of fstat; all reads are pread

    def cursor(self) -> Cursor:
        return Cursor(self)

    def close_write(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def open_write(self) -> None:
        """For another child, which appends to the same file. Raises OSError."""
        if self.write_fd < 0:
            self.write_fd = _above_stdio(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW))

    def maintain(self) -> None:
        """Keep the bound behind and the reserve ahead. Call it about once a second, and each
        `maintain_bytes`."""
        size = self.size()
        if size < self._last_size:  # cut by someone: the reserve went with it, and holes may hold data again
            self._punched = self._reserved = 0
            self.relayed = min(self.relayed, size)
        self._last_size = size
        if os.fstat(self.fd).st_nlink == 0:
            self.report_once("deleted", f"{self.path} was deleted; its output is still shown, but not kept")
        if size - self.relayed > self._keep:
            self.report_once(
                "behind",
                f"the reader of diag's output is {format_bytes(size - self.relayed)} behind the job; "
                f"{self.path} grows until it catches up",
            )
        self._punch(size - self._keep, step=max(64 << 10, min(16 << 20, self._keep // 8)))
        self._make_room(size)

    def close(self) -> None:
        """Give back the unused reserve. What processes of the job still write stays possible."""
        self.close_write()
        size = self.size()
        os.close(self.fd)
        if self._reserved > size:
            with contextlib.suppress(OSError):  # deleted
                give_back_reserve(self.path)

    def _make_room(self, size: int) -> None:
        if "no reserve" in self._reported or self._reserved - size >= self._reserve * 3 // 4:
            return
        want, keep = self._reserve, self._keep
        while want >= _BLOCK:
            try:
                fallocate(self.fd, _KEEP_SIZE, size, want)
                self._reserved = size + want
                return
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    self.report_once(
                        "no reserve",
                        f"{self.path.parent} cannot reserve disk space "
                        f"({error.strerror}); if the disk fills up, the job's own writes can fail",
                    )
                    return
                if error.errno not in _FULL:
                    self.report_once(
                        "reserve",
                        f"cannot reserve disk space in {self.path.parent}: {error.strerror}",
                    )
                    return
            self.report_once(
                "full",
                f"the disk of {self.path} is full; so that the job can keep writing, older output is dropped "
                "from this file; hint: free space, or put the run directory elsewhere",
            )
            if keep > 0:  # first give up older output, then be content with a smaller reserve
                keep = keep // 2 if keep > 1 << 20 else 0
                self._punch(size - keep, step=_BLOCK)
            else:
                want //= 2

    def _punch(self, upto: int, step: int) -> None:
        """Free the disk blocks of the relayed part before `upto`; offsets stay as they are, the hole reads as
        zeros."""
        upto = min(upto, self.relayed) // _BLOCK * _BLOCK
        if "no punch" in self._reported or upto - self._punched < step:
            return
        try:
            fallocate(self.fd, _PUNCH_HOLE | _KEEP_SIZE, self._punched, upto - self._punched)
            self._punched = upto
        except OSError as error:
            self.report_once(
                "no punch",
                f"{self.path} cannot be bounded on this file system ({error.strerror}): "
                "it grows with the job's output",
            )

    def report_once(self, what: str, text: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self._report(text)


class Watch:
    """Reports when a lane is written to (inotify), so that a silent job costs no looking.

    Where it cannot (instances used up, a sandbox without it), `works` is False and the caller has to look now
    and then.
    """

    def __init__(self, lanes: Sequence[OutputFile]) -> None:
        self._wake = os.eventfd(0)  # close-on-exec and blocking; read never
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self.works = self._inotify >= 0 and all(
            libc.inotify_add_watch(self._inotify, b"/proc/self/fd/%d" % lane.fd, _IN_MODIFY) >= 0
            for lane in lanes
        )
        if self.works:
            self._poll.register(self._inotify, select.POLLIN)

    def wait(self, timeout: float) -> bool:
        """Wait for a write; whether there was one, or `wake`."""
        ready = self._poll.poll(timeout * 1000)
        if any(fd == self._inotify for fd, _ in ready):
            os.read(self._inotify, 65536)
        return bool(ready)

    def give_up(self) -> None:
        """It did not report a write: do without."""
        self.works = False
        self._poll.unregister(self._inotify)

    def wake(self) -> None:
        """End this and every later wait at once."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        for fd in (self._wake, self._inotify):
            if fd >= 0:
                os.close(fd)
        self._wake = self._inotify = -1


def open_output_file(
    path: Path,
    *,
    keep_bytes: int = KEEP_BYTES,
    reserve_bytes: int = RESERVE_BYTES,
    report: Report = lambda text: None,
) -> OutputFile:
    """Make the file and its first reserve; OutputFileError where it cannot be made or has no space."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY:
        # Alone, a terminal or pipe has no such limit; in a file SIGXFSZ would kill the job.
        raise OutputFileError(
            f"cannot keep CMD's output in {path}: files are limited to {limit} bytes (ulimit -f)"
        )
    fd = write_fd = -1
    try:
        # Its own file in each run, never one that is there; 0600, because a job's output can hold secrets.
        fd = _above_stdio(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        # O_APPEND: the ranks share this file
        write_fd = _above_stdio(os.open(path, os.O_WRONLY | os.O_APPEND))
        lane = OutputFile(
            path, fd, write_fd, keep_bytes=keep_bytes, reserve_bytes=reserve_bytes, report=report
        )
        try:
            fallocate(fd, _KEEP_SIZE, 0, max(reserve_bytes, _BLOCK))
            lane._reserved = reserve_bytes
        except OSError as error:
            if error.errno in _FULL:
                raise
            lane._make_room(0)  # says what is not possible
    except OSError as error:
        for opened in (fd, write_fd):
            if opened >= 0:
                os.close(opened)
        if fd >= 0:
            path.unlink(missing_ok=True)
        raise OutputFileError(f"cannot keep CMD's output in {path}: {error.strerror}") from error
    return lane


def give_back_reserve(path: Path) -> None:
    """Free what is allocated behind the file's end, unless a process has it open for writing: cutting would
    lose what a process left behind by the job appends meanwhile."""
    found = path.lstat()
    if stat.S_ISREG(found.st_mode) and found.st_blocks * 512 > found.st_size + _BLOCK and has_no_writer(path):
        with contextlib.suppress(OSError):
            os.truncate(path, path.stat().st_size)


def has_no_writer(path: Path) -> bool:
    """Whether no process has the file open for writing, as the kernel says: only then it grants a read lease.
    False where it cannot say (a network file system)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # who opens it in this moment makes a signal: not SIGIO, which ends us
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def read_output_file(path: Path) -> OutputFile:
    """The same file in another process, which only follows it. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    return OutputFile(path, _above_stdio(fd), -1, keep_bytes=0, reserve_bytes=0, report=lambda text: None)


def same_file(first: int = 1, second: int = 2) -> bool:
    """Whether stdout and stderr go to one place, so that one lane must keep their order."""
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return False


def _above_stdio(fd: int) -> int:
    """A descriptor above 2, whatever the caller had closed: the child's 0-2 are set by dup2."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved
