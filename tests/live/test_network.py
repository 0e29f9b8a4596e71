"""The node's networks and a rank's RDMA device, from real processes through `diag run` to metrics, dump and
replay."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.liverun import DIAG, live_run

pytestmark = pytest.mark.live

LAUNCHER = """
import os, subprocess, sys
if "RANK" in os.environ:
    kept = open(sys.argv[1], "rb") if os.environ["RANK"] == "1" else None
    while True:
        sum(range(100000))
env = [{**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
for child in [subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], env=one) for one in env]:
    child.wait()
"""


def fetch(url: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=15) as answer:
        return str(answer.read().decode())


def test_rank_that_holds_an_rdma_device_is_told_from_one_that_does_not(tmp_path: Path) -> None:
    # given two ranks, of which one holds a device of RDMA open (a file of that name: this machine has no such
    # card)
    device = tmp_path / "dev/infiniband/uverbs0"
    device.parent.mkdir(parents=True)
    device.touch()
    script = tmp_path / "job.py"
    script.write_text(LAUNCHER)

    with live_run(tmp_path, [sys.executable, str(script), str(device)]) as run:
        url = run.until(lambda: re.search(r"http://[\d.:]+", run.text), 30)[0]

        # when both were looked at
        run.until(lambda: fetch(f"{url}/metrics").count("diag_rank_rdma_open{") == 2, 30)
        run.until(lambda: "diag_net_receive_bytes_total{" in fetch(f"{url}/metrics"), 30)

        # then metrics, ranks, dump and its bundle tell them apart
        metrics = fetch(f"{url}/metrics")
        assert (
            'diag_rank_rdma_open{rank="0"} 0.0' in metrics and 'diag_rank_rdma_open{rank="1"} 1.0' in metrics
        )
        ranks = {row["rank"]: row["rdma"] for row in json.loads(fetch(f"{url}/ranks"))["ranks"]}
        assert (ranks[0]["open_nodes"], ranks[1]["open_nodes"]) == ([], ["uverbs0"])
        assert run.run_dir is not None
        words = [
            *DIAG,
            "dump",
            "--all-ranks",
            "--run-dir",
            str(run.run_dir),
            "-o",
            str(tmp_path / "dump.tar.gz"),
        ]
        said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert "network of rank 1: holds uverbs0 open" in said.stdout, said.stdout + said.stderr
        assert "network of rank 0" not in said.stdout
    replayed = subprocess.run(
        [*DIAG, "replay", "--json", str(tmp_path / "dump.tar.gz")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not [line for line in json.loads(replayed.stdout)["not_checked"] if line["what"] != "gpu"], (
        replayed.stdout
    )
