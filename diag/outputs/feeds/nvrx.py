"""NVIDIA Resiliency Extension: the file by which `ft_launcher --ft-segment-health-check-dir` leaves a Slurm allocation out
of its next rendezvous (NVRx 0.7, "Segment Health Check").

A file of any content means: unhealthy; an empty one or none: go on. So it is written only for what is certain, critical
and about this node or its GPUs, and it has a line for each node that says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from diag.outputs.feeds.account import is_certain
from diag.outputs.feeds.feed import (
    Environment,
    Feed,
    Options,
    Telling,
    Told,
    cut,
    is_replaced,
    of_this_node,
    title,
)

_LINE_BYTES = 1024  # ours: NVRx does not read it, people do


def lacking(options: Options, environment: Environment) -> str:
    folder = options.get("dir", "")
    if not folder:
        return "the directory is not given: nvrx:dir=DIR, as --ft-segment-health-check-dir has it"
    if not Path(folder).is_absolute():
        return f"{folder} is not absolute, as NVRx wants it"
    return "" if _unit(environment) else "this is no job of Slurm: SLURM_JOB_ID is not set"


def payload(telling: Telling, options: Options, environment: Environment) -> dict[str, str] | None:
    """The file, and this node's line of it: empty where nothing is wrong with the node any more."""
    if not any(
        of_this_node(one["finding"], telling.host) and not is_replaced(one) for one in telling.changes
    ):
        return None
    wrong = [one for one in telling.open if of_this_node(one, telling.host) and is_certain(one)]
    line = {
        "by": "diag", "host": telling.host, "run": telling.run.get("run_dir", ""), "since": wrong[0]["since"],
        "finding": title(wrong[0]), "summary": cut(wrong[0]["summary"], _LINE_BYTES),
    } if wrong else {}  # fmt: skip
    return {
        "file": str(Path(options["dir"]) / f"segment_health_check.{_unit(environment)}"),
        "host": telling.host,
        "line": json.dumps(line) if line else "",
    }


def send(payload: dict[str, str], options: Options, environment: Environment) -> Told:
    """Lines of other nodes, and what is not diag's, stay."""
    path = Path(payload["file"])
    try:
        if not payload["line"] and not path.exists():
            return Told(True, "nothing to take back")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with open(fd, "r+", encoding="utf-8", errors="replace") as file:
            with contextlib.suppress(OSError):  # a file system without locks: two nodes seldom write at once
                fcntl.flock(file, fcntl.LOCK_EX)
            lines = [line for line in file.read().splitlines() if line and not _is_of(line, payload["host"])]
            lines += [payload["line"]] if payload["line"] else []
            file.seek(0)
            file.truncate()
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Told(False, f"{path} cannot be written: {error.strerror}", again=True)
    return Told(True, f"{'written' if payload['line'] else 'taken back'}: {path}")


def _is_of(line: str, host: str) -> bool:
    try:
        found: Any = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("by") == "diag" and found.get("host") == host


def _unit(environment: Environment) -> str:
    """Job and task, as NVRx names the file: of an array its own, of another job twice the job's. Empty without one."""
    if array := environment.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}.{environment.get('SLURM_ARRAY_TASK_ID', '')}"
    job = environment.get("SLURM_JOB_ID", "")
    return f"{job}.{job}" if job else ""


FEED = Feed("nvrx", ("dir",), lacking, payload, send, acts=lambda options: True)
