"""A call that gloo lets pass though its ranks' types differ: told from a look while the job moves."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.engine.journal import JournalReader, segments
from tests.liverun import live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

PROGRAM = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(8)
for step in range(1, 100_000):
    time.sleep(0.1)
    dist.all_reduce(x.fill_(1.0))
    if step == 60:  # gloo compares the bytes: these are as many
        dist.broadcast(torch.ones(8, dtype=torch.int32 if rank else torch.float32), 0)
    if rank == 0:
        print(f" iteration {step:8d}/  100000 | loss: 1.0 | grad norm: 2.0 |", flush=True)
"""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """UNIX sockets have 107 characters for their path; pytest's own folders take most of them."""
    with tempfile.TemporaryDirectory(prefix="diag-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def test_one_call_of_hundreds_that_did_not_fit_is_told_though_no_rank_was_ever_suspected(short_path: Path):
    script = short_path / "train.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(script)]
    with live_run(short_path, command) as run:
        found = run.until(lambda: run.opened("rank-desync"), 240)["finding"]

        assert found["cause"] == "collectives_differ" and "broadcast [8] Float" in found["summary"]
        assert "call 61 of default_pg" in found["summary"]
        assert not run.hang()
        assert run.run_dir is not None
        records = JournalReader(segments(run.run_dir))
        asked = [record.payload for record in records if record.source == "flight_recorder"]
        assert asked and all("traces" not in payload for payload in asked)
