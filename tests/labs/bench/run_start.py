"""What a person feels when `diag run --` stands before a command: how much later it starts, how much longer
it takes in all, and how soon its first stack is there."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from diag.engine.journal import JournalReader, segments
from tests.liverun import DIAG, LiveRun

from . import target
from .machine import bench_env
from .runs import under_diag, until
from .stats import difference, interval, judge
from .table import Row

__all__ = ["rows"]

_DELAY_GOAL, _WHOLE_GOAL, _FIRST_GOAL = 0.3, 1.5, 5.0
_DATE = ("date", "+%s.%N")  # the command says itself when it began


def rows(count: int, firsts: int, say: Callable[[str], None]) -> list[Row]:
    say(f"`diag run -- date` and date, {count} times; the first stack of a run, {firsts} times")
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as folder:
        env = bench_env(DIAG_RUN_ROOT=folder, DIAG_PORT="0")
        ours, plain = [], []
        for _ in range(count + 1):
            ours.append(_began([*DIAG, "run", "-q", "--", *_DATE], env))
            plain.append(_began(_DATE, env))
    ours, plain = ours[1:], plain[1:]  # the first one warms up
    delay = difference([began for began, _ in ours], [began for began, _ in plain])
    whole = difference([took for _, took in ours], [took for _, took in plain])
    peer = statistics.median(took for _, took in plain)
    found = []
    for what, key, value, goal in (
        ("how much later a command starts under `diag run`", "run delay", delay, _DELAY_GOAL),
        ("how much longer `diag run -- date` takes in all", "run whole", whole, _WHOLE_GOAL),
    ):
        found.append(
            Row(
                what,
                f"{1000 * value.mid:+.0f} ms [{1000 * value.low:+.0f}, {1000 * value.high:+.0f}]",
                f"`date` alone: {1000 * peer:.1f} ms in all",
                goal=f"< {goal:g} s",
                verdict=judge(value, goal),
                values={"diag": value.mid, "peer": peer},
                key=key,
            )
        )
    first = interval([_first_stack() for _ in range(firsts)])
    return [
        *found,
        Row(
            "from `diag run` to the first stack of a rank that is there at once",
            f"{first.mid:.1f} s [{first.low:.1f}, {first.high:.1f}]",
            goal=f"< {_FIRST_GOAL:g} s",
            verdict=judge(first, _FIRST_GOAL),
            values={"diag": first.mid},
            key="first stack",
        ),
    ]


def _began(command: Sequence[str], env: Mapping[str, str]) -> tuple[float, float]:
    """Seconds until the command itself ran, and until all was over."""
    before = time.time()
    told = subprocess.run(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    return float(told.stdout) - before, time.time() - before


def _first_stack() -> float:
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name:
        folder = Path(name)
        with under_diag(target.command(folder, ranks=1, spins=1000, rest=0.05), folder) as run:
            began = psutil.Process(run.process.pid).create_time()
            return float(until(lambda: _first_of(run), 60.0, "a first stack is in the journal")) - began


def _first_of(run: LiveRun) -> float:
    """When the first stack came, 0 as long as there is none."""
    home = run.run_dir
    if home is None or not (home / "run.json").exists() or home.parent == Path(os.curdir):
        return 0.0
    return next(
        (
            record.emitted or 0.0
            for record in JournalReader(segments(home))
            if record.source == "remote_stack"
        ),
        0.0,
    )
