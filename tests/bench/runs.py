"""Jobs under `diag run`, alone or beside a shell loop of py-spy; everything started is ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from tests.liverun import LiveRun, live_run

from .machine import PY_SPY, bench_env
from .target import complete

__all__ = ["Diag", "NotReady", "alone", "processes", "shell_loop", "shell_script", "under_diag", "until"]

T = TypeVar("T")


class NotReady(RuntimeError):
    """What was to be measured did not get going in time."""


@dataclass(frozen=True, slots=True)
class Diag:
    """The processes of one run of diag, found by walking the tree below `diag run`."""

    hub: int
    sidecars: tuple[int, ...]
    others: tuple[int, ...]  # the signal witness


def until(condition: Callable[[], T], seconds: float, what: str) -> T:
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise NotReady(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)
    return value


@contextlib.contextmanager
def alone(command: Sequence[str], folder: Path) -> Iterator[None]:
    env = bench_env(BENCH_FOLDER=str(folder))
    process = psutil.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        _end(process)


@contextlib.contextmanager
def under_diag(command: Sequence[str], folder: Path, **settings: str) -> Iterator[LiveRun]:
    """`settings` are DIAG_ variables; without any it runs with its defaults."""
    env = bench_env(BENCH_FOLDER=str(folder), **settings)
    with live_run(folder, command, env=env) as run:
        yield run


def processes(run: LiveRun) -> Diag:
    """Raises NotReady before there is a rank with its sidecar."""
    job = int(run.run_json()["pid"])
    mine = [process for process in run.process.children() if process.pid != job]
    sidecars = tuple(process.pid for process in mine if "diag.sidecar" in process.cmdline())
    if not sidecars:
        raise NotReady("no sidecar below `diag run`")
    return Diag(run.process.pid, sidecars, tuple(process.pid for process in mine if process.pid not in sidecars))


def shell_script(targets: Sequence[int]) -> str:
    """One round of what people do by hand."""
    return f"for pid in {' '.join(map(str, targets))}; do {PY_SPY} dump --pid $pid; done"


@contextlib.contextmanager
def shell_loop(folder: Path, ranks: int, every: float) -> Iterator[None]:
    """Beside a job that already runs."""
    targets = list(until(lambda: complete(folder, ranks), 120, "all ranks train").values())
    script = f"while :; do {shell_script(targets)}; sleep {every:g}; done"
    loop = psutil.Popen(["bash", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        _end(loop)


def _end(process: psutil.Popen) -> None:
    victims: list[psutil.Process] = [process]
    with contextlib.suppress(psutil.Error):
        victims += process.children(recursive=True)
    for victim in victims:
        with contextlib.suppress(psutil.Error, OSError):
            os.kill(victim.pid, signal.SIGKILL)
    psutil.wait_procs(victims, timeout=10)
