"""How a process ended that is not our child: exit code or signal, reported by the kernel and not by its parent.

`ExitWatch` waits and reads, `parse` understands. Whether an end was a death is the detectors' to say.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from diag.model import Payload, Record
from diag.model.observations import Observation, RankExited, Unparsed
from diag.sources.host.process_tree import PROC, split_stat
from diag.sources.payload import mapping, whole

SOURCE = "exits"

# include/uapi/linux/pidfd.h of Linux 6.15: struct pidfd_info is mask, cgroupid (u64), 11 ids (u32), exit_code
# (s32).
_PIDFD_INFO = struct.Struct("=QQ11Ii")
_PIDFD_INFO_EXIT = 1 << 3
# _IOWR(0xFF, 11, struct pidfd_info)
_PIDFD_GET_INFO = (3 << 30) | (_PIDFD_INFO.size << 16) | (0xFF << 8) | 11

POLL_SECONDS = 0.1  # only where the kernel has no pidfd_open (before 5.3); ours


class ExitWatch:
    """Waits for the end of one process. Make it while the process lives: the exit code of one is lost
    that was reaped before.

    >>> watch = ExitWatch(os.getpid())
    >>> watch.wait(timeout=0) is None  # still alive
    True
    >>> watch.close()
    """

    def __init__(self, pid: int, start_ticks: int = 0, root: Path = PROC) -> None:
        """`start_ticks`, when known, distinguishes a reused pid from the process that was meant. Raises nothing for a
        pid that is gone: then wait() says so at once."""
        self.pid = pid
        self._base = f"{os.fspath(root)}/{pid}"
        self._pidfd: int | None = None
        self._stat: int | None = None
        self._answer: Payload = None
        self._may_read = self._is_permitted()
        try:
            if hasattr(os, "pidfd_open"):
                self._pidfd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno == errno.ESRCH:
                self._answer = self._payload(None, "gone before it was watched")
                return
        # Open after the pidfd: what both show is then the same process, or one of them fails.
        with contextlib.suppress(OSError):
            self._stat = os.open(f"{self._base}/stat", os.O_RDONLY | os.O_CLOEXEC)
        fields = self._read_stat()
        if self._stat is None or (start_ticks and fields and fields[19:20] != [str(start_ticks)]):
            # For a moment the pidfd may still know what /proc forgot.
            status = self._ask_pidfd() if self._stat is None else None
            self._answer = self._payload(status, "gone before it was watched" if status is None else "pidfd")

    def fileno(self) -> int | None:
        """Of a descriptor that is ready once it has ended; None where the kernel has none, or it is known to be gone."""
        return self._pidfd if self._answer is None else None

    def close(self) -> None:
        for fd in (self._pidfd, self._stat):
            if fd is not None:
                os.close(fd)
        self._pidfd = self._stat = None

    def wait(self, timeout: float | None = None) -> Payload | None:
        """Blocks until the process ended, at most `timeout` seconds; None when it has not. May be asked
        again."""
        if self._answer is None:
            if self._pidfd is None:
                self._answer = self._wait_by_stat(timeout)
            else:
                poll = select.poll()
                poll.register(self._pidfd, select.POLLIN)
                if poll.poll(None if timeout is None else timeout * 1000):
                    self._answer = self._read_end()
        return self._answer

    def _read_end(self) -> Payload:
        # Ready means zombie or reaped, and the one can become the other between any two of these lines; once
        # it is reaped /proc is silent for good, and the pidfd (6.15 and later) begins to answer.
        fields = self._read_stat()
        if fields and fields[0] in ("Z", "X"):
            return self._from_zombie(fields)
        status = self._ask_pidfd()
        return self._payload(status, "reaped before it could be read" if status is None else "pidfd")

    def _from_zombie(self, fields: list[str]) -> Payload:
        try:
            status = int(fields[49])  # field 52, Linux 3.5 and later
        except (ValueError, IndexError):
            return self._payload(None, "no exit code in /proc")
        # Who may not trace the process is shown 0 (fs/proc/array.c do_task_stat): then 0 says nothing.
        if status == 0 and not (self._may_read or self._is_permitted()):
            return self._payload(None, "exit code hidden: not our user, no CAP_SYS_PTRACE")
        return self._payload(status, "zombie")

    def _wait_by_stat(self, timeout: float | None) -> Payload | None:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            fields = self._read_stat()
            if fields is None:
                return self._payload(None, "reaped before it could be read")
            if fields[:1] in (["Z"], ["X"]):
                return self._from_zombie(fields)
            left = POLL_SECONDS if end is None else min(POLL_SECONDS, end - time.monotonic())
            if left <= 0:
                return None
            time.sleep(left)  # this kernel has nothing to wait on

    def _read_stat(self) -> list[str] | None:
        if self._stat is None:
            return None
        try:
            raw = os.pread(self._stat, 4096, 0)
            return split_stat(raw.decode(errors="replace"))[2]
        except (OSError, ValueError):  # ESRCH: reaped
            return None

    def _ask_pidfd(self) -> int | None:
        """The wait status that a reaped process left behind in its pidfd; None on kernels before 6.15."""
        if self._pidfd is None:
            return None
        info = bytearray(_PIDFD_INFO.size)
        struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
        try:
            fcntl.ioctl(self._pidfd, _PIDFD_GET_INFO, info)
        except OSError:  # ENOTTY before 6.13, ESRCH before 6.15
            return None
        values = _PIDFD_INFO.unpack(info)
        return int(values[-1]) if values[0] & _PIDFD_INFO_EXIT else None

    def _is_permitted(self) -> bool:
        # The kernel asks the same of this link as of field 52, and a zombie still has it.
        try:
            os.readlink(f"{self._base}/ns/user")
        except OSError:
            return False
        return True

    def _payload(self, status: int | None, how: str) -> Payload:
        return {"pid": self.pid, "status": status, "how": how}


def how_ended(status: int) -> tuple[int | None, int | None]:
    """Exit code and signal, one of them, of the wait status of wait(2).

    >>> how_ended(0x0E), how_ended(0x8B), how_ended(0x300)
    ((None, 14), (None, 11), (3, None))
    """
    signal = status & 0x7F or None  # the bit above says that a core was dumped
    return (None, signal) if signal else (status >> 8 & 0xFF, None)


def parse(record: Record) -> Iterator[Observation]:
    """One RankExited; `status` is the raw wait status of wait(2). What a log reported has `ended` and `last` too."""
    payload = record.payload
    if (pid := whole(mapping(payload).get("pid"))) is None:
        yield Unparsed(record.rank, SOURCE, "no pid", str(payload)[:200])
        return
    status = payload.get("status")
    exit_code = signal = None
    if isinstance(status, int) and 0 <= status <= 0xFFFF:
        exit_code, signal = how_ended(status)
    elif status is not None:
        yield Unparsed(record.rank, SOURCE, "no wait status", str(status)[:200])
    ended, last = payload.get("ended"), payload.get("last")
    yield RankExited(
        record.rank, pid, exit_code, signal, str(payload.get("how", ""))[:200],
        float(ended) if isinstance(ended, (int, float)) and 0 <= ended <= record.at else None,
        tuple(str(line) for line in last[-200:]) if isinstance(last, list) else (),
    )  # fmt: skip
