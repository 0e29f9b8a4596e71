"""Lines of real training logs (tests/captures/logs), repeated to any size: what line readers are measured
with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

__all__ = ["FAILED", "captured_lines", "healthy_nccl_lines", "training_log"]

_LOGS = Path(__file__).resolve().parents[2] / "captures" / "logs"
_HEALTHY = (
    "megatron_4.6.0_lora.log",
    "megatron_4.6.0_tp2sp.log",
    "swift_4.6.0_dense_ddp.log",
    "hf_trainer_4.57.6_info.log",
)
FAILED = _LOGS / "elastic_2.13.log"  # the end of a job that failed
_STEP = re.compile(r"'(?:iteration|global_step/max_steps)': '\d+/\d+'")
# A log of 1 GB is some 50,000 steps and what is printed between them: NCCL's INFO lines, a data loader's
# talk, and now and then a line of the job itself.
_NCCL_LINES, _LOADER_LINES = 20, 200
_PIECE = 40_000  # lines


@lru_cache
def captured_lines() -> tuple[str, ...]:
    """All lines of all captures, in order."""
    return tuple(
        line
        for path in sorted(_LOGS.glob("*.log"))
        for line in path.read_text("utf-8", "replace").splitlines()
    )


def healthy_nccl_lines() -> list[str]:
    """What NCCL says of one rank's start, at level INFO."""
    lines = (_LOGS / "nccl" / "healthy_rank0.log").read_text().splitlines()
    return [line for line in lines if " NCCL INFO " in line]


def training_log(size: int) -> Iterator[bytes]:
    """At least `size` bytes, some MB at a time: jobs as captured, then steps whose numbers go on, what jobs
    print between them, and at the end the failure that torchelastic tells."""
    head = [line for name in _HEALTHY for line in (_LOGS / name).read_text("utf-8", "replace").splitlines()]
    nccl = healthy_nccl_lines()
    steps = [line for line in head if _STEP.search(line)]
    between = [line for line in head if not _STEP.search(line)]
    made = step = 0
    while made < size:
        lines = list(head) if not made else []
        while len(lines) < _PIECE:
            step += 1
            clock = f"{step * 2 // 3600 % 24:02d}:{step * 2 // 60 % 60:02d}:{step * 2 % 60:02d}"
            lines += [nccl[(step + row) % len(nccl)] for row in range(_NCCL_LINES)]
            lines += [
                f"2026-11-21 {clock} - INFO - data.loader - worker {row % 8} fetched batch {step * row} of shard {row}"
                for row in range(_LOADER_LINES)
            ]
            lines += [
                between[step % len(between)],
                _STEP.sub(f"'iteration': '{step}/99999999'", steps[step % len(steps)]),
            ]
        data = ("\n".join(lines) + "\n").encode()
        made += len(data)
        yield data
    yield FAILED.read_bytes()
