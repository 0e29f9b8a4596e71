"""Errors that a person reads: what happened, what it means, and a hint what to do."""

from __future__ import annotations

import errno

_LACKING = {
    errno.ENOMEM: "memory",
    errno.EMFILE: "file descriptors (ulimit -n)",
    errno.ENFILE: "file descriptors of the machine",
    errno.EAGAIN: "processes (ulimit -u, pids.max)",
    errno.ENOSPC: "disk space",
    errno.EDQUOT: "disk space of this user",
}


class DiagError(Exception):
    """Printed as `error: ...` and, where there is one, `hint: ...`. `exit_code` is diag's own (contracts: 1
    or 2)."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code


class Busy(DiagError):
    """More is waiting to be taken in than soon can be: whoever asks comes again later."""


class OtherJob(DiagError):
    """A node of another job, which has the same token, reported to this one's hub."""


_HOME = __file__.rpartition("/text/")[0] + "/"
_NO_ROOM = "failed to map segment from shared object"


class SourceUnavailable(Exception):
    """A source cannot read now: `reason` and `remedy` as `not checked` shows them."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def is_replaced(error: BaseException) -> bool:
    """Whether diag's own package was removed or replaced while it ran: a module of it is gone."""
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0] == "diag"
    gone = str(error.filename or "") if isinstance(error, FileNotFoundError) else ""
    return gone.startswith(_HOME) and gone.endswith(".py")


def shortage(error: BaseException) -> str:
    """What this user or machine has no more of, when that is all that went wrong; empty for every other
    error.

    >>> shortage(OSError(errno.EMFILE, "Too many open files")), shortage(ValueError("no"))
    ('file descriptors (ulimit -n)', '')
    """
    # Of a library that is imported (glibc 2.39): "_re2.cpython-312-x86_64-linux-gnu.so: failed to map segment
    # from shared object"
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and _NO_ROOM in str(error)):
        return "memory"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "threads (ulimit -u, pids.max)"
    return _LACKING.get(error.errno or 0, "") if isinstance(error, OSError) else ""
