"""Run directories as `diag run` leaves them, made without a run."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

GONE = 2**22 + 1  # no kernel gives this pid


def finding(
    id: str = "hang",
    *,
    ranks: tuple[int, ...] = (3,),
    severity: str = "critical",
    klass: str = "",
    change: str = "opened",
    **more: Any,
) -> dict[str, Any]:
    """A line of findings.jsonl."""
    told = {"id": id, "subject": "job", "class": klass, "severity": severity, "ranks": list(ranks)}
    return {"change": change, "at": 2.0, "finding": told, **more}


def facts(**given: Any) -> dict[str, Any]:
    """facts.json of a run on one node with two GPUs."""
    return {
        "schema": "diag.facts/1",
        "ended_at": 1795000100.0,
        "cwd": "/job",
        "iteration": 20,
        "total_iterations": 20,
        "world_size": 2,
        "ranks_here": 2,
        "hosts": ["gpu-7"],
        "gpus": [
            {"index": 0, "uuid": "GPU-a", "name": "H100"},
            {"index": 1, "uuid": "GPU-b", "name": "H100"},
        ],
        "versions": {"python": "3.11", "nccl": "2.27.5"},
        "packages": {"torch": "2.12.0", "numpy": "2.0"},
        "environment": {"NCCL_DEBUG": "INFO"},
        "transports": None,
        "phases": {"model_load": 30.0, "steady": 60.0},
        "steps": {"count": 19, "p5": 0.5, "median": 0.5, "p95": 0.6},
        "culprits": [],
        **given,
    }


def run_dir(
    root: Path,
    number: int = 1,
    *,
    found: tuple[dict[str, Any], ...] = (),
    told: dict[str, Any] | None = None,
    **given: Any,
) -> Path:
    """One that has ended with exit code 0, the later the higher its number."""
    path = root / f"2026010{1 + number // 1000000}-{number % 1000000:06d}-0a1b2c"
    path.mkdir(parents=True)
    data = {
        "schema": "diag.run/1",
        "run_id": path.name,
        "hub_pid": GONE,
        "pid": GONE,
        "host": socket.gethostname(),
        "argv": ["python", "train.py"],
        "started_at": 1795000000.0 + number,
        "ended": True,
        "returncode": 0,
        **given,
    }
    (path / "run.json").write_text(json.dumps(data))
    if found:
        (path / "findings.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
    if told is not None:
        (path / "facts.json").write_text(json.dumps(told))
    return path


def own_ticks() -> int:
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def living(root: Path, number: int = 1, **given: Any) -> Path:
    """One whose hub is this process."""
    return run_dir(
        root, number, ended=False, returncode=None, hub_pid=os.getpid(), hub_start_ticks=own_ticks(), **given
    )
