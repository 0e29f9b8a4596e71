"""One drill: deploy/jobs/tiny/run.sh under `diag run` on some of the GPUs; what was said, when, and how long
a dump took."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.labs.gauntlet.run import judge_benign, judge_fault
from tests.liverun import live_run

from .drills import Drill

__all__ = ["RUN", "environment", "keep_evidence", "run_drill"]

RUN = Path(__file__).resolve().parents[3] / "deploy" / "jobs" / "tiny" / "run.sh"
_START_SECONDS = 120.0  # to the fault; half a minute where nothing is wrong with the drill
_KEPT = ("journal-*", "findings.jsonl", "run.json", "sidecars.log", "verdict*")


def environment(gpus: Sequence[int], port: int, folder: Path) -> dict[str, str]:
    """Jobs side by side on one machine: each its GPUs, of those that we may use, its ports and its folders."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = [visible[gpu].strip() for gpu in gpus] if visible != [""] else list(map(str, gpus))
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(names),
        "GPUS": str(len(gpus)),
        "MASTER_PORT": str(port),
        "NCCL_RAS_ADDR": f"localhost:{port + 1000}",
        "OUTPUT": str(folder / "out"),
        "OMP_NUM_THREADS": "4",
    }


def run_drill(drill: Drill, gpus: Sequence[int], port: int, keep: Path) -> dict[str, Any]:
    """The row of the results. Evidence goes to `keep`; nothing that the drill started lives on."""
    began = time.monotonic()
    # short: a UNIX socket's path has 107 characters
    folder = Path(tempfile.mkdtemp(prefix="gd-", dir="/tmp"))
    trial = drill.trial()
    env = {**environment(gpus, port, folder), **drill.variables}
    if drill.fault:
        env["FAULT"] = drill.fault
    row: dict[str, Any] = {
        "drill": drill.name,
        "gpus": list(gpus),
        "fault": drill.fault,
        "variables": dict(drill.variables),
    }
    try:
        with live_run(folder, ["bash", str(RUN)], *drill.options, env=env) as run:
            row |= (
                judge_fault(trial, drill.truths(), run, None, _START_SECONDS)
                if drill.fault
                else judge_benign(trial, run)
            )
            row["struck_at"] = run.struck_at()
    except Exception as error:
        row |= {"ok": False, "error": f"{type(error).__name__}: {error}"[-3000:]}
    row["seconds"] = round(time.monotonic() - began, 1)
    kept = keep / drill.name.replace(" ", "-")
    keep_evidence(folder, kept)
    (kept / "row.json").write_text(json.dumps(row, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    return row


def keep_evidence(folder: Path, kept: Path) -> None:
    """What job and diag said in a run below `folder`."""
    kept.mkdir(parents=True, exist_ok=True)
    for path in [
        folder / "terminal.txt",
        *folder.glob("steps-*.txt"),
        *(p for run in folder.glob("runs/*") for p in _said(run)),
    ]:
        if path.is_file():
            shutil.copy(path, kept)


def _said(run: Path) -> Iterator[Path]:
    for pattern in _KEPT:
        yield from run.glob(pattern)
