"""`diag run` around a scenario's job, inside the machine: until what it must find is found, or for long enough to find it."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from tests.rdma.guest import network
from tests.rdma.guest.shell import until
from tests.rdma.scenarios import Scenario

_RUNS = Path("/runs")
_FIND_SECONDS = 45.0  # under emulation, where diag's own start takes 5 s
_QUIET_SECONDS = 15.0  # of a scenario that must find nothing, from when both ranks are seen to train


def watch(scenario: Scenario) -> dict[str, Any]:
    """{"changes": lines of findings.jsonl, "terminal": what was printed, "exit": code, "run": the run directory (tar, base64)}."""
    root, terminal = _RUNS / scenario.name, Path(f"/tmp/{scenario.name}.txt")
    words = [sys.executable, "-m", "diag", "run", "--port", "0", "--run-root", str(root), "--",
             sys.executable, "-m", "tests.rdma.guest.job", scenario.name]  # fmt: skip
    root.mkdir(parents=True)
    _RUNS.chmod(0o777)
    if scenario.down is not None:
        network.set_link(scenario.down, up=False)
    with open(terminal, "wb") as file:
        diag = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True)
    problem = ""
    try:
        text = lambda: terminal.read_text("utf-8", "replace")  # noqa: E731
        until(lambda: "[rank0] iteration" in text() and "[rank1] iteration" in text(), 60, "two ranks that train")
        began = time.monotonic()
        if scenario.wanted:
            until(lambda: {wanted.id for wanted in scenario.wanted} <= _open(root), _FIND_SECONDS, "what must be found")
        until(lambda: time.monotonic() - began > _QUIET_SECONDS, _QUIET_SECONDS + 5, "time")
    except TimeoutError as error:
        problem = str(error)
    finally:
        diag.send_signal(signal.SIGTERM)
        try:
            diag.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(diag.pid, signal.SIGKILL)
            problem += "; diag run did not end within 30 s of SIGTERM"
        if scenario.down is not None:
            network.set_link(scenario.down, up=True)
    return {"changes": _changes(root), "terminal": text()[-6000:], "exit": diag.returncode, "problem": problem, "run": _packed(root)}


def _environment() -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1"}


def _changes(root: Path) -> list[dict[str, Any]]:
    lines = []
    for path in root.glob("*/findings.jsonl"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # torn: it is being written
                lines.append(json.loads(line))
    return lines


def _open(root: Path) -> set[str]:
    return {change["finding"]["id"] for change in _changes(root) if change["change"] != "resolved"}


def _packed(root: Path) -> str:
    """The run directory; sockets and what may still be written to are left to themselves."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                tar.add(path, path.relative_to(root), recursive=False)
    return base64.b64encode(buffer.getvalue()).decode()
