"""What a fault is, and what most of them need: the processes of diag, and what this machine has to offer."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tests.labs.harm.judge import Outcome
    from tests.labs.harm.trial import Running

__all__ = ["Fault", "Undo", "may_mount", "missing", "send", "sidecars"]

Undo = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """`strike` takes a running trial and a seeded random source, and says in words what it did.

    `harms_hub`: the hub's process ends, so that its journal may break off; exit code and output count all the
    same. `harms_carrier`: diag run itself ends or its terminal is lost, so that only the job's own word and
    the kept output count. `job`: more words for the job; `ranks`: how many, instead of one to three. `before`
    makes the surroundings (environment, run root) and is undone by what it returns. `needs`: see `missing`.
    `prefix`: words before `diag run`, by its folder. `output`: what its standard output is. `right`: findings
    that are true of this fault. `gap`: seconds that a rank may be held up, where another than diag does it.
    `check`: what else must hold; `nodes`: so many `diag run` in a lab of as many machines."""

    name: str
    about: str
    strike: Callable[[Running, random.Random], str]
    harms_hub: bool = False
    harms_carrier: bool = False
    no_journal: bool = False
    job: tuple[str, ...] = ()
    ranks: int = 0
    options: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    before: Callable[[Path, dict[str, str]], Undo] | None = None
    needs: tuple[str, ...] = ()
    prefix: Callable[[Path], tuple[str, ...]] | None = None
    output: str = "file"  # or "terminal", or "pipe" to a reader that goes away
    right: frozenset[str] = frozenset()
    gap: float = 0.0
    seconds: float = 0.0  # that the job takes longer
    check: Callable[[Running, Outcome], None] | None = None
    nodes: int = 1
    lines: str = "terminal"  # where all lines of the ranks must be; or "kept": in output.log; or "none"


def missing(fault: Fault) -> str:
    """Why it cannot be done on this machine; empty where it can."""
    for need in fault.needs:
        if need == "root":
            if os.getuid() or not may_mount():
                return "needs root that may mount"
        elif need == "lab":
            if why := _lab_lacks():
                return why
        elif need == "loop":
            if not Path("/dev/loop-control").exists():
                return "needs loop devices"
        elif need == "pids":
            if not Path("/proc/sys/kernel/ns_last_pid").exists():
                return "needs a kernel that lets the next pid be chosen (ns_last_pid)"
        elif need == "memcg":
            if not memory_controllers():
                return "needs a memory cgroup (v1, or v2 with the controller given to our own)"
        elif shutil.which(need) is None:
            return f"needs {need}"
    return ""


@functools.cache
def may_mount() -> bool:
    """Whether a mount namespace can be had: not in every container, though its user is root."""
    try:
        words = [
            "unshare",
            "--mount",
            "--propagation",
            "slave",
            "--",
            "mount",
            "-t",
            "tmpfs",
            "tmpfs",
            "/mnt",
        ]
        return os.getuid() == 0 and subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@functools.cache
def _lab_lacks() -> str:
    from tests.netlab import why_not

    return why_not("tc", "nft") or ""


def memory_controllers() -> list[Path]:
    """Directories in which a memory cgroup can be made."""
    found = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            top = Path("/sys/fs/cgroup", controllers)
            for place in (top / path.strip("/"), top):
                limit = (
                    any(place.glob("memory.limit_in_bytes"))
                    or "memory" in _text(place / "cgroup.subtree_control").split()
                )
                if limit and os.access(place, os.W_OK):
                    found.append(place)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def sidecars(run: Running, node: int = 0) -> list[psutil.Process]:
    found = []
    for process in run.hub(node).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "diag.agent.sidecar" in process.cmdline():
                found.append(process)
    return found


def send(process: psutil.Process, number: int) -> str:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
    return f"{signal.Signals(number).name} to {process.pid}"
