"""Commands of the virtual machine, and waiting for conditions."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any


def sh(script: str) -> str:
    """What a shell script prints. Raises RuntimeError with its words when a command of it fails."""
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{script!r} ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}"
        )
    return done.stdout


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true value of a condition. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what} not within {seconds:g} s")
        time.sleep(0.2)


def as_user(user: int, memlock: int | None) -> list[str]:
    """What is put before a command so that it runs as this user (0: as whom it is started), with this limit
    of locked memory."""
    limit = "unlimited" if memlock is None else str(memlock)
    words = ["prlimit", f"--memlock={limit}:{limit}"]
    return words if user == 0 else [*words, "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
