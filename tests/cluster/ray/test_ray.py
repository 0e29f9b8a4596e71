"""Real Ray under `diag run` and beside `diag watch`: the three patterns, hung and healthy. Skipped without Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ray.machine import Job, job_under_diag, ray_beforehand, report_of_watch

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]
pytest.importorskip("ray", reason="needs Ray (requirements/cluster.txt)")
pytest.importorskip("torch", reason="needs torch (requirements/job.txt)")


def held_up(job: Job, seconds: float) -> dict[str, Any]:
    change = job.until(job.hang, seconds)
    finding: dict[str, Any] = change["finding"]
    return finding


def test_actor_whose_method_has_returned_is_named(tmp_path: Path) -> None:
    with job_under_diag("ddp", tmp_path, FAULT="skip") as job:
        found = held_up(job, 180)

    assert (found["cause"], found["ranks"], found["waiting_ranks"]) == ("ray_actor_left", [1], [0])


def test_chain_ends_at_the_reward_service(tmp_path: Path) -> None:
    with job_under_diag("ppo", tmp_path, FAULT="reward") as job:
        found = held_up(job, 300)

    assert (found["cause"], found["ranks"]) == ("ray_service_silent", [])
    assert "for Rollout.generate (pid " in found["summary"]
    assert found["summary"].rstrip().endswith("ppo.py:33)")


def test_group_that_does_not_fit_is_told_by_rays_status(tmp_path: Path) -> None:
    with job_under_diag("placement", tmp_path, FAULT="group") as job:
        found = held_up(job, 240)

    assert found["cause"] == "ray_has_no_room"
    assert "3 bundles of {CPU: 2} (PACK) (CPU: 6 in all, and the cluster has 4)" in found["summary"]


def test_actor_that_the_driver_killed_is_no_culprit(tmp_path: Path) -> None:
    with job_under_diag("ddp", tmp_path, FAULT="kill") as job:
        assert job.wait(180) == 1
        died = job.opened("rank-died")

    assert died is not None
    assert (died["finding"]["cause"], died["finding"]["ranks"]) == ("ray_killed", [1])


@pytest.mark.parametrize(("name", "steps"), [("ddp", "150"), ("ppo", "20"), ("placement", "20")])
def test_healthy_job_gives_nothing(name: str, steps: str, tmp_path: Path) -> None:
    with job_under_diag(name, tmp_path, STEPS=steps) as job:
        assert job.wait(240) == 0

    assert job.opened("hang", "held-up", "rank-died") is None


def test_job_on_a_ray_that_was_started_before_is_attached_to(tmp_path: Path) -> None:
    with ray_beforehand(tmp_path) as environment:
        job = Path(__file__).parent / "jobs" / "ddp.py"
        with subprocess.Popen(
            [sys.executable, str(job)],
            env={**environment, "FAULT": "skip"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as driver:
            report = report_of_watch(tmp_path, environment, driver.pid)
            driver.terminate()

    (found,) = [one for one in report["findings"] if one["id"] in ("hang", "held-up")]
    assert (found["cause"], found["ranks"], found["waiting_ranks"]) == ("ray_actor_left", [1], [0])


def test_without_ray_watch_says_where_to_look() -> None:
    if any(
        b"raylet" in Path(f"/proc/{pid}/comm").read_bytes() for pid in os.listdir("/proc") if pid.isdigit()
    ):
        pytest.skip("Ray runs on this machine")
    done = subprocess.run(
        [sys.executable, "-m", "diag", "watch", "--ray", "--lang", "en"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "Ray does not run on this machine" in done.stderr
