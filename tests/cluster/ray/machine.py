"""Jobs on a real Ray of our own: its session, its home and its processes are gone with the test."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.leftovers import end_all
from tests.liverun import DIAG, LiveRun, live_run

Job = LiveRun
JOBS = Path(__file__).parent / "jobs"
_MARK = "STARTED_WITH_RAY"
_STORE_BYTES = 120_000_000


@contextlib.contextmanager
def _environment(home: Path) -> Iterator[dict[str, str]]:
    """Ray's folder is not below `home`: its UNIX sockets have 107 characters for their path."""
    session = tempfile.mkdtemp(prefix="ray-")
    try:
        yield {
            "HOME": str(home),
            "RAY_TMPDIR": session,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
        }
    finally:
        shutil.rmtree(session, ignore_errors=True)


@contextlib.contextmanager
def job_under_diag(name: str, home: Path, **variables: str) -> Iterator[Job]:
    with _environment(home) as ours:
        command = [sys.executable, str(JOBS / f"{name}.py")]
        with live_run(home, command, "--lang", "en", env={**ours, **variables}) as run:
            yield run


@contextlib.contextmanager
def ray_beforehand(home: Path) -> Iterator[dict[str, str]]:
    """The environment of a driver that connects to a Ray that was started before it."""
    mark = uuid.uuid4().hex
    with _environment(home) as ours:
        environment = {**os.environ, **ours, _MARK: mark}
        options = (
            "--num-cpus=4",
            "--include-dashboard=false",
            f"--object-store-memory={_STORE_BYTES}",
            "--port=0",
        )
        program = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", *options]
        try:
            subprocess.run(
                program,
                env=environment,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=120,
            )
            yield {**environment, "RAY_ADDRESS": "auto"}
        finally:
            end_all(_MARK, mark)


def report_of_watch(home: Path, environment: dict[str, str], driver: int) -> dict[str, Any]:
    """What `diag watch` on a driver finds within two minutes."""
    options = (
        "--pid",
        str(driver),
        "--seconds",
        "120",
        "--json",
        "--port",
        "0",
        "--run-root",
        str(home / "runs"),
    )
    done = subprocess.run(
        [*DIAG, "watch", *options], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report
