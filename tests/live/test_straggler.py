"""A rank that is slow, not hung: real gloo ranks under `diag run`, the slow one named by how seldom it is
found waiting."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.liverun import live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PROGRAM = """
import sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 10_000
    def __getitem__(self, i):
        if dist.get_rank() == 1 and "slow-data" in sys.argv:
            read_slowly()
        return torch.ones(8)

def read_slowly():
    time.sleep(0.15)

def compute(x):
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        x = x * 1.0001
    return x

dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.ones(64, 64)
for step, batch in enumerate(DataLoader(Rows(), batch_size=2)):
    if step == int(sys.argv[1]):
        break
    x = compute(x)
    dist.all_reduce(x)
    x = x / 3
    if rank == 0 and "own-lines" in sys.argv:
        print(f"step {step + 1} loss {1 / (step + 1):.4f}", flush=True)
    elif rank == 0:
        print(f" iteration {step + 1:8d}/{10_000:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)
dist.destroy_process_group()
"""


def command(path: Path, *arguments: str) -> list[str]:
    script = path / "train.py"
    script.write_text(PROGRAM)
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "3", str(script), *arguments]


@pytest.mark.parametrize("lines", ["megatron", "own-lines"])
def test_rank_whose_batches_come_late_is_named_with_the_share_of_the_step_that_it_costs(
    tmp_path: Path, lines: str
) -> None:
    with live_run(tmp_path, command(tmp_path, "10000", "slow-data", lines), "--stack-seconds", "0.5") as run:
        found = run.until(lambda: run.opened("straggler"), 150)["finding"]

    assert (found["ranks"], found["waiting_ranks"], found["severity"]) == ([1], [0, 2], "warning")
    assert found["cause"] == "data_loading"
    assert "of each step of" in found["summary"] and "dataloader.py" in found["summary"]


def test_ranks_that_do_the_same_are_not_told_apart(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, "250"), "--stack-seconds", "0.5") as run:
        code = run.wait(200)

        assert code == 0, run.text[-3000:]
        assert [change["finding"]["id"] for change in run.changes()] == []
        assert "250/" in run.text
