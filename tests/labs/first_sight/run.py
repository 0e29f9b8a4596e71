"""One job under `diag run` with default settings: what diag said and when, and how the job ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.leftovers import end_all, started

from .rounds import Job

__all__ = ["DIAG", "cannot_be_imported", "relative", "run_job"]

# Not `python -m diag`: that would put the job's folder, with modules of its own, before diag's.
DIAG = Path(sys.executable).with_name("diag")
_MARK = "FIRST_SIGHT_JOB"
_GRACE_SECONDS = 15.0  # between SIGINT and SIGKILL
_REPLAY_SECONDS = 300.0
_DAY = 86400.0
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")
_IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException:
        print("cannot import:" + name)
"""


def cannot_be_imported(packages: Iterable[str]) -> set[str]:
    """By this interpreter, asked in a process of its own."""
    words = [sys.executable, "-c", _IMPORT, *sorted(set(packages))]
    answer = subprocess.run(words, capture_output=True, text=True, check=True)
    return set(re.findall(r"^cannot import:(.+)$", answer.stdout, re.MULTILINE))


def run_job(job: Job, place: Path, stop: threading.Event) -> dict[str, Any] | None:
    """The row of the results; None when it was broken off. Nothing that the job started lives on. `place` is
    made anew."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    folder, root = place / "job", place / "runs"
    job.copy_to(folder, sys.executable)
    mark = f"{job.name}-{uuid.uuid4().hex}"
    began = time.time()
    with open(place / "out.txt", "wb") as out:
        process = subprocess.Popen(
            [DIAG, "run", "--port", "0", "--run-root", root, "--", *job.words(sys.executable)],
            cwd=folder,
            env={**os.environ, _MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while process.poll() is None and time.time() < began + job.seconds and not stop.is_set():
            time.sleep(0.2)
        by_itself = process.poll() is not None
        seconds = time.time() - began
        killed = not by_itself and not _interrupted(process)
        if by_itself:
            time.sleep(1)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()
        left = len(started(_MARK, mark))
        end_all(_MARK, mark, 20.0)
    if stop.is_set() and not by_itself:
        return None
    run_dir = _run_dir(root)
    return {
        "name": job.name,
        "exit_code": process.returncode,
        "ended_by_itself": by_itself,
        "sigkilled": killed,
        "seconds": round(seconds, 1),
        "left_behind": left,
        "started_at": began,
        "run_dir": str(run_dir) if run_dir else None,
        "findings": relative(_changes(run_dir), began) if run_dir else [],
        **(_replay(run_dir) if run_dir else {}),
    }


def _interrupted(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ended in time after a Ctrl-C."""
    _signal(process, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    return process.returncode is not None


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, number)


def _run_dir(root: Path) -> Path | None:
    """The newest, were there several."""
    found = {path.parent for pattern in ("run.json", "journal-*") for path in root.glob(f"*/{pattern}")}
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _changes(run_dir: Path) -> list[Any]:
    changes = []
    with contextlib.suppress(OSError):
        for line in (run_dir / "findings.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):
                changes.append(json.loads(line))
    return changes


def _replay(run_dir: Path) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"}
    try:
        answer = subprocess.run(
            [DIAG, "replay", "--color", "never", run_dir],
            env={**environment, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_REPLAY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"replay_exit_code": "timeout", "replay": ""}
    return {"replay_exit_code": answer.returncode, "replay": answer.stdout.decode("utf-8", "replace")}


def relative(value: Any, began: float) -> Any:
    """With times (since the epoch, or ISO) as seconds since the job's start."""
    if isinstance(value, dict):
        return {key: relative(one, began) for key, one in value.items()}
    if isinstance(value, list):
        return [relative(one, began) for one in value]
    if isinstance(value, str) and _ISO.fullmatch(value):
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))
        seconds = at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        return value
    return round(seconds - began, 2) if abs(seconds - began) < _DAY else value
