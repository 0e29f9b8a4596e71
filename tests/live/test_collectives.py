"""Hangs that stacks alone cannot tell apart: real gloo ranks under `diag run`, named by their Flight
Recorders."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.liverun import live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

START = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])]
x = torch.ones(8)
for step in range(20):
    for group in (None, *pairs):
        dist.all_reduce(x, group=group)
    if rank == 0:
        print(f" iteration {step + 1:8d}/{1000:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)
"""
MISMATCH = (
    START
    + """
if rank == 1:
    dist.broadcast(torch.ones(8), 0)
else:
    dist.all_reduce(torch.ones(64))
dist.barrier(); dist.all_reduce(x)
"""
)
OPPOSITE = (
    START
    + """
first, second = (pairs if rank != 2 else pairs[::-1])
dist.all_reduce(x, group=first)
dist.all_reduce(x, group=second)
"""
)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """UNIX sockets have 107 characters for their path; pytest's own folders take most of them."""
    with tempfile.TemporaryDirectory(prefix="diag-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.mark.parametrize(
    ("program", "klass", "words"),
    [
        (MISMATCH, "collective_mismatch", "broadcast"),
        (OPPOSITE, "collective_order_deadlock", "different process groups"),
    ],
    ids=["mismatch", "opposite order"],
)
def test_ranks_that_all_hang_in_collectives_are_told_apart_by_what_they_called(
    short_path: Path, program: str, klass: str, words: str
):
    script = short_path / "train.py"
    script.write_text(program + "\nimport time; time.sleep(600)\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "3", str(script)]
    with live_run(short_path, command) as run:
        change = run.until(lambda: (c := run.hang()) and c["finding"]["class"] == klass and c, 150)

        finding = change["finding"]
        assert words in finding["summary"]
        assert any(item["kind"] == "flight_recorder" for item in finding["evidence"])
