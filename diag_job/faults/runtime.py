"""What every fault shares: who this process is, the announcement, the wait for a release."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from .spec import Fault


@dataclass(slots=True)
class Runtime:
    """One rank's view of its fault. DataLoader workers and checkpoint writers inherit a copy when they are
    forked."""

    fault: Fault
    folder: Path
    rank: int
    main_pid: int = field(default_factory=os.getpid)
    agent_pid: int = field(default_factory=os.getppid)
    step: int = 0  # training steps completed
    microbatches: int = 1  # batches in a step
    memory_cgroup: Path | None = None  # the one made for host-oom, and that whose limit is lowered
    pids_cgroup: Path | None = None
    # the step's forward and backward passes, as the job is about to call them
    schedule: Callable[..., Any] | None = None

    @property
    def is_culprit(self) -> bool:
        return self.rank == self.fault.rank

    def announce(self, detail: str = "") -> None:
        """One line on stderr at the moment of the fault, for people and for tests that measure delays."""
        line = f"[diag.fault] rank {self.rank}: {self.fault.name} at step {self.step} (pid {os.getpid()})"
        line = f"{line} at={time.time():.3f} {detail}".rstrip() + "\n"
        os.write(2, line.encode())  # one write: lines of other ranks cannot get between

    def first_time(self) -> bool:
        """True once in a run, over all processes of the rank: a forked worker cannot tell its parent that it
        struck."""
        self.folder.mkdir(parents=True, exist_ok=True)
        marker = self.folder / f"struck-{self.fault.name}-{self.agent_pid}-{self.rank}"
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    @property
    def release_file(self) -> Path:
        return Path(os.environ.get("DIAG_FAULT_RELEASE") or self.folder / "release")

    def fifo(self) -> Path:
        """The FIFO that a data-hang reads."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.fault.name}-rank{self.rank}.fifo"
        try:
            os.mkfifo(path)
        except FileExistsError:
            pass
        return path

    def wait_for_release(self) -> None:
        """Until the release file is there, or for `seconds` if any were given."""
        seconds = self.fault.options.get("seconds", 0)
        until = time.monotonic() + seconds if seconds else float("inf")
        while time.monotonic() < until and not self.release_file.exists():
            time.sleep(0.2)


def give_up(message: str) -> NoReturn:
    """End this process with 2, from wherever it is: an import of sitecustomize, a forked worker."""
    sys.stdout.flush()
    os.write(2, f"error: {message}\n".encode())
    os._exit(2)


def fault_folder() -> Path:
    """DIAG_FAULT_DIR, else a folder of this run's own: the ranks' parent, the torchrun agent, tells runs
    apart."""
    named = os.environ.get("DIAG_FAULT_DIR")
    return Path(named) if named else Path(tempfile.gettempdir()) / f"diag-fault-{os.getuid()}-{os.getppid()}"


def release(folder: Path) -> list[Path]:
    """Let go everything that waits in `folder` (or for DIAG_FAULT_RELEASE); the FIFOs that had a reader are
    returned."""
    folder.mkdir(parents=True, exist_ok=True)
    Path(os.environ.get("DIAG_FAULT_RELEASE") or folder / "release").touch()
    released = []
    for path in sorted(folder.glob("*.fifo")):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # ENXIO: nobody reads it, so nobody hangs in it
            continue
        os.write(fd, b"go on\n")
        os.close(fd)
        released.append(path)
    return released
