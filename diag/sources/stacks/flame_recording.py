"""A flame graph of a living process by `py-spy record`, which writes the formats itself. The target is not
stopped, unless native frames are asked for: py-spy reads those only of a stopped process, for some
milliseconds each time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diag.sources.host.process_tree import read_process
from diag.sources.stacks.pyspy import _ENVIRONMENT, PySpy, explain
from diag.text.errors import DiagError

# Ours -> py-spy's.
FORMATS = {"svg": "flamegraph", "speedscope": "speedscope", "collapsed": "raw"}
# for py-spy to find its way in (a torch process: 0.1 s; with native symbols seconds) and to write
_GRACE_SECONDS = 15.0
_LARGEST_FILE = 256 << 20


@dataclass(frozen=True, slots=True)
class Recording:
    """What is wanted. `native` stops the process at each sample."""

    seconds: float = 10.0
    rate: int = 50
    form: str = "svg"
    children: bool = False
    native: bool = False


def record(
    pid: int,
    wanted: Recording,
    *,
    start_ticks: int = 0,
    executable: str | None = None,
    proc: Path = Path("/proc"),
    ending: Callable[[], bool] = lambda: False,
) -> bytes:
    """Takes `wanted.seconds`. All threads are shown, waiting ones too: the time that a hung rank spends is
    waiting time.

    Raises DiagError that says why not. `ending()` becoming true ends the recording early, as if it had
    failed.
    """
    spy = PySpy(executable, proc)
    before = read_process(pid, proc)
    if before is None or before.state in "ZX" or (start_ticks and before.ticks != start_ticks):
        raise DiagError(
            f"the process {pid} has ended", hint="its recorded stacks: diag flame RANK --from RUN_DIR"
        )
    if spy.executable is None:
        raise _failed(pid, {"failed": "not_found", "stderr": ""})
    try:
        with tempfile.TemporaryDirectory(prefix="diag-flame-") as folder:
            return _recorded(spy, pid, wanted, Path(folder), ending)
    except _NotInTime:
        after = read_process(pid, proc)
        # a py-spy that was killed may leave it stopped (benfred/py-spy#390): it ran before, so we stopped it
        same = after is not None and after.ticks == before.ticks and after.state == "T"
        if wanted.native and before.state not in "Tt" and same:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        raise
    except OSError as error:
        raise DiagError(
            f"the flame graph cannot be written: {error.strerror or error}",
            hint="free space in the hub's temporary directory (TMPDIR)",
        ) from None


class _NotInTime(DiagError):
    pass


def _recorded(spy: PySpy, pid: int, wanted: Recording, folder: Path, ending: Callable[[], bool]) -> bytes:
    """Raises OSError and DiagError."""
    path = folder / "flame"
    command = [
        spy.executable or "", "record", "--pid", str(pid), "--output", str(path), "--format", FORMATS[wanted.form],
        "--duration", str(max(1, round(wanted.seconds))), "--rate", str(wanted.rate), "--idle", "--threads",
        "--native" if wanted.native else "--nonblocking", *(["--subprocesses"] if wanted.children else []),
    ]  # fmt: skip
    stderr = _run(command, time.monotonic() + wanted.seconds + _GRACE_SECONDS, ending, folder / "stderr")
    # py-spy 0.4.3 of a process in which it saw nothing, here 2026-11-21: an SVG is refused, the others are
    # written empty.
    #   Error: Failed to write flamegraph: No stack counts found
    empty = stderr is not None and "No stack counts found" in stderr
    if stderr is not None and not empty:
        raise _failed(pid, spy._failure(pid, stderr))
    if path.stat().st_size > _LARGEST_FILE:
        raise DiagError(
            "the flame graph is too large", hint="fewer --seconds, a lower --rate, or --format svg"
        )
    data = path.read_bytes()
    if empty or not data.strip() or b'"profiles":[]' in data[:1000]:
        raise DiagError(
            f"py-spy saw no Python frame in pid {pid}", hint="it may run native code only: try --native"
        )
    # py-spy 0.4.3 writes null, where the published schema has a number or nothing.
    return (
        data.replace(b'"activeProfileIndex":null', b'"activeProfileIndex":0', 1)
        if wanted.form == "speedscope"
        else data
    )


def _run(command: list[str], end: float, ending: Callable[[], bool], errors: Path) -> str | None:
    """None when it went well, else what it printed. A py-spy that hangs is asked to end, then killed."""
    with open(errors, "wb") as stderr:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=_ENVIRONMENT
            )
        except OSError as error:
            raise DiagError(
                f"{command[0]}: {error.strerror}", hint="pip install py-spy, in the environment of diag"
            ) from None
    try:
        while time.monotonic() < end and not ending():
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(0.2)
                return None if code == 0 else errors.read_bytes()[:20_000].decode("utf-8", "replace")
        process.send_signal(signal.SIGINT)  # in blocking mode it lets the process go on before it ends
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
        if ending():
            raise _NotInTime(
                "the run ended before the flame graph was done",
                hint="its recorded stacks: diag flame RANK --from RUN_DIR",
            )
        raise _NotInTime(
            "py-spy did not finish in time",
            hint="the machine may be overloaded: fewer --seconds, a lower --rate",
        )
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _failed(pid: int, outcome: dict[str, object]) -> DiagError:
    reason, remedy = explain({"pid": pid, **outcome})
    return DiagError(reason, hint=remedy)
