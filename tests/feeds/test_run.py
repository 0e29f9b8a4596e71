"""`diag run --feed` with real processes: what the controllers are told, and that none of them touches the job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.feeds.apiserver import Cluster
from tests.feeds.test_slurm import Scontrol
from tests.leftovers import end_all
from tests.notify.test_run import NOTIFIER, OUT_OF_MEMORY, Runs, until

FAILS = f"echo '{OUT_OF_MEMORY}' >&2; exit 1"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    made = Runs(tmp_path, monkeypatch)
    yield made
    end_all("STARTED_BY_RUN", made.mark)


def test_finding_is_told_to_each_and_the_exit_code_is_the_jobs(
    runs: Runs, kube: tuple[Cluster, dict[str, str]], account: Path, tmp_path: Path
) -> None:
    (tmp_path / "slurm").mkdir()
    slurm = Scontrol(tmp_path / "slurm")
    runs.environment |= {**kube[1], **slurm.environment}

    process = runs.start("--feed", f"kubernetes:account={account}", "--feed", "slurm", job=FAILS)

    assert process.wait(60) == 1
    kube[0].wait(lambda: kube[0].events and kube[0].conditions)
    until(lambda: not runs.named(NOTIFIER))
    (event,) = kube[0].events.values()
    assert (event["reason"], event["type"]) == ("CudaOom", "Warning")
    assert kube[0].conditions["diag/Healthy"]["status"] == "False"
    assert slurm.comment.read_text().startswith("diag: CRITICAL cuda-oom")
    assert "findings to kubernetes and slurm" in runs.terminal


def test_silent_where_nothing_is_wrong(
    runs: Runs, kube: tuple[Cluster, dict[str, str]], account: Path
) -> None:
    runs.environment |= kube[1]

    process = runs.start("--feed", f"kubernetes:account={account}", job="exit 0")

    assert process.wait(60) == 0
    until(lambda: not runs.named(NOTIFIER))
    assert not kube[0].asked


def test_job_that_ended_well_is_complete_for_kubeflow(
    runs: Runs, kube: tuple[Cluster, dict[str, str]]
) -> None:
    runs.environment |= kube[1]

    process = runs.start("--feed", "trainjob", job="exit 0")

    assert process.wait(60) == 0
    kube[0].wait(lambda: kube[0].statuses)
    assert kube[0].statuses[-1]["progressPercentage"] == 100


def test_refusal_is_said_once_and_does_not_touch_the_job(
    runs: Runs, kube: tuple[Cluster, dict[str, str]], account: Path
) -> None:
    runs.environment |= kube[1]
    kube[0].forbidden = ("/namespaces/",)

    process = runs.start("--feed", f"kubernetes:account={account}", job=f"echo 'CUDA'; {FAILS}")

    assert process.wait(60) == 1
    until(lambda: not runs.named(NOTIFIER))
    assert runs.terminal.count("diag: the feed kubernetes did not take it: refused (HTTP 403)") == 1


def test_what_cannot_be_fed_from_here_is_said_and_the_job_runs(runs: Runs) -> None:
    runs.environment = {
        name: value
        for name, value in runs.environment.items()
        if not name.startswith(("KUBERNETES_", "SLURM_"))
    }

    process = runs.start("--feed", "kubernetes", "--feed", "slurm", job="exit 5")

    assert process.wait(60) == 5
    assert "diag: nothing goes to the feed kubernetes: this is no pod of Kubernetes" in runs.terminal
    assert "diag: nothing goes to the feed slurm: this is no job of Slurm" in runs.terminal


def test_feed_of_the_settings_file_is_taken_and_a_wrong_one_does_not_stop_the_job(runs: Runs) -> None:
    (runs.folder / "diag.toml").write_text('[feed]\nto = ["kubernets", "slurm"]\nper_hour = 5\n')
    (runs.folder / "diag.toml").chmod(0o600)

    process = runs.start(job="exit 5")

    assert process.wait(60) == 5
    assert "diag: nothing will be fed: there is no feed kubernets" in runs.terminal
