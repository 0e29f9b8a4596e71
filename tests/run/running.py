"""Helpers of these tests: the driver of this folder, a CMD that counts its signals, and waiting for a
condition."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Notes each signal that it gets in a file, and ends on SIGALRM, which diag does not forward.
COUNTER = """
import os, signal, sys
got = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(signo, frame):
    os.write(got, (signal.Signals(signo).name + "\\n").encode())
for name in sys.argv[2:]:
    signal.signal(getattr(signal, name), note)
signal.signal(signal.SIGALRM, lambda *_: sys.exit(5))
print("ready", os.getpid(), flush=True)
while True:
    signal.pause()
"""


def until(condition: Callable[[], Any], what: str, timeout: float = 20) -> Any:
    """Look until the condition holds; the deadline is only for a test that fails."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)
    return found


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def driver_argv(cmd: Sequence[str], *options: str) -> list[str]:
    return [sys.executable, str(HERE / "driver.py"), *options, "--", *cmd]


class Driven:
    """A driver that runs, with what it notes and what its CMD notes."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.folder = folder

    @property
    def events(self) -> list[str]:
        path = self.folder / "events"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def got(self) -> list[str]:
        path = self.folder / "got"
        return path.read_text().split() if path.exists() else []

    @property
    def cmd_pid(self) -> int:
        return self._pids()[0]

    @property
    def witness_pid(self) -> int:
        return self._pids()[1]

    def _pids(self) -> tuple[int, int]:
        line = until(lambda: [e for e in self.events if e.startswith("started")], "the driver started CMD")[0]
        return int(line.split()[1]), int(line.split()[3])

    def until_event(self, text: str, times: int = 1) -> None:
        until(lambda: sum(text in e for e in self.events) >= times, f"{times} x {text!r} in {self.events}")

    def until_got(self, times: int) -> None:
        """Wait until CMD has noted that many: two that wait together would be one."""
        until(lambda: len(self.got) >= times, f"CMD got {times}")

    def end_counter(self) -> int:
        os.kill(self.cmd_pid, signal.SIGALRM)
        return self.process.wait(20)
