"""deploy/slurm, run for real: the files as they are, on a Slurm of two nodes on this machine, with the
bundled job."""

from __future__ import annotations

import json
import re
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest

from diag_job.faults.runtime import release
from tests.cluster.slurm.conftest import Submit
from tests.cluster.slurm.machine import Cluster, Job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
JOB = ("python", "-m", "diag_job")
HUNG = "data-hang:rank=1,step=3"


def changes(job: Job) -> list[tuple[str, str]]:
    """What opened and was resolved, of all nodes, by what was kept of the run directories."""
    lines = [
        line for path in job.evidence.glob("*/*/findings.jsonl") for line in path.read_text().splitlines()
    ]
    return [(change["change"], change["finding"]["id"]) for change in map(json.loads, lines)]


def run_json(job: Job, node: str = "n1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(job.evidence.glob(f"{node}/*/run.json")).read_text())
    return found


def look(cluster: Cluster, job: Job) -> str:
    """`diag dump` from where nobody is in the job: the line that the job's log gives to copy."""
    line = next(line for line in job.log.splitlines() if "to look at it while it runs: " in line)
    done = cluster.run(*shlex.split(line.partition("while it runs: ")[2]))
    assert done.returncode == 10, done.stdout + done.stderr
    return done.stdout


def test_job_under_diag_ends_as_it_would_and_nothing_is_found(submit: Submit) -> None:
    job = submit("train.sbatch", [*JOB, "--iters", "6"], PREFLIGHT="1")

    assert job.ended(150) == ("COMPLETED", "0:0"), job.log
    assert "'iteration': '6/6'" in job.log
    assert "nothing found" in job.log
    # doctor had its word before
    assert re.search(r"not checked|problem|note", job.log.partition("watching pid")[0])
    assert "\nok " not in job.log
    assert changes(job) == []
    assert run_json(job)["ended"] and run_json(job)["returncode"] == 0
    token = job.evidence / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and len(token.read_text().strip()) == 32
    assert not Path(f"/tmp/diag-{job.number}-n1").exists()


def test_exit_code_of_a_job_that_fails_is_the_jobs_own(submit: Submit) -> None:
    job = submit("train.sbatch", ["bash", "-c", "exit 7"])

    assert job.ended(60) == ("FAILED", "7:0"), job.log


def test_hung_rank_is_named_in_the_log_and_dumped_from_outside_and_scancel_leaves_nothing(
    submit: Submit, cluster: Cluster
) -> None:
    job = submit("train.sbatch", [*JOB, "--iters", "200", "--fault", HUNG])
    job.until(lambda: "CRITICAL hang (data_loading)" in job.log, 120)

    assert "rank 1 has waited for a batch from DataLoader worker" in job.log
    screen = look(cluster, job)
    assert "CRITICAL hang (data_loading): rank 1;" in screen and "waiting: rank 0" in screen

    cluster.run("scancel", job.number)

    assert job.ended(60)[0] == "CANCELLED"
    job.until(lambda: not job.processes(), 30)
    # not that its ranks died: they were ended
    assert ("opened", "hang") in changes(job) and {one for _, one in changes(job)} <= {"hang", "held-up"}
    assert list(job.evidence.glob("n1/*/dumps/*.tar.gz"))
    assert "got signal: 15" in job.log  # the signal reached torchrun by itself


def test_healthy_job_that_is_cancelled_has_no_finding(submit: Submit, cluster: Cluster) -> None:
    job = submit("train.sbatch", [*JOB, "--iters", "2000"])
    job.until(lambda: "'iteration': '3/2000'" in job.log, 120)

    cluster.run("scancel", job.number)

    assert job.ended(60)[0] == "CANCELLED"
    job.until(lambda: not job.processes(), 30)
    assert changes(job) == []
    assert run_json(job)["ended"], job.log


def test_two_nodes_meet_with_no_flag_in_the_command(submit: Submit) -> None:
    # DIAG_NODES=off: both nodes are this machine, where only one hub can have the port by which hubs find
    # each other.
    command = ["torchrun", "-m", "diag_job", "--ep=2", "--iters=6"]
    job = submit("train.sbatch", command, ["--nodes=2"], NPROC_PER_NODE="1", DIAG_NODES="off")

    assert job.ended(150) == ("COMPLETED", "0:0"), job.log
    assert "0: [INFO:swift] rank: 0, local_rank: 0, world_size: 2, local_world_size: 1" in job.log
    assert changes(job) == []
    assert [run_json(job, node)["returncode"] for node in ("n1", "n2")] == [0, 0]


def test_step_beside_the_job_finds_its_ranks_and_the_job_goes_on_to_its_end(
    submit: Submit, cluster: Cluster, tmp_path: Path
) -> None:
    job = submit("watch.sbatch", [*JOB, "--iters", "10", "--fault", HUNG])
    job.until(lambda: "CRITICAL hang (data_loading)" in job.log, 120)
    steps = cluster.run("squeue", "--steps", "-h", "-j", job.number, "-o", "%i").stdout.split()
    outside = cluster.run(
        "srun",
        f"--jobid={job.number}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        "--nodelist=n1",
        "--mem=0",
        "env",
        f"DIAG_RUN_ROOT=/tmp/diag-{job.number}-n1",
        "diag",
        "dump",
        "--all-ranks",
    )

    assert {f"{job.number}.0", f"{job.number}.1"} <= set(steps)
    assert "CRITICAL hang (data_loading): rank 1;" in outside.stdout, outside.stderr
    assert "waiting: rank 0" in outside.stdout
    assert "2 of 2 ranks seen" in " ".join(outside.stdout.split())

    release(tmp_path)

    assert job.ended(150) == ("COMPLETED", "0:0"), job.log
    assert "'iteration': '10/10'" in job.log
    assert "iteration 10 of 10" in job.log  # of diag's report: it read the task's own log file
    job.until(lambda: not job.processes(), 30)


def test_ranks_that_srun_started_itself_are_watched_under_their_common_parent(submit: Submit) -> None:
    rank = (
        "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$SLURM_NTASKS "
        "exec python -m diag_job --iters=40 --ep=2"
    )
    job = submit("watch.sbatch", ["bash", "-c", rank], ["--ntasks-per-node=2"], MASTER_PORT="29517")

    assert job.ended(150) == ("COMPLETED", "0:0"), job.log
    assert "2 of 2 ranks seen" in " ".join(job.log.split())
    assert "nothing found" in job.log


def test_step_that_ends_at_once_does_not_keep_the_job_waiting_for_diag(submit: Submit) -> None:
    job = submit("watch.sbatch", ["bash", "-c", "exit 5"])

    assert job.ended(90) == ("FAILED", "5:0"), job.log
