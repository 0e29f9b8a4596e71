"""`diag dump --all-ranks` of many local ranks against the serial shell loop of `py-spy dump`, from the
command's start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.liverun import DIAG, LiveRun

from . import target
from .commands import dump_rows, in_turns
from .machine import bench_env
from .runs import NotReady, processes, shell_script, under_diag, until
from .stats import interval, judge
from .table import Row

__all__ = ["rows", "sick_rows"]

_THREADS = 4  # idle ones of each rank, beside its main thread
_SETTLE_SECONDS = 12.0  # every sidecar has taken its first stack: what a dump finds in a job that runs
_DEADLINE = 8.0  # of `diag dump`, as its default is
_SICK = ("wait", "wait", "wait", "wait", "wait", "gil", "stop", "die")


def rows(ranks: int, goal: float, count: int, say: Callable[[str], None]) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name:
        folder = Path(name)
        # Asleep most of the time: 64 ranks that train would leave nothing of a small machine to measure with.
        rest = 0.25 if ranks < 16 else 2.0
        command = target.command(
            folder, ranks=ranks, spins=target.calibrate(0.001), rest=rest, threads=_THREADS
        )
        with under_diag(command, folder) as run:
            until(lambda: run.run_json().get("url"), 60, "diag serves HTTP")
            pids = until(lambda: target.complete(folder, ranks), 300, "all ranks train")
            until(lambda: _sidecars(run) == ranks, 300, "each rank has its sidecar")
            time.sleep(_SETTLE_SECONDS)
            return dump_rows(run, list(pids.values()), count, goal, say)


def sick_rows(count: int, say: Callable[[str], None]) -> list[Row]:
    """One rank that holds the GIL, one stopped and one dead among eight, against the loop over those that
    live."""
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name, _ready(Path(name)) as ready:
        folder = Path(name)
        ranks = Path(__file__).resolve().parents[2] / "live" / "ranks.py"
        command = [sys.executable, str(ranks), *_SICK]
        with under_diag(command, folder, READY=str(ready[0])) as run:
            url = until(lambda: run.run_json().get("url"), 60, "diag serves HTTP")
            until(
                lambda: _states(url).count("ended") == 1 and "T" in _states(url),
                60,
                "one rank is stopped and one dead",
            )
            time.sleep(_SETTLE_SECONDS)
            alive = [row["pid"] for row in _ranks(url) if not row["exit"]]
            say(f"diag dump --all-ranks of 8 ranks, three of them sick, {count} times")
            dump = [*DIAG, "dump", "--all-ranks"]
            loop = ["bash", "-c", shell_script(alive)]
            ours, theirs = in_turns(
                [(dump, bench_env(DIAG_RUN_ROOT=str(run.root))), (loop, bench_env())], count
            )
            with urllib.request.urlopen(
                f"{url}/dump?deadline={_DEADLINE:g}", timeout=_DEADLINE + 5
            ) as answer:
                missing = json.load(answer)["missing"]
            for row in _ranks(url):
                with contextlib.suppress(OSError):
                    os.kill(row["pid"], signal.SIGCONT)
    mine, peer = interval([one.wall for one in ours]), interval([one.wall for one in theirs])
    told = "; ".join(f"rank {rank} missing: {', '.join(reasons)}" for rank, reasons in missing.items())
    return [
        Row(
            f"wall time of `diag dump --all-ranks`, 8 ranks: one holds the GIL, one is stopped, one is dead ({told})",
            f"{1000 * mine.mid:.0f} ms [{1000 * mine.low:.0f}, {1000 * mine.high:.0f}]",
            f"shell loop of py-spy dump over the 7 that live: {1000 * peer.mid:.0f} ms",
            f"{mine.mid / peer.mid:.2g}",
            f"< {_DEADLINE:.0f} s",
            judge(mine, _DEADLINE),
            {"diag": mine.mid, "peer": peer.mid},
            "dump, sick ranks",
        )
    ]


def _sidecars(run: LiveRun) -> int:
    with contextlib.suppress(NotReady):
        return len(processes(run).sidecars)
    return 0


def _ranks(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/ranks", timeout=10) as answer:
        rows: list[dict[str, Any]] = json.load(answer)["ranks"]
    return rows


def _states(url: str) -> list[str]:
    return ["ended" if row["exit"] else str(row["process_state"]) for row in _ranks(url)]


@contextlib.contextmanager
def _ready(folder: Path) -> Iterator[list[Path]]:
    """The FIFO that these ranks write into when they stand; held open, so that none of them waits for us."""
    path = folder / "ready"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)
    try:
        yield [path]
    finally:
        os.close(fd)
