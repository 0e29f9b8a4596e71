"""Real gloo ranks under `diag run`, of which some did not do what others wait for, as the program's text and variables tell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.liverun import live_run
from tests.sources.remote_stacks import KNOWN

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.version_info[:2] not in KNOWN, reason="this Python is not read from its memory"),
]

PROGRAM = """
import datetime, sys, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, fault = dist.get_rank(), sys.argv[1]
keys = dist.PrefixStore("best", dist.distributed_c10d._get_default_store())
weights = torch.ones(8)


class Saver:
    group = None

    def save(self):
        if rank == 2:
            return
        self.group = self.group or dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=self.group)


def best(epoch):
    if rank == 0:
        if fault == "slow" and epoch == 40:
            time.sleep(45)
        if fault != "key" or epoch < 40:
            keys.set(f"epoch{epoch}", "1")
    else:
        keys.wait([f"epoch{epoch}"], datetime.timedelta(hours=1))


saver = Saver()
for epoch in range(400):
    dist.all_reduce(weights)
    if fault in ("key", "slow"):
        best(epoch)
    if fault == "group" and epoch == 20:
        saver.save()
    if fault == "group" and epoch == 60:
        every = dist.new_group()
        dist.all_reduce(torch.ones(4), group=every)
    if rank == 0:
        print(f" iteration {epoch + 1:8d}/     400 | loss: 1.0 | grad norm: 2.0 |", flush=True)
    time.sleep(0.1)
dist.destroy_process_group()
"""


def command(path: Path, fault: str) -> list[str]:
    script = path / "train.py"
    script.write_text(PROGRAM)
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "3", str(script), fault]


@pytest.mark.parametrize(
    ("fault", "cause", "culprit", "shown"),
    [
        ("key", "key_not_set", 0, "for the key `epoch40` of a store"),
        ("group", "groups_made_by_some", 2, "past which `if rank == 2:` ("),
    ],
)
def test_rank_that_left_out_what_its_peers_wait_for_is_named(
    tmp_path: Path, fault: str, cause: str, culprit: int, shown: str
) -> None:
    with live_run(tmp_path, command(tmp_path, fault)) as run:
        run.until(lambda: (run.hang() or {}).get("finding", {}).get("cause") == cause, 150)
        hang = run.hang()["finding"]

    assert hang["ranks"] == [culprit]
    assert shown in hang["summary"]


def test_rank_that_is_slow_to_set_a_key_is_no_hang_and_has_passed_nothing(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, "slow")) as run:
        run.until(lambda: "60/     400" in run.text, 200)

        found = [change["finding"] for change in run.changes()]
    assert not [one for one in found if one["id"] == "hang" or one["cause"] == "key_not_set"]
