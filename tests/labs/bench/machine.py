"""Reading costs from /proc, running a command with its costs, and saying what machine this is."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = [
    "PY_SPY",
    "ROOT",
    "Cost",
    "Ran",
    "bench_env",
    "cost",
    "cpu_of",
    "facts",
    "load",
    "pinned",
    "ran",
    "scrubbed",
]

ROOT = Path(__file__).resolve().parents[3]
# Beside the interpreter, else on the PATH; empty where it is not.
PY_SPY = (
    shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    or ""
)
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a process by now: CPU seconds with those of children that it waited for, and memory in MB (1e6
    bytes)."""

    cpu: float
    rss: float


@dataclass(frozen=True, slots=True)
class Ran:
    wall: float
    cpu: float
    returncode: int


def cost(pid: int) -> Cost:
    """Raises OSError when it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Cost(sum(map(int, fields[11:15])) / _TICK, int(fields[21]) * _PAGE / 1e6)


def ran(command: Sequence[str], env: Mapping[str, str] | None = None) -> Ran:
    """Run a command with its output thrown away; CPU with its children's."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Ran(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, process.returncode)


def bench_env(**more: str) -> dict[str, str]:
    """Our environment without settings of diag, with this package importable.

    Python may keep its bytecode, as it does after `pip install`: compiling anew at each start is not what
    users see.
    """
    drop = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    env = {
        name: value for name, value in os.environ.items() if not name.startswith("DIAG_") and name not in drop
    }
    paths = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **more}


def cpu_of(work: Callable[[], object], who: int) -> float:
    """Seconds of CPU, of RUSAGE_SELF or RUSAGE_CHILDREN: on a machine that others use too, the wall clock
    tells more of them than of the work."""
    before = resource.getrusage(who)
    work()
    after = resource.getrusage(who)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextlib.contextmanager
def pinned() -> Iterator[int]:
    """Yields a core that everything started meanwhile keeps off, -1 where there is only one: the target takes
    it."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        yield -1
        return
    core = min(cores)
    os.sched_setaffinity(0, cores - {core})
    try:
        yield core
    finally:
        os.sched_setaffinity(0, cores)


class load:
    """The number of runnable processes beyond ours, looked at now and then: how quiet the machine was
    meanwhile."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._over.wait(5.0):
            self.samples.append(os.getloadavg()[0])

    def end(self) -> None:
        self._over.set()


def scrubbed(text: str) -> str:
    """Without this machine's name and without paths: the table is published.

    >>> scrubbed("no /tmp/x/run.json, [/proc/1/mem] and 3/4 of <1/3 x")
    'no PATH, [PATH] and 3/4 of <1/3 x'
    """
    text = re.sub(r"(?<![\w/.<])/(?:[\w.@+-]+/)+[\w.@+-]*", "PATH", text)
    name = socket.gethostname()
    return re.sub(rf"\b{re.escape(name)}\b", "HOST", text) if name and name != "localhost" else text


def _commit() -> str:
    """Short, with a + where files differ from it; empty outside of a checkout."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], check=False, cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except OSError:
        return ""


def facts() -> dict[str, object]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    versions = {}
    for name in (
        "diag",
        "py-spy",
        "torch",
        "fastapi",
        "uvicorn",
        "prometheus-client",
        "psutil",
        "google-re2",
    ):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "commit": _commit(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "load_at_start": os.getloadavg(),
    }
