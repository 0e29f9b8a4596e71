"""`diag run --feed` with real processes: what the controllers are told, and that none of them touches the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.feeds.apiserver import Cluster
from tests.feeds.facts import GPU, HANG, change
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


def test_file_or_variable_lets_no_controller_act(runs: Runs, tmp_path: Path) -> None:
    runs.environment |= {"SLURM_JOB_ID": "4711"}

    process = runs.start(job="exit 5", DIAG_FEED=f"nvrx:dir={tmp_path}")
    assert process.wait(60) == 5
    assert "nothing goes to the feed nvrx: a controller may act on it" in runs.terminal

    process = runs.start("--feed", f"nvrx:dir={tmp_path}", job="exit 5")
    assert process.wait(60) == 5
    assert "findings to nvrx" in runs.terminal


def test_feed_of_the_settings_file_is_taken_and_a_wrong_one_does_not_stop_the_job(runs: Runs) -> None:
    (runs.folder / "diag.toml").write_text('[feed]\nto = ["kubernets", "slurm"]\nper_hour = 5\n')
    (runs.folder / "diag.toml").chmod(0o600)

    process = runs.start(job="exit 5")

    assert process.wait(60) == 5
    assert "diag: nothing will be fed: there is no feed kubernets" in runs.terminal


class Told:
    """The notifier beside a hub that this test plays: what it writes into findings.jsonl is told."""

    def __init__(self, folder: Path, account: Path, environment: dict[str, str], per_hour: int = 60) -> None:
        self.folder = folder / "run"
        self.folder.mkdir()
        task = {
            "run_dir": str(self.folder), "addresses": [], "check": False, "on_finding": [], "cwd": "/", "per_hour": 10,
            "run": {"run_id": "r-1", "host": "gpu-17", "hub_pid": os.getpid(), "pid": os.getpid(), "started_at": 1000.0},
            "feeds": [[f"kubernetes:account={account}", "kubernetes", False]], "feed_per_hour": per_hour, "lang": "en",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "diag.outputs.notify.process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment},
        )  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task).encode() + b"\n")
        self.process.stdin.flush()

    def tell(self, *changes: dict[str, Any]) -> None:
        with open(self.folder / "findings.jsonl", "a") as file:
            file.write("".join(f"{json.dumps(one)}\n" for one in changes))

    def end(self, returncode: int = 1) -> str:
        """What it said."""
        (self.folder / "run.json").write_text(
            json.dumps({"schema": "diag.run/1", "ended": True, "returncode": returncode})
        )
        return self.process.communicate(timeout=60)[0].decode()


@pytest.fixture
def told(
    request: pytest.FixtureRequest, kube: tuple[Cluster, dict[str, str]], account: Path, tmp_path: Path
) -> Iterator[Told]:
    made = Told(tmp_path, account, kube[1], getattr(request, "param", 60))
    yield made
    made.process.kill()
    made.process.communicate()


def test_what_resolves_is_told_and_the_pod_is_healthy_again(
    kube: tuple[Cluster, dict[str, str]], told: Told
) -> None:
    told.tell(change(HANG))
    kube[0].wait(lambda: kube[0].conditions.get("diag/Healthy", {}).get("status") == "False")
    told.tell(change(HANG, "resolved", at=1060.0))
    kube[0].wait(lambda: kube[0].conditions["diag/Healthy"]["status"] == "True")

    assert told.end() == ""
    assert [event["action"] for event in kube[0].events.values()] == ["Found", "Resolved"]
    assert "feed of finding to kubernetes: accepted" in (told.folder / "notify.log").read_text()


@pytest.mark.parametrize("told", [1], indirect=True)
def test_of_what_comes_too_often_the_newest_is_told_at_the_end(
    kube: tuple[Cluster, dict[str, str]], told: Told
) -> None:
    told.tell(change(HANG))
    kube[0].wait(lambda: kube[0].conditions)
    told.tell(
        change(GPU), change(GPU, "resolved"), *(change(HANG, "updated", ranks=[3, *range(n)]) for n in (1, 2))
    )

    assert told.end() == ""
    notes = [event["note"] for event in kube[0].events.values()]
    assert [note.partition(": rank 3 waits")[0] for note in notes] == [
        "hang (data_loading): rank 3",
        "hang (data_loading): ranks 0-1, 3",
    ]
