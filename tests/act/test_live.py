"""`diag run --on` around real jobs that hang: what is ended is ended wholly, and what is started again goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.job.conftest import need
from tests.leftovers import started
from tests.liverun import _RUN, JOB, LiveRun, live_run

pytestmark = pytest.mark.live
SMALL = [sys.executable, str(Path(__file__).parent / "small_job.py")]


def actions(run: LiveRun) -> list[tuple[str, str]]:
    assert run.run_dir is not None
    lines = (run.run_dir / "actions.jsonl").read_text().splitlines()
    return [(one["what"], one["action"]) for one in map(json.loads, lines)]


def alive(run: LiveRun) -> list[str]:
    return [" ".join(one.cmdline()) for one in started(_RUN, run._mark)]


def replayed(run: LiveRun) -> dict[str, object]:
    from diag.engine.replay import replay
    from diag.outputs.report import report

    assert run.run_dir is not None
    return report(replay([run.run_dir])[0])


@pytest.mark.timeout(280)
def test_a_job_that_hangs_twice_at_one_step_is_started_again_once_and_then_ended_wholly(
    tmp_path: Path,
) -> None:
    """With children that hear no SIGTERM, in sessions of their own, and a daemon."""
    need("torch")
    out = tmp_path / "out"
    command = [*SMALL, "20", "7", "--always", "--stubborn", "--output_dir", str(out)]
    rules = ("--on", "hang=restart:5", "--on", "hang=end:75", "--after", "1", "--grace", "1", "--no-http")
    with live_run(tmp_path, command, *rules) as run:
        assert run.wait(270) == 75
        assert alive(run) == []

        report = replayed(run)
        (attempt,) = report["attempts"]  # type: ignore[misc]
        assert (attempt["class"], attempt["ranks"], attempt["iteration"]) == ("peer_not_joined", [1], 6)
        assert attempt["resumed"] == f"with --resume_from_checkpoint {out / 'checkpoint-6'}"
        assert Path(attempt["evidence"]).exists()
        assert [one["text"].split(":")[0] for one in attempt["steps"]][:2] == [
            f"evidence is in {attempt['evidence']}",
            "acts",
        ]
        done = [(one["what"], one["action"]) for one in report["actions"]]  # type: ignore[attr-defined]
        assert done[-5:] == [(what, "end:75") for what in ("evidence", "acts", "term", "kill", "ended")]
        assert done[:2] == [("holds", "restart:5"), ("holds", "end:75")]
        (why,) = {one["text"] for one in report["actions"] if one["action"] == "restart:5"}  # type: ignore[attr-defined]
        assert "attempt 1 was ended for the same of rank 1 at step 6" in why
    assert "attempt 2 begins behind step 6" in run.text


@pytest.mark.timeout(120)
def test_a_hub_that_is_killed_ends_nothing(tmp_path: Path) -> None:
    need("torch")
    command = [*SMALL, "20", "3", "--always", "--output_dir", str(tmp_path / "out")]
    with live_run(tmp_path, command, "--on", "hang=end:75", "--after", "0", "--no-http") as run:
        hub = run.run_json()["hub_pid"]
        run.until(lambda: "'iteration': '2/20'" in run.text, 60)
        os.kill(hub, signal.SIGKILL)
        run.until(lambda: "the hub ended while CMD was running" in run.text, 30)

        assert len(alive(run)) >= 3  # the command, its ranks
        run.process.send_signal(signal.SIGTERM)
        assert run.wait(30) == -signal.SIGTERM


@pytest.mark.hardening
@pytest.mark.timeout(290)
def test_the_bundled_trainer_that_hangs_at_step_7_of_20_ends_by_itself_with_20_steps_done(
    tmp_path: Path,
) -> None:
    need("torch", "megatron.core")
    out = tmp_path / "out"
    job = [*JOB, "--nproc", "2", "--iters", "20", "--save-steps", "2", "--output-dir", str(out)]
    command = [*job, "--fault", "data-hang:rank=1,step=6"]
    with live_run(tmp_path, command, "--on", "hang=restart", "--after", "3", "--no-http") as run:
        assert run.wait(280) == 0
        assert alive(run) == []

        steps = [
            int(json.loads(line)["iteration"].split("/")[0])
            for line in (out / "logging.jsonl").read_text().splitlines()
        ]
        assert steps == list(range(1, 21))
        (attempt,) = replayed(run)["attempts"]  # type: ignore[misc]
        assert attempt["class"] == "data_loading" and attempt["ranks"] == [1]
        assert attempt["resumed"] == f"with --mcore_model {out / 'checkpoint-6'} --finetune false"
