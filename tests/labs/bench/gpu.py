"""What diag costs a training loop on GPUs with real NCCL: diag on against off, in blocks of one run."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from . import gpu_loop, target
from .runs import NotReady, processes, under_diag, until
from .slowdown import switch, within
from .stats import judge, ratios
from .table import Row, percent, times

__all__ = ["rows"]

_RANKS = 2
_GOAL = 0.005
_BLOCK_SECONDS = 2.0
_START_SECONDS = 180.0


def rows(pairs: int, say: Callable[[str], None], ranks: int = _RANKS) -> list[Row]:
    """Raises NotReady where there are fewer GPUs than ranks."""
    try:
        import torch

        count = torch.cuda.device_count()
    except ImportError:
        count = 0
    if count < ranks:
        raise NotReady(f"{ranks} GPUs wanted, {count} here")
    say(f"NCCL loop on {ranks} GPUs, diag on and off: {pairs} pairs of {_BLOCK_SECONDS:g} s")
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name:
        folder = Path(name)
        with under_diag(gpu_loop.command(ranks), folder) as run:
            until(lambda: target.complete(folder, ranks), _START_SECONDS, "the loop trains")
            time.sleep(10.0)
            diag = processes(run)
            blocks = switch(diag, pairs, _BLOCK_SECONDS)
            steps = [step for rank in range(ranks) for step in target.read_steps(folder, rank)]
            found = [change["finding"]["id"] for change in run.changes()]
    on, off = ([within(steps, block) for block in side] for side in zip(*blocks, strict=True))
    slower = ratios([statistics.median(b) for b in on], [statistics.median(b) for b in off]).scaled(1.0, -1.0)
    mean = ratios([statistics.fmean(b) for b in on], [statistics.fmean(b) for b in off]).scaled(1.0, -1.0)
    step = statistics.median(step.wall for step in steps)
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    note = f"{ranks} x {torch.cuda.get_device_name()}, NCCL {nccl}, {1000 * step:.0f} ms steps"
    goal = f"< {percent(_GOAL)}"
    return [
        Row(
            f"slowdown of the median step, diag on against off ({pairs} pairs of {_BLOCK_SECONDS:g} s; {note})",
            percent(slower, 3),
            "the same run, diag stopped",
            times(1 + slower.mid, 1.0),
            goal,
            judge(slower, _GOAL),
            {"diag": slower.mid, "low": slower.low, "high": slower.high, "findings": len(found)},
            "gpu median",
        ),
        Row(
            "slowdown of the mean step (same run)",
            percent(mean, 3),
            "the same run, diag stopped",
            times(1 + mean.mid, 1.0),
            goal,
            judge(mean, _GOAL),
            {"diag": mean.mid, "low": mean.low, "high": mean.high},
            "gpu mean",
        ),
    ]
