"""What no input may do, whatever is in it: run or write anything, ask other machines, take more than seconds
or much memory."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["LONGEST_SECONDS", "MOST_BYTES", "Forbidden", "Guard", "place_of"]

LONGEST_SECONDS = 2.0  # of processor time for an input of at most 64 KiB
MOST_BYTES = 512 << 20  # that the peak of memory may grow by one input

_NEVER = frozenset(
    {
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.fork",
        "os.forkpty",
        "subprocess.Popen",
        "pty.spawn",
        "os.kill",
        "os.chmod",
        "os.chown",
        "os.setxattr",
        "pickle.find_class",
        "ctypes.dlopen",
        "shutil.unpack_archive",
        "os.killpg",
    }
)
_PATHS = frozenset(
    {
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.truncate",
        "os.utime",
        "shutil.move",
        "shutil.rmtree",
    }
)
# of these the second argument is what is made
_SECOND = frozenset({"os.symlink", "os.link", "os.rename", "shutil.copyfile"})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Forbidden(BaseException):
    """Not an Exception: nothing in diag may catch it by accident."""


class Guard:
    """An audit hook of this process, for good; it looks while `watching`. Writing below `home` is fine, and
    to no file."""

    def __init__(self, home: Path) -> None:
        self._home = os.path.realpath(home)
        self._on = False
        self.done: list[str] = []  # what was tried that is forbidden, also where the exception was caught
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Raises Forbidden, TimeoutError and MemoryError for an input that did what none may."""
        self.done.clear()
        peak, began = _peak(), time.process_time()
        self._on = True
        try:
            yield
        finally:
            self._on = False
        if self.done:
            raise Forbidden("; ".join(self.done[:3]))
        if time.process_time() - began > LONGEST_SECONDS:
            raise TimeoutError(f"{time.process_time() - began:.1f} s of processor time")
        if _peak() - peak > MOST_BYTES:
            raise MemoryError(f"the peak of memory grew by {(_peak() - peak) >> 20} MiB")

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if not self._on:
            return
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & _WRITES and not self._may(path):
                self._stop(f"open {path!r} to write")
        elif (
            (event in _NEVER and args != (None,))  # ctypes.CDLL(None) is the C library that is there already
            or (event in _PATHS and not self._may(_whole(args), itself=True))
            or (event in _SECOND and not self._may(args[1]))
            or (event == "socket.getaddrinfo" and not _is_near(args))
        ):
            self._stop(f"{event} {args!r}"[:200])
        elif event == "socket.connect" and not _is_near(args[1]):
            self._stop(f"{event} {args[1]!r}"[:200])

    def _may(self, path: object, *, itself: bool = False) -> bool:
        """`itself`: the entry of its folder, also where that is a link."""
        if isinstance(path, int):  # a descriptor that is open already
            return True
        given = Path(os.fspath(path))  # type: ignore[call-overload]
        place = f"{os.path.realpath(given.parent)}/{given.name}" if itself else os.path.realpath(given)
        return place == "/dev/null" or place.startswith((self._home + os.sep, "/dev/pts/"))

    def _stop(self, what: str) -> None:
        self.done.append(what)
        raise Forbidden(what)


def _whole(args: tuple[object, ...]) -> object:
    """The path, also where it is told relative to a folder that is open."""
    if (
        isinstance(args[-1], int)
        and args[-1] >= 0
        and isinstance(args[0], str)
        and len(args) > 1
        and not args[0].startswith(os.sep)
    ):
        return f"/proc/self/fd/{args[-1]}/{args[0]}"
    return args[0]


def _is_near(address: object) -> bool:
    return not isinstance(address, tuple) or address[0] in ("127.0.0.1", "::1", "localhost")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def place_of(error: BaseException) -> str:
    """Kind and innermost frame of diag: two inputs with the same are one fault."""
    frame, found = error.__traceback__, ""
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if f"{os.sep}diag{os.sep}" in name:
            found = f"{name.rpartition(f'{os.sep}diag{os.sep}')[2]}:{frame.tb_lineno}"
        frame = frame.tb_next
    return f"{type(error).__name__} at {found or 'no line of diag'}"
