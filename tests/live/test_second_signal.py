"""A job that is ended by SIGTERM twice, as Slurm's scancel does it: diag concludes all the same."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.liverun import DIAG

pytestmark = pytest.mark.live
# Ends by itself on SIGTERM, after more output than a pipe takes: diag must wait for its reader, and is still
# there then.
JOB = (
    "import signal, sys\nsignal.signal(15, lambda *_: (sys.stdout.write('x' * 400_000), sys.stdout.flush(), sys.exit(7)))\n"
    "print('ready', flush=True)\nwhile True: signal.pause()"
)


def until(condition: object, seconds: float = 60.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_second_sigterm_does_not_cut_off_the_last_checks_and_the_evidence(tmp_path: Path) -> None:
    words = [*DIAG, "run", "--port", "0", "--run-root", str(tmp_path), "--", sys.executable, "-u", "-c", JOB]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"

            def run_json() -> dict[str, object]:
                with contextlib.suppress(OSError, ValueError, StopIteration):
                    found: dict[str, object] = json.loads(next(tmp_path.glob("*/run.json")).read_text())
                    return found
                return {}

            until(lambda: run_json().get("url"))  # it watches
            pid = int(str(run_json()["pid"]))
            os.kill(process.pid, signal.SIGTERM)
            until(lambda: has_ended(pid))
            until(lambda: not psutil.pid_exists(pid))  # diag knows it
            assert process.poll() is None

            os.kill(process.pid, signal.SIGTERM)

            assert len(process.stdout.read()) == 400_000
            assert process.wait(60) == 7
            assert (run_json()["ended"], run_json()["returncode"]) == (True, 7)
        finally:
            process.kill()
