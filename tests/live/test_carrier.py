"""The carrier and the hub of one run: what the hub's end costs, and what is left when either has gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from diag.launch.runs import is_alive
from tests.liverun import DIAG, live_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

# Prints, waits for a file, prints again, and ends with 7.
JOB = """
import os, sys, time
print("before", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print("after", flush=True)
sys.exit(7)
"""


def test_output_and_exit_code_come_through_when_the_hub_is_killed(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    with live_run(tmp_path, [sys.executable, "-c", JOB, str(go_on)]) as run:
        told = run.run_json()
        run.until(lambda: "before" in run.text, 30)

        os.kill(told["hub_pid"], signal.SIGKILL)
        run.until(lambda: "the hub ended while CMD was running (SIGKILL)" in run.text, 30)
        go_on.touch()

        assert run.wait(30) == 7
        assert [line for line in run.text.splitlines() if not line.startswith("diag")] == ["before", "after"]
        assert f"diag watch --pid {told['pid']}" in run.text and "Traceback" not in run.text


def test_hub_and_its_sidecars_end_when_the_carrier_is_killed_and_the_job_goes_on(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    with live_run(tmp_path, [sys.executable, "-c", JOB, str(go_on)], env=rank) as run:
        told = run.run_json()
        hub = psutil.Process(told["hub_pid"])
        run.until(lambda: any("diag.agent.sidecar" in child.cmdline() for child in hub.children()), 60)
        ours = [hub, *hub.children(recursive=True)]

        run.process.kill()

        assert psutil.wait_procs(ours, timeout=30)[1] == []
        assert is_alive(told["pid"], told["pid_start_ticks"])
        go_on.touch()
        assert run.run_dir is not None
        log = run.run_dir / "output.log"
        psutil.wait_procs([psutil.Process(told["pid"])] if psutil.pid_exists(told["pid"]) else [], timeout=30)
        assert log.read_text() == "before\nafter\n"


def test_ended_run_takes_no_more_disk_than_it_holds(tmp_path: Path) -> None:
    with live_run(tmp_path, ["sh", "-c", "echo out"]) as run:
        assert run.wait(60) == 0
        assert run.run_dir is not None
        taken = {path.name: path.stat().st_blocks * 512 for path in run.run_dir.rglob("*") if path.is_file()}

    assert sum(taken.values()) < 256 << 10, taken


def test_command_that_cannot_be_started_leaves_no_run_directory(tmp_path: Path) -> None:
    done = subprocess.run([*DIAG, "run", "--no-http", "--run-root", str(tmp_path), "--", "/no/such/command"], check=False,
                          capture_output=True, text=True, timeout=60)  # fmt: skip

    assert (done.returncode, done.stderr.count("\n")) == (127, 1), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_settings_that_cannot_be_used_end_diag_before_cmd(tmp_path: Path) -> None:
    done = subprocess.run([*DIAG, "run", "--", "touch", str(tmp_path / "ran")], check=False, capture_output=True, text=True,
                          env={**os.environ, "DIAG_STACK_SECONDS": "soon"}, timeout=60)  # fmt: skip

    assert done.returncode == 2 and done.stderr.startswith("error: settings cannot be used: stack_seconds")
    assert not (tmp_path / "ran").exists()


def test_hub_finds_what_diag_needs_where_only_pythonpath_leads_to_it(tmp_path: Path) -> None:
    """An interpreter without packages of its own, diag and its needs in two folders: a copy on a shared disk."""
    here, needs = Path(__file__).parents[2], Path(psutil.__file__).parents[1]
    python: str = sys._base_executable  # type: ignore[attr-defined]
    command = [python, "-S", "-m", "diag", "run", "--no-http", "--run-root", str(tmp_path), "--"]
    env = {**os.environ, "PYTHONPATH": f"{here}:{needs}"}

    done = subprocess.run([*command, "sh", "-c", "echo out; exit 7"], check=False, capture_output=True, text=True, env=env,
                          cwd=tmp_path, timeout=60)  # fmt: skip

    assert (done.returncode, done.stdout) == (7, "out\n"), done.stderr
    assert "watching pid" in done.stderr and "unwatched" not in done.stderr
