"""Jobs under `diag run`, alone or beside a shell loop of py-spy; everything started is ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from tests.leftovers import end_all
from tests.liverun import LiveRun, live_run

from .machine import PY_SPY, bench_env
from .target import complete

__all__ = ["Diag", "NotReady", "alone", "processes", "shell_loop", "shell_script", "under_diag", "until"]

T = TypeVar("T")
_STARTED = "STARTED_BY_BENCH"  # the variable that all processes of one command inherit


class NotReady(RuntimeError):
    """What was to be measured did not get going in time."""


@dataclass(frozen=True, slots=True)
class Diag:
    """The processes of one run of diag, found by walking the tree below `diag run`."""

    hub: int
    sidecars: tuple[int, ...]
    others: tuple[int, ...]  # the carrier (`diag run` itself), the signal witness, helpers of the hub


def until(
    condition: Callable[[], T], seconds: float, what: str, ended: Callable[[], int | None] = lambda: None
) -> T:
    """`ended`: the exit code of what it waits for, once that has ended: then it is not waited for any longer."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        code = ended()
        if code is not None and not (value := condition()):  # what was written last is seen
            raise NotReady(f"ended with code {code} before this: {what}")
        if value:
            break
        if time.monotonic() > end:
            raise NotReady(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)
    return value


@contextlib.contextmanager
def alone(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Its output goes into a file, as under diag: the same writes, and what it said is there when it ends too
    early."""
    with _running(command, bench_env(BENCH_FOLDER=str(folder)), folder / "terminal.txt") as process:
        yield process


@contextlib.contextmanager
def under_diag(command: Sequence[str], folder: Path, **settings: str) -> Iterator[LiveRun]:
    """`settings` are DIAG_ variables; without any it runs with its defaults."""
    env = bench_env(BENCH_FOLDER=str(folder), **settings)
    with live_run(folder, command, env=env) as run:
        yield run


def processes(run: LiveRun) -> Diag:
    """Raises NotReady before there is a rank with its sidecar."""
    told = run.run_json()
    hub, job = psutil.Process(told["hub_pid"]), int(told["pid"])
    sidecars = tuple(process.pid for process in hub.children() if "diag.agent.sidecar" in process.cmdline())
    if not sidecars:
        raise NotReady("no sidecar below the hub")
    mine = [run.process.pid, *(process.pid for process in (*run.process.children(), *hub.children()))]
    return Diag(hub.pid, sidecars, tuple(pid for pid in mine if pid not in (hub.pid, job, *sidecars)))


def shell_script(targets: Sequence[int]) -> str:
    """One round of what people do by hand. Raises NotReady without py-spy: a loop of failures would look
    quick."""
    if not PY_SPY:
        raise NotReady("no py-spy beside Python, nor on the PATH")
    return f"for pid in {' '.join(map(str, targets))}; do {PY_SPY} dump --pid $pid; done"


@contextlib.contextmanager
def shell_loop(folder: Path, ranks: int, every: float) -> Iterator[None]:
    """Beside a job that already runs."""
    targets = list(until(lambda: complete(folder, ranks), 120, "all ranks train").values())
    script = f"while :; do {shell_script(targets)}; sleep {every:g}; done"
    with _running(["bash", "-c", script], os.environ, Path(os.devnull)):
        yield


@contextlib.contextmanager
def _running(
    command: Sequence[str], env: Mapping[str, str], output: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """In a session and with a temporary directory of its own; all of it is gone afterwards."""
    mark = uuid.uuid4().hex
    with (
        tempfile.TemporaryDirectory(prefix="run-", ignore_cleanup_errors=True) as temporary,
        open(output, "wb") as file,
    ):
        own = {**env, "TMPDIR": temporary, _STARTED: mark}
        process = subprocess.Popen(
            command, env=own, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            end_all(_STARTED, mark)
            process.wait(10)
