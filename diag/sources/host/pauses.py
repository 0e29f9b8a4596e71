"""When diag itself pauses a process, for its native frames: told to every diag of this user on this machine.

A file of the process grows by a byte as a pause begins, and by one as it ends. Where it has grown between two readings of
the process, these two hold a pause: less CPU, a wake-up more.
"""

from __future__ import annotations

import contextlib
import os
import stat

from diag.launch.runs import is_alive

# Not $TMPDIR, which two diags of one job may have unlike.
_PLACE = "/tmp"


class Pauses:
    """Of one process, which its start tells from a later one of its pid."""

    def __init__(self, pid: int, start_ticks: int, place: str = _PLACE) -> None:
        self._own = 0
        self._folder = os.path.join(place, f"diag-{os.getuid()}", "pauses")
        self._path = os.path.join(self._folder, f"{pid}-{start_ticks}")

    @property
    def marks(self) -> int:
        """Grows as a pause begins and as it ends."""
        try:
            found = os.lstat(self._path)
        except OSError:  # nobody else has paused it
            return self._own
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
        return self._own + (found.st_size if ours else 0)

    def mark(self) -> None:
        """Where the others cannot be told, this diag knows it all the same."""
        self._own += 1
        with contextlib.suppress(OSError):
            if not all(map(_is_own, (os.path.dirname(self._folder), self._folder))):  # noqa: PTH120 - text
                return
            self._forget_ended()
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(self._path, flags, 0o600)
            try:
                os.write(fd, b".")
            finally:
                os.close(fd)

    def forget(self) -> None:
        """The process has ended."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _forget_ended(self) -> None:
        """Of processes whose diag was killed before it could."""
        for name in os.listdir(self._folder):
            pid, _, ticks = name.partition("-")
            if pid.isdecimal() and ticks.isdecimal() and not is_alive(int(pid), int(ticks)):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self._folder, name))


def _is_own(folder: str) -> bool:
    """Whether it is a folder of this user, made where there is none: anybody can make one of that name in /tmp. Raises
    OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)  # noqa: PTH102 - text
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
