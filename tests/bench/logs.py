"""`diag replay` of a large ordinary training log, detectors and all, against `grep -c` over the same file, in the same run."""

from __future__ import annotations

import resource
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from diag.replay import replay

from .nccl_log import _cpu
from .stats import interval, judge
from .table import Row

__all__ = ["rows", "training_log"]

_LINES_A_SECOND = 150_000  # ours: 1 GB of lines of 100 characters in a minute
_CAPTURE = Path(__file__).resolve().parents[1] / "captures" / "logs" / "elastic_2.13.log"


def training_log(steps: int, between: int = 200) -> bytes:
    """Megatron's line for each step, `between` lines of a data loader's own talk before each, and torchelastic's end."""
    lines: list[str] = []
    for step in range(1, steps + 1):
        clock = f"{10 + step * 2 // 3600 % 14:02d}:{step * 2 // 60 % 60:02d}:{step * 2 % 60:02d}"
        lines += [f"2026-11-21 {clock} - INFO - data.loader - worker {row % 8} fetched batch {step * row} of shard {row}"
                  for row in range(between)]
        lines.append(f" [2026-11-21 {clock}] iteration {step:8d}/  100000 | consumed samples: {step * 8:12d} | elapsed time per "
                     f"iteration (ms): 2000.0 | learning rate: 1.0E-05 | lm loss: {2 + step % 7 / 100:.6E} | grad norm: 1.2 |")
    return ("\n".join(lines) + "\n").encode() + _CAPTURE.read_bytes()


def rows(steps: int, times_each: int, say: Callable[[str], None]) -> list[Row]:
    data = training_log(steps)
    lines = data.count(b"\n")
    say(f"replay of {lines} lines of a training log, {times_each} times each")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        path.write_bytes(data)
        ours, grep = [], []
        for _ in range(times_each):
            grep.append(_cpu(lambda: subprocess.run(["grep", "-c", "Error", str(path)], stdout=subprocess.PIPE, check=True),
                             resource.RUSAGE_CHILDREN))
            ours.append(_cpu(lambda: replay([path]), resource.RUSAGE_SELF))
    mine, peer, speed = interval(ours), interval(grep), interval([lines / one for one in ours])
    return [Row(
        f"lines of a training log replayed a second of CPU ({lines} lines, {len(data) / 1e6:.0f} MB)",
        f"{speed.mid:,.0f} [{speed.low:,.0f}, {speed.high:,.0f}]", f"`grep -c Error`: {lines / max(peer.mid, 1e-6):,.0f}",
        goal=f"> {_LINES_A_SECOND:,}", verdict=judge(mine, lines / _LINES_A_SECOND),
        values={"lines_per_second": speed.mid, "diag": mine.mid, "peer": peer.mid},
    )]
