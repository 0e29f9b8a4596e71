"""Jobs that NCCL RAS may be asked about."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from diag.model import Placement, Record
from diag.model.observations import (
    Iteration,
    RankFound,
    StackSample,
    ThreadStack,
)
from diag.sources.logs import output
from diag.sources.parsers import PARSERS
from diag.state.job import JobState
from tests.facts import frames

# --- while communicators are made
# ------------------------------------------------------------------------------


def job_of(*pids: int, node_rank: int = 0, first: int = 0, steps: int = 5) -> JobState:
    job = JobState()
    for number, pid in enumerate(pids):
        place = Placement(
            first + number, number, first + len(pids), "node-0", pid, 7, node_rank, len(pids), "torchrun"
        )
        job.observe(10.0, RankFound(first + number, place, "python train.py"))
    if steps:
        job.observe(20.0, Iteration(None, steps, 100, f"iteration {steps}"))
    return job


def say(job: JobState, line: str, at: float = 30.0) -> None:
    """A line of output, through the parsers that the hub uses."""
    for fact in PARSERS[output.SOURCE](
        Record(output.SOURCE, {"stream": "stderr", "lines": [[line, False]]}, at=at)
    ):
        job.observe(at, fact)


def stand(job: JobState, rank: int, *lines: str) -> None:
    pid = job.ranks[rank].placement.pid
    job.observe(
        30.0, StackSample(rank, pid, (ThreadStack(pid, "MainThread", frames(*lines)),), "pyspy", 30.0)
    )


# NCCL 2.28.9, H200, 2026-11-20 (tests/captures/logs/nccl/healthy_rank0.log)
START = (
    "gpu-node-0:566:566 [0] NCCL INFO ncclCommInitRankConfig comm 0x400879c0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 "
    "commId 0x67f05fb031510889 - Init START"
)
COMPLETE = START.replace("START", "COMPLETE")


@contextlib.contextmanager
def with_nccl(tmp_path: Path, version: str) -> Iterator[int]:
    """A process that has mapped a file called libnccl.so.2 with this version in it; its pid."""
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(
        b"\x7fELF" + b"\0" * (1 << 20) + f"NCCL version {version}+cuda13.0\0".encode() + b"\0" * 5000
    )
    code = (
        "import mmap, sys; file = open(sys.argv[1], 'rb'); kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ);"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()
