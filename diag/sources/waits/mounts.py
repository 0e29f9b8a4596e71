"""Whether a mount answers: a child process calls statfs on it, since a call to a server that is gone may never return, not
even for SIGKILL."""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_ANSWER_SECONDS = 5.0  # a loaded server may take one or two
_SOON_SECONDS = 0.2  # that a reading waits for answers
_LONGEST_SECONDS = 300  # after which a child ends itself, where the kernel lets it
_AT_ONCE = 4  # children that have not come back: no more are sent out
# statfs is answered from memory there: that it is says nothing about the disk.
_WITHOUT_SERVER = ("overlay", "btrfs", "tmpfs", "ramfs", "zfs", "bcachefs")
_REFUSED = 255


@dataclass(slots=True)
class _Asked:
    child: int
    at: float
    answered: bool | None = None


class Mounts:
    """Children that are lost are known from reading to reading: their mounts are not asked again meanwhile."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._asked: dict[tuple[str, str], _Asked] = {}

    def ask(self, pid: int, mount: dict[str, Any]) -> None:
        """Once a reading for each mount that has a server behind it."""
        key = self._key(pid, mount)
        if key is None:
            return
        known = self._asked.get(key)
        if known is not None and not self._is_back(known):
            return
        if sum(not self._is_back(one) for one in self._asked.values()) < _AT_ONCE:
            with suppress(OSError):  # no more processes allowed: not asked
                path = f"{self._proc}/{pid}/root{mount['point']}"
                self._asked[key] = _Asked(_child(path), time.monotonic())

    def answers(self, pid: int, mount: dict[str, Any]) -> dict[str, Any]:
        """`answers`: True; False where it has not for 5 s; absent where it was not asked, or is not late yet."""
        key = self._key(pid, mount)
        known = self._asked.get(key) if key is not None else None
        if known is None:
            return {}
        until = known.at + _SOON_SECONDS
        while not self._is_back(known) and time.monotonic() < until:
            time.sleep(0.01)
        seconds = time.monotonic() - known.at
        if self._is_back(known):
            return {} if known.answered is None else {"answers": known.answered}
        return (
            {"answers": False, "unanswered_seconds": round(seconds, 1)} if seconds >= _ANSWER_SECONDS else {}
        )

    def _key(self, pid: int, mount: dict[str, Any]) -> tuple[str, str] | None:
        if not mount.get("device", "").startswith("0:") or mount["type"] in _WITHOUT_SERVER:
            return None
        try:
            return os.readlink(f"{self._proc}/{pid}/ns/mnt"), mount["point"]
        except OSError:
            return None

    @staticmethod
    def _is_back(asked: _Asked) -> bool:
        if not asked.child:
            return True
        try:
            child, status = os.waitpid(asked.child, os.WNOHANG)
        except ChildProcessError:
            child, status = asked.child, _REFUSED << 8
        if not child:
            return False
        asked.child = 0
        if os.WIFSIGNALED(status):
            asked.answered = False  # its own alarm
        elif os.WEXITSTATUS(status) != _REFUSED:
            asked.answered = True  # an error too is an answer
        return True


def _child(path: str) -> int:
    """Without a new program: an interpreter on the mount that does not answer could not even be started. It keeps
    nothing open, so that nobody waits for the end of a file because of it."""
    child = os.fork()
    if child:
        return child
    status = _REFUSED
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.alarm(_LONGEST_SECONDS)
        os.closerange(0, 1 + max(map(int, os.listdir("/proc/self/fd"))))
        os.statvfs(path)
        status = 0
    except OSError as error:
        status = _REFUSED if error.errno in (errno.EACCES, errno.EPERM, errno.ENOENT) else 0
    finally:
        os._exit(status)
