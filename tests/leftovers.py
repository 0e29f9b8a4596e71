"""What a test or a measurement started and did not end, by a mark in its environment. A walk over children
would not find it: ranks have sessions of their own, and what a killed rank had started (its save's writers, a
manager) is adopted by init."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

__all__ = ["described", "end_all", "started"]

_AT_ONCE_SECONDS = 2.0
_EXECVE_SECONDS = 0.5


def started(variable: str, mark: str) -> list[psutil.Process]:
    """Processes but our own that inherited `variable=mark`; one that has ended and is not yet waited for is
    none."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and _environment(process).get(variable) == mark:
                found.append(process)
    return found


def _environment(process: psutil.Process) -> dict[str, str]:
    """Between execve's new memory and the words it gets, /proc shows an environment of nothing: such a process
    is asked again. Who has none at all (`env -i`) is believed after a while, a thread of the kernel, which has
    no program, at once."""
    deadline = time.monotonic() + _EXECVE_SECONDS
    while not (found := process.environ()) and process.exe() and time.monotonic() < deadline:
        time.sleep(0.001)
    return found


def end_all(variable: str, mark: str, seconds: float = 10.0) -> None:
    """SIGKILL until nothing with the mark is left: who is killed late may have started another. Raises
    AssertionError."""
    deadline = time.monotonic() + seconds
    while left := started(variable, mark):
        assert time.monotonic() < deadline, "these do not die:\n" + "\n".join(map(described, left))
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=_AT_ONCE_SECONDS)


def described(process: psutil.Process) -> str:
    """Pid, parent, command line, and the test that ran when it was started."""
    try:
        test = process.environ().get("PYTEST_CURRENT_TEST", "no test")
        return f"{process.pid} (parent {process.ppid()}): {' '.join(process.cmdline())[:500]}\n    of {test}"
    except psutil.Error:
        return f"{process.pid}, which has ended meanwhile"
