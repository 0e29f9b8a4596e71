"""One Slurm for all tests of this folder, and a job that ends with its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.slurm import machine

DEPLOY = Path(__file__).parents[3] / "deploy" / "slurm"
Submit = Callable[..., machine.Job]


@pytest.fixture(scope="session")
def cluster() -> Iterator[machine.Cluster]:
    reason = machine.why_not()
    if reason:
        pytest.skip(reason)
    pytest.importorskip(
        "megatron.core", reason="the job needs requirements/job.txt (make test-cluster installs it)"
    )
    with machine.cluster() as found:
        yield found


@pytest.fixture
def submit(cluster: machine.Cluster, tmp_path: Path) -> Iterator[Submit]:
    """`submit("train.sbatch", command, options, VARIABLE=value)`: the file of deploy/slurm as it is."""
    jobs = []

    def start(
        script: str, command: Sequence[str], options: Sequence[str] = (), **variables: str
    ) -> machine.Job:
        # All nodes are this machine, and their names are not in DNS.
        ours = {
            "MASTER_ADDR": "127.0.0.1",
            "NPROC_PER_NODE": "2",
            "PREFLIGHT": "0",
            "DIAG_FAULT_DIR": str(tmp_path),
        }
        jobs.append(cluster.submit(tmp_path, DEPLOY / script, options, command, **{**ours, **variables}))
        return jobs[-1]

    yield start
    for job in jobs:
        cluster.run("scancel", "--full", job.number)
        job.until(lambda job=job: not job.processes(), 60)
