"""`--feed slurm` with the real scontrol, as a user who is neither root nor Slurm's administrator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.outputs.feeds.feed import Told
from diag.outputs.feeds.slurm import FEED
from tests.cluster.slurm import machine
from tests.feeds.facts import GPU, HANG, change, opened, over

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.fixture(scope="module")
def slurm() -> Iterator[machine.Cluster]:
    reason = machine.why_not()
    if reason:
        pytest.skip(reason)
    with machine.cluster() as found:
        yield found


@pytest.fixture
def job(slurm: machine.Cluster, tmp_path: Path) -> Iterator[machine.Job]:
    done = slurm.run(*NOBODY, "sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--wrap=sleep 300")
    assert done.returncode == 0, done.stderr
    found = machine.Job(slurm, tmp_path, done.stdout.strip())
    found.until(lambda: found.facts()["JobState"] == "RUNNING", 60)
    yield found
    slurm.run("scancel", found.number)


@pytest.fixture
def as_nobody(
    slurm: machine.Cluster, job: machine.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The variables of the job, in which scontrol is the real one of another user."""
    program = tmp_path / "scontrol"
    words = " ".join(NOBODY)
    program.write_text(f'#!/bin/sh\nexec {words} /usr/bin/env PATH="${{PATH#*:}}" scontrol "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}:{slurm.environment['PATH']}"
    monkeypatch.setenv("PATH", path)
    return {
        **slurm.environment,
        "PATH": path,
        "SLURM_JOB_ID": job.number,
        "SLURM_NODEID": "0",
        "SLURMD_NODENAME": "n1",
    }


def comment(slurm: machine.Cluster, job: machine.Job) -> str:
    lines = slurm.run("scontrol", "show", "job", job.number).stdout.splitlines()
    return next((line.strip() for line in lines if line.startswith("   Comment=")), "")


def test_comment_comes_and_says_that_it_is_over(
    slurm: machine.Cluster, job: machine.Job, as_nobody: dict[str, str]
) -> None:
    for telling, shown in (
        (opened(change(HANG)), "Comment=diag: CRITICAL hang (data_loading): rank 3"),
        (over(change(HANG, "resolved", at=1060.0)), "Comment=diag: resolved: hang (data_loading): rank 3"),
    ):
        payload = FEED.payload(telling, {}, as_nobody)

        assert FEED.send(payload, {}, as_nobody) == Told(True, "accepted")
        assert comment(slurm, job) == shown


def test_users_own_comment_stays(slurm: machine.Cluster, job: machine.Job, as_nobody: dict[str, str]) -> None:
    slurm.run("scontrol", "update", f"JobId={job.number}", "Comment=paper, table 3")

    told = FEED.send(FEED.payload(opened(change(HANG)), {}, as_nobody), {}, as_nobody)

    assert told.text == "the job has a comment of somebody else, which stays"
    assert comment(slurm, job) == "Comment=paper, table 3"


def test_file_is_an_exclude_list_for_the_next_job_of_a_chain(
    slurm: machine.Cluster, job: machine.Job, as_nobody: dict[str, str], tmp_path: Path
) -> None:
    """docs/howto/feeds.md: what a batch script does with the file, by the rights that the job's user has."""
    file = tmp_path / "exclude"
    options = {"exclude-file": str(file)}
    FEED.send(FEED.payload(opened(change(GPU)), options, as_nobody), options, as_nobody)
    nodes = file.read_text().strip()
    submit = (
        *NOBODY,
        "sbatch",
        "--parsable",
        f"--dependency=afternotok:{job.number}",
        "--output=/dev/null",
        "--chdir=/",
    )

    again = machine.Job(
        slurm, tmp_path, slurm.run(*submit, f"--exclude={nodes}", "--wrap=true").stdout.strip()
    )
    chained = machine.Job(slurm, tmp_path, slurm.run(*submit, "--wrap=true").stdout.strip())
    done = slurm.run(*NOBODY, "scontrol", "update", f"JobId={chained.number}", f"ExcNodeList={nodes}")

    assert done.returncode == 0, done.stderr
    assert [one.facts()["ExcNodeList"] for one in (again, chained)] == ["n1", "n1"]
    slurm.run("scancel", again.number, chained.number)


def test_running_job_takes_no_exclude_list_and_no_admin_comment_of_its_user(
    slurm: machine.Cluster, job: machine.Job
) -> None:
    """Why the feed writes a file and the plain comment."""
    for setting, why in (("ExcNodeList=n1", "no longer pending"), ("AdminComment=x", "denied")):
        done = slurm.run(*NOBODY, "scontrol", "update", f"JobId={job.number}", setting)
        assert done.returncode != 0 and why in done.stdout + done.stderr
