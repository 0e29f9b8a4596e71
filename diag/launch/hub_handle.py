"""The carrier's hold on the hub's process: starts it, hears it, and knows how it ended."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import time
from dataclasses import dataclass

from diag.launch.isolated import argv
from diag.launch.signals import FORWARDED
from diag.launch.wire import Wire, pair

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WIRE_FD = 3  # in the hub's process; 0 is the file of its task, 1 and 2 that of its stderr
_STDERR_BYTES = 4096


@dataclass(eq=False, slots=True)
class HubHandle:
    """A hub's process. Make it with `start`."""

    pid: int
    wire: Wire
    _stderr: int  # a descriptor; -1 where there is no file

    @classmethod
    def start(cls, task: dict[str, Any]) -> HubHandle:
        """`task` is what the hub's process reads from its stdin, see `hub_process`. Raises OSError where
        there is no process, descriptor or memory left.

        In a session of its own: Ctrl-C, a hangup and kills of the group are for the job. The signals that are
        forwarded stay blocked in it, as one that walks over a cgroup's pids (scancel, systemd) must not end
        it before CMD's end is judged.
        """
        ours, theirs = pair()
        stderr = _anonymous_file()
        moved = given = -1
        try:
            moved = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)  # above what is set below
            given = _file_of(json.dumps(task).encode())
            out = (
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
                if stderr < 0
                else (os.POSIX_SPAWN_DUP2, stderr, 1)
            )
            command = argv("diag.agent.hub_process")
            pid = os.posix_spawn(
                command[0], command, os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, given, 0), out, (os.POSIX_SPAWN_DUP2, 1, 2),
                              (os.POSIX_SPAWN_DUP2, moved, WIRE_FD)],
                setsid=True, setsigmask=FORWARDED, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )  # fmt: skip
        except BaseException:
            ours.close()
            if stderr >= 0:
                os.close(stderr)
            raise
        finally:
            theirs.close()
            for fd in (moved, given):
                if fd >= 0:
                    os.close(fd)
        return cls(pid, ours, stderr)

    def hear(self, seconds: float, heard: Callable[[dict[str, Any]], None], also: int = -1) -> None:
        """Wait until it sends something, it ends, or descriptor `also` is ready, and pass on its messages."""
        poll = select.poll()
        if not self.wire.gone:
            poll.register(self.wire.fileno(), select.POLLIN)
        if also >= 0:
            poll.register(also, select.POLLIN)
        poll.poll(seconds * 1000)
        for message in self.wire.receive():
            heard(message)

    def end(self, seconds: float = 0.0) -> str:
        """Let it end, or end it after `seconds`; returns how it ended where that was no ordinary end, else
        nothing."""
        deadline = time.monotonic() + seconds
        status = None
        try:
            while (found := os.waitpid(self.pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.005)
            if found[0] == 0:
                os.kill(self.pid, signal.SIGKILL)
                found = os.waitpid(self.pid, 0)
            else:
                status = os.waitstatus_to_exitcode(found[1])
        except (ProcessLookupError, ChildProcessError):  # SIGCHLD is ignored: no exit status is kept
            pass
        self.wire.close()
        lines = self._read_stderr()
        if not status:
            return ""
        # Of a Python error the last line is its message; of a library that aborted the one before may be.
        words = "; ".join(lines[-2:] if status < 0 else lines[-1:])
        how = _signal_name(-status) if status < 0 else f"exit code {status}"
        return f"{how}: {words}" if words else how

    def _read_stderr(self) -> list[str]:
        """The last lines of its stderr."""
        if self._stderr < 0:
            return []
        try:
            size = os.fstat(self._stderr).st_size
            text = os.pread(self._stderr, _STDERR_BYTES, max(0, size - _STDERR_BYTES)).decode(
                "utf-8", "replace"
            )
        finally:
            os.close(self._stderr)
            self._stderr = -1
        return [line.strip() for line in text.splitlines() if line.strip()]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _anonymous_file() -> int:
    try:
        return os.memfd_create("diag-hub")
    except (OSError, AttributeError):  # a seccomp profile, a C library without it
        return -1


def _file_of(data: bytes) -> int:
    """A descriptor from which this can be read: a pipe, or a file where that does not take it at once (a long
    command line)."""
    if len(data) <= select.PIPE_BUF:
        fd, end = os.pipe()
        os.write(end, data)
        os.close(end)
        return fd
    fd = _anonymous_file()
    if fd < 0:
        import tempfile

        fd, name = tempfile.mkstemp(prefix="diag-")
        os.unlink(name)
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
