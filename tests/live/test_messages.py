"""Real gloo ranks of a pipeline under `diag run`: gloo's recorder keeps no send and no receive."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.liverun import live_run
from tests.sources.remote_stacks import KNOWN

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PIPELINE = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, stages = dist.get_rank(), dist.get_world_size()
wrong, fault_at, x = int(sys.argv[1]), 60, torch.ones(8)
for step in range(10_000):
    micro = 3 - (step == fault_at and rank == wrong)
    for _ in range(micro):
        if rank: dist.recv(x, rank - 1)
        if rank + 1 < stages: dist.send(x, rank + 1)
    for _ in range(micro):
        if rank + 1 < stages: dist.recv(x, rank + 1)
        if rank: dist.send(x, rank - 1)
    if rank == 0:
        print(f" iteration {step + 1:8d}/{10_000:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)
    time.sleep(20.0 if wrong < 0 and step % 40 == 39 and rank == 1 else 0.1)
"""


def command(path: Path, wrong: int) -> list[str]:
    script = path / "train.py"
    script.write_text(PIPELINE)
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "3", str(script), str(wrong)]


@pytest.mark.skipif(sys.version_info[:2] not in KNOWN, reason="this Python is not read from its memory")
def test_stage_that_makes_one_micro_batch_less_is_named(tmp_path: Path) -> None:
    """The middle one; the others are played out in tests/detectors."""
    wrong = 1
    with live_run(tmp_path, command(tmp_path, wrong)) as run:
        change = run.until(lambda: (c := run.hang()) and c["finding"]["cause"] != "all_ranks_wait" and c, 150)

        finding = change["finding"]
        assert (finding["class"], finding["cause"]) == ("collective_mismatch", "messages_do_not_match")
        assert (finding["ranks"], finding["severity"]) == ([wrong], "critical")


def test_pipeline_whose_stages_wait_for_a_slow_one_is_no_circle(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, -1)) as run:
        run.until(lambda: "85/   10000" in run.text, 150)

        assert all(change["finding"]["cause"] != "messages_do_not_match" for change in run.changes())
