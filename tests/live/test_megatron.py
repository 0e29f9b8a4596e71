"""The mission's own job: the real `megatron rlhf --rlhf_type dpo` under `diag run`: healthy, by
deploy/jobs/tiny, and hung."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from diag_job.faults.runtime import release
from tests.live.test_run import diag, fetch
from tests.liverun import live_run

pytest.importorskip(
    "swift.megatron", reason="the real job needs requirements/job.txt (make test installs it)"
)
pytestmark = [
    pytest.mark.live,
    pytest.mark.real_job,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("megatron"),
]
MEGATRON = [sys.executable, "-m", "diag_job.megatron", "--nproc", "2"]
TINY = Path(__file__).parents[2] / "deploy" / "jobs" / "tiny" / "run.sh"


def test_healthy_run_ends_with_its_checkpoint_and_nothing_found(tmp_path: Path) -> None:
    env = {
        "CPU": "1",
        "GPUS": "2",
        "ITERS": "6",
        "SAVE_STEPS": "3",
        "GLOBAL_BATCH": "4",
        "OUTPUT": str(tmp_path / "out"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    with live_run(tmp_path, ["bash", str(TINY)], env=env) as run:
        code = run.wait(400)

        assert code == 0, run.text[-3000:]
        assert "TP: 2, PP: 1, VPP: None, CP: 1, EP: 2, ETP: 1" in run.text
        assert [change["finding"]["id"] for change in run.changes()] == []
        assert "nothing found" in run.text
        assert list((tmp_path / "out").rglob("checkpoint-6"))
        replayed = json.loads(diag("replay", str(run.run_dir), "--json").stdout)
        assert replayed["job"]["state"] == "finished"
        assert (
            replayed["job"]["ranks_seen"],
            replayed["job"]["iteration"],
            replayed["job"]["total_iterations"],
        ) == (2, 6, 6)


def test_hang_at_epoch_0_is_named_dumped_and_when_released_the_job_finishes(tmp_path: Path) -> None:
    command = [
        *MEGATRON,
        "--iters",
        "4",
        "--output-dir",
        str(tmp_path / "out"),
        "--fault",
        "data-hang:rank=1,step=0",
    ]
    with live_run(tmp_path, command) as run:
        change = run.until(run.hang, 300)
        finding = change["finding"]

        assert "[INFO:swift] The training of Epoch 0 starts..." in run.text
        assert (finding["class"], finding["ranks"], finding["waiting_ranks"]) == ("data_loading", [1], [0])
        assert finding["cause"] == "dataloader_worker_blocked"
        assert change["at"] - finding["since"] <= 60
        url = run.run_json()["url"]
        assert fetch(f"{url}/findings")["job"]["state"] == "hung"
        dump = diag("dump", "--all-ranks", "--run-dir", str(run.run_dir))
        assert dump.returncode == 10
        assert (
            "rank 1: data in" in dump.stdout
            and "rank 0: collective in" in dump.stdout
            and "fetch.py" in dump.stdout
        )

        release(tmp_path)
        code = run.wait(200)

        assert code == 0, run.text[-3000:]
        assert [change["change"] for change in run.changes()] == ["opened", "resolved"]
