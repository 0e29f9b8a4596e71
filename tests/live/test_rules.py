"""A rule of one's own on a real job: `diag run --rules DIR -- torchrun ...`."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.liverun import live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

DOCUMENT = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
PROGRAM = """
import torch.distributed as dist

class ShardMissing(OSError):
    pass

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    raise ShardMissing("shard 17 of /data/pile is not mounted")
dist.barrier()
"""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """UNIX sockets have 107 characters for their path; pytest's own folders take most of them."""
    with tempfile.TemporaryDirectory(prefix="diag-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def torchrun(folder: Path) -> list[str]:
    (folder / "train.py").write_text(PROGRAM)
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(folder / "train.py")]


def test_rule_of_ones_own_names_the_rank_before_its_death_and_its_peers(short_path: Path) -> None:
    (rule,) = re.findall(r"```yaml walkthrough:\S+\n(.*?)```", DOCUMENT, re.DOTALL)
    (short_path / "shard-not-mounted.yaml").write_text(rule)

    with live_run(short_path, torchrun(short_path), "--rules", str(short_path)) as run:
        run.process.wait(180)

        found = [change["finding"] for change in run.changes()]
        assert [one["id"] for one in found] == ["io-blocked", "rank-died"], run.text
        assert (found[0]["ranks"], found[0]["rule"]) == ([1], "shard-not-mounted")
        assert "rank 1 found shard 17 of /data/pile missing" in run.text


def test_job_runs_all_the_same_where_rules_cannot_be_read(short_path: Path) -> None:
    (short_path / "torn.yaml").write_text("id: [torn\n")

    with live_run(short_path, [sys.executable, "-c", "print('the job')"], "--rules", str(short_path)) as run:
        code = run.process.wait(120)

        assert code == 0 and "the job" in run.text
        assert "torn.yaml:2: not valid YAML" in run.text
