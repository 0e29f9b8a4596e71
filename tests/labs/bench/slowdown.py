"""What a whole run costs: the same job alone, under diag and beside a shell loop; and one run with diag on
and off.

Runs of minutes cannot be told apart by a percent on a machine with other users. Blocks of seconds within one
run can: `switched` stops diag's processes (SIGSTOP) in every other block. The job does not notice, its output
goes to files.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import target, timed_job
from .runs import Diag, NotReady, alone, processes, shell_loop, under_diag, until
from .stats import Step, judge, ratios
from .table import Row, percent, times

__all__ = ["rows", "switch", "switched", "within"]

Say = Callable[[str], None]
Block = tuple[float, float]  # its begin and end, wall clock

_GOAL = 0.01
_WARM_UP_STEPS = 5
_START_SECONDS = 180.0
_RANKS = 2
_BLOCK_SECONDS = 0.5  # far below the swings of a shared machine's speed, far above what a sample takes
_WAYS = ("alone", "diag", "shell 10", "shell 1")


def rows(seconds: float, rounds: int, say: Say) -> list[Row]:
    """The bundled job in whole runs, in random order, round for round."""
    measured: dict[str, list[list[Step]]] = {way: [] for way in _WAYS}
    for number in range(rounds):
        for way in random.sample(_WAYS, len(_WAYS)):
            say(f"bundled job, round {number + 1} of {rounds}: {way}")
            measured[way].append(_run(way, seconds))
    base = statistics.median(step.wall for run in measured["alone"] for step in run)
    note = f"bundled job, {_RANKS} ranks, {1000 * base:.0f} ms steps, {rounds} paired runs of {seconds:.0f} s"
    return [
        _row(
            f"slowdown of the median step ({note})",
            measured,
            lambda run: statistics.median(step.wall for step in run),
            _GOAL,
            "pairs median",
        ),
        _row(
            "slowdown of the mean step (same runs)",
            measured,
            lambda run: statistics.fmean(step.wall for step in run),
            _GOAL,
            "pairs mean",
        ),
        _row(
            "CPU time of a rank's step (same runs; waiting is not in it)",
            measured,
            lambda run: statistics.median(step.cpu for step in run),
            None,
            "pairs CPU",
        ),
    ]


def _run(way: str, seconds: float) -> list[Step]:
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name, contextlib.ExitStack() as stack:
        folder, command = Path(name), timed_job.command(_RANKS)
        stack.enter_context(under_diag(command, folder) if way == "diag" else alone(command, folder))
        until(lambda: target.complete(folder, _RANKS), _START_SECONDS, f"the bundled job trains ({way})")
        if way.startswith("shell"):
            stack.enter_context(shell_loop(folder, _RANKS, float(way.split()[1])))
        time.sleep(seconds)
        return target.read_steps(folder)[_WARM_UP_STEPS:]


def _row(
    title: str,
    measured: dict[str, list[list[Step]]],
    of: Callable[[list[Step]], float],
    limit: float | None,
    key: str,
) -> Row:
    figures = {way: [of(run) for run in runs] for way, runs in measured.items()}
    slower = {
        way: ratios(runs, figures["alone"]).scaled(1.0, -1.0)
        for way, runs in figures.items()
        if way != "alone"
    }
    diag = slower.pop("diag")
    peers = "; ".join(
        f"py-spy loop each {way.split()[1]} s: {percent(value)}" for way, value in slower.items()
    )
    values = {
        f"{way}, round {number + 1}": run for way, runs in figures.items() for number, run in enumerate(runs)
    }
    goal, verdict = (f"< {percent(limit, 0)}", judge(diag, limit)) if limit else ("", "")
    return Row(
        title,
        percent(diag),
        peers,
        times(1 + diag.mid, 1 + slower["shell 10"].mid),
        goal,
        verdict,
        values,
        key,
    )


def switched(pairs: int, say: Say) -> list[Row]:
    """Two ranks that keep two cores busy: on a machine of two, all that diag uses is taken from them."""
    say(f"busy loop, diag on and off: {pairs} pairs of {_BLOCK_SECONDS:g} s")
    spins = target.calibrate(0.02)
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name:
        folder = Path(name)
        with under_diag(target.command(folder, ranks=_RANKS, spins=spins, threads=20), folder) as run:
            until(lambda: target.complete(folder, _RANKS), 60, "the loop runs under diag")
            time.sleep(5.0)
            diag = processes(run)
            if len(diag.sidecars) != _RANKS:
                raise NotReady("a rank has no sidecar")
            blocks = switch(diag, pairs, _BLOCK_SECONDS)
            steps = [step for rank in range(_RANKS) for step in target.read_steps(folder, rank)]
    on, off = ([within(steps, block) for block in side] for side in zip(*blocks, strict=True))
    found = []
    for what, of in (("median", statistics.median), ("mean", statistics.fmean)):
        slower = ratios([of(block) for block in on], [of(block) for block in off]).scaled(1.0, -1.0)
        title = f"slowdown of the {what} step, diag on against off ({pairs} pairs of {_BLOCK_SECONDS:g} s, busy loops)"
        found.append(
            Row(
                title,
                percent(slower),
                "the same run, diag stopped",
                times(1 + slower.mid, 1.0),
                f"< {percent(_GOAL, 0)}",
                judge(slower, _GOAL),
                {"diag": slower.mid, "low": slower.low, "high": slower.high},
                f"P4 blocks {what}",
            )
        )
    return found


def switch(diag: Diag, pairs: int, seconds: float) -> list[tuple[Block, Block]]:
    """Begin and end of each pair's blocks, on and off; which comes first is chance. What is due waits for the
    next on. Raises NotReady."""
    found, pid = [], diag.hub
    try:
        for _ in range(pairs):
            block: dict[bool, Block] = {}
            for is_on in random.sample((True, False), 2):
                for pid in (diag.hub, *diag.sidecars):
                    os.kill(pid, signal.SIGCONT if is_on else signal.SIGSTOP)
                began = time.time()
                time.sleep(seconds)
                block[is_on] = (began, began + seconds)
            found.append((block[True], block[False]))
    except ProcessLookupError:
        which = "the hub" if pid == diag.hub else "a sidecar"
        raise NotReady(
            f"{which} (pid {pid}) ended while its cost was measured, after {len(found)} pairs of blocks"
        ) from None
    finally:
        for pid in (diag.hub, *diag.sidecars):
            with contextlib.suppress(ProcessLookupError):  # the others must go on
                os.kill(pid, signal.SIGCONT)
    return found


def within(steps: Sequence[Step], block: Block) -> list[float]:
    return [step.wall for step in steps if block[0] <= step.start < block[1]]
