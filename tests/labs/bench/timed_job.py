"""The bundled job with the duration of its steps noted: under torchrun, `-m tests.labs.bench.timed_job` for `-m
diag_job`.

The folder for the notes is DIR in the variable BENCH_FOLDER.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from .target import Recorder

__all__ = ["command"]


def command(ranks: int, *, step_seconds: float = 0.0, workers: int = 2) -> list[str]:
    """Without an end: whoever starts it ends it."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        str(ranks),
        "-m",
        "tests.labs.bench.timed_job",
        "--iters=1000000",
        f"--step-seconds={step_seconds}",
        f"--workers={workers}",
    ]


def main() -> int:
    from diag_job import __main__ as job
    from diag_job.trainer import Trainer

    step = Trainer.train_step
    recorder: list[Recorder] = []

    def train_step(self: Trainer, data: Any) -> dict[str, float]:
        if not recorder:
            recorder.append(Recorder(Path(os.environ["BENCH_FOLDER"]), int(os.environ["RANK"])))
        recorder[0].lap()
        return step(self, data)

    Trainer.train_step = train_step  # type: ignore[method-assign]
    return job.main()


if __name__ == "__main__":
    sys.exit(main())
