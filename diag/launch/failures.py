"""What fails in diag is reported in a line, and CMD goes on: the boundary around everything that is not CMD
itself."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from typing import TypeVar

from diag.text.errors import is_replaced, shortage

T = TypeVar("T")

_NO_ROOM_BYTES = 16 << 20  # ours: less than a module with a library takes


def guarded(say: Callable[[str], None], what: str, work: Callable[[], T]) -> T | None:
    """The result of `work`, or None after a line that says what failed."""
    try:
        return work()
    except Exception as error:
        say(in_a_line(what, error))
        return None


def threads_report_to(say: Callable[[str], None]) -> None:
    """A thread of diag that ends by an error is reported in one line of diag's, not by a traceback into the job's
    output."""

    def failed(what: threading.ExceptHookArgs) -> None:
        if what.exc_value is not None and what.exc_type is not SystemExit:
            name = what.thread.name if what.thread is not None else "?"
            say(in_a_line(f"its part {name!r} ends here", what.exc_value))

    threading.excepthook = failed


def in_a_line(what: str, error: BaseException) -> str:
    """The line; with the end of the traceback only where a person has to fix diag itself.

    >>> in_a_line("the page cannot be served", MemoryError())
    'diag: the page cannot be served: out of memory; CMD is not touched'
    """
    if lacking := shortage(error) or ("memory" if _is_at_its_limit() else ""):
        return f"diag: {what}: out of {lacking}; CMD is not touched"
    if is_replaced(error):
        return f"diag: {what}: diag was removed or replaced while it ran ({error}); CMD is not touched"
    import traceback

    end = "".join(traceback.format_exception(error)[-3:]).rstrip()
    return f"diag: {what}: {type(error).__name__}: {error}; CMD is not touched. Please report this:\n{end}"


def _is_at_its_limit() -> bool:
    """Whether the process has used up its address space (ulimit -v): Python then fails in ways that name no
    memory."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    try:
        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return False
    return limit != resource.RLIM_INFINITY and limit - used < _NO_ROOM_BYTES
