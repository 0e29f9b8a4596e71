"""Paired runs that go wrong: told at once, with what job and diag said kept, and nothing left stopped or
running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.labs.bench.runs import Diag, NotReady, until
from tests.labs.bench.slowdown import switch
from tests.labs.gpu import overhead

# Two ranks that make steps as quick as they can, and end after some.
_JOB = """
import os, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.labs.bench.target import Recorder
if "RANK" not in os.environ:
    env = [{{**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}} for rank in range(2)]
    sys.exit(max([child.wait() for child in [subprocess.Popen([sys.executable, __file__], env=one) for one in env]]))
recorder = Recorder(Path(os.environ["BENCH_FOLDER"]), int(os.environ["RANK"]))
for _ in range({steps}):
    recorder.lap()
    time.sleep({seconds})
print("the job's last words", flush=True)
os._exit(3)
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """job(steps, seconds): stands in for deploy/jobs/tiny/run.sh."""

    def make(steps: int, seconds: float) -> None:
        program = tmp_path / "job.py"
        program.write_text(_JOB.format(root=str(Path(__file__).parents[3]), steps=steps, seconds=seconds))
        script = tmp_path / "run.sh"
        script.write_text(f"exec {sys.executable} {program}\n")
        monkeypatch.setattr(overhead, "RUN", script)

    return make


@pytest.mark.parametrize("with_diag", [False, True], ids=["alone", "under diag"])
def test_job_that_ends_before_its_steps_is_not_waited_for_and_its_words_are_kept(
    job, with_diag: bool, tmp_path: Path
) -> None:
    job(25, 0.001)

    with pytest.raises(NotReady, match="ended with code 3 before this: 40 steps"):
        overhead._run([0, 1], 29700, 20, with_diag, tmp_path / "kept")

    assert "the job's last words" in (tmp_path / "kept" / "terminal.txt").read_text()
    assert (tmp_path / "kept" / "steps-0.txt").exists()
    assert (tmp_path / "kept" / "run.json").exists() == with_diag


def test_job_that_ends_while_diag_is_switched_is_told_with_its_exit_code(
    job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "_START_SECONDS", 60.0)
    job(400, 0.05)  # 20 s, of which 2 are for the steps; the blocks take 40

    walls, blocks = overhead._run([0, 1], 29700, 20, True, tmp_path / "kept")

    assert len(walls) == 20
    assert "ended while its cost was measured" in blocks["error"] and blocks["error"].endswith(
        "exit code of the job: 3"
    )
    assert "job failed (exit 3)" in (tmp_path / "kept" / "terminal.txt").read_text()


def test_process_that_is_gone_is_named_and_the_others_go_on() -> None:
    hub = psutil.Popen(["sleep", "1000"])
    gone = subprocess.Popen(["true"])
    gone.wait()
    try:
        with pytest.raises(
            NotReady, match=rf"a sidecar \(pid {gone.pid}\) ended while its cost was measured, after 0 pairs"
        ):
            switch(Diag(hub.pid, (gone.pid,), ()), 1, 0.01)
        until(lambda: hub.status() != psutil.STATUS_STOPPED, 10, "the hub goes on")
    finally:
        hub.kill()
        hub.wait()
