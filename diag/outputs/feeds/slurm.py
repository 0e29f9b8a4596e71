"""Slurm: the job's comment says what is open, for squeue, scontrol and sacct; on request a file with the nodes at fault,
for an exclude list.

Only what the job's own user may do: AdminComment is the administrator's, and ExcNodeList can be set of a pending job
alone. It requeues nothing: that is for `--on`, or the batch script, which can read the file (docs/howto/feeds.md).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
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
    is_node_fault,
    title,
)
from diag.text.sanitize import clean

_SECONDS = 20.0
_COMMENT_BYTES = 250  # ours: what is looked at in a column
_OURS = "diag: "


def lacking(options: Options, environment: Environment) -> str:
    if not environment.get("SLURM_JOB_ID"):
        return "this is no job of Slurm: SLURM_JOB_ID is not set"
    if options.get("comment") != "off" and shutil.which("scontrol", path=environment.get("PATH")) is None:
        return (
            "scontrol is not found: in a container mount Slurm's programs, its slurm.conf and munge's socket"
        )
    return ""


def payload(telling: Telling, options: Options, environment: Environment) -> dict[str, Any] | None:
    """None where nothing changed, and on all nodes of a job but its first: there is one comment, and node 0 has the
    findings of all."""
    if not telling.changes or telling.ends_untold or environment.get("SLURM_NODEID", "0") != "0":
        return None
    found: dict[str, Any] = {"job": environment["SLURM_JOB_ID"]}
    if options.get("comment") != "off":
        found["comment"] = cut(_OURS + _comment(telling), _COMMENT_BYTES)
    if path := options.get("exclude-file"):
        found |= {"file": path, "nodes": _nodes(telling, environment)}
    return found


def _comment(telling: Telling) -> str:
    if not telling.open:
        return f"resolved: {title(telling.changes[-1]['finding'])}"
    return clean("; ".join(f"{one['severity'].upper()} {title(one)}" for one in telling.open))


def _nodes(telling: Telling, environment: Environment) -> list[str]:
    """Slurm's names of those that a certain finding is about. The job hub's without hosts may be about any."""
    names: dict[str, None] = {}
    for one in telling.open:
        if is_node_fault(one) and is_certain(one):
            hosts = one.get("hosts") or ([] if one.get("told_by") else [telling.host])
            names.update(dict.fromkeys(_node(host, telling.host, environment) for host in hosts))
    return list(names)


def _node(host: str, own: str, environment: Environment) -> str:
    return (environment.get("SLURMD_NODENAME") if host == own else None) or host.partition(".")[0]


def send(payload: dict[str, Any], options: Options, environment: Environment) -> Told:
    told = []
    if "file" in payload:
        told.append(_write(Path(payload["file"]), ",".join(payload["nodes"])))
    if "comment" in payload:
        told.append(_set_comment(payload["job"], payload["comment"], environment))
    return Told(
        all(one.accepted for one in told), "; ".join(one.text for one in told), any(one.again for one in told)
    )


def _set_comment(job: str, comment: str, environment: Environment) -> Told:
    """Not over one that the user gave."""
    code, shown = _scontrol(environment, "show", "job", job)
    if code != 0:
        return Told(False, f"scontrol show job {job}: {shown}", again=True)
    before = re.search(r"^ +Comment=(.+?) *$", shown, re.MULTILINE)
    if before and not before[1].startswith(_OURS) and before[1] != "(null)":
        return Told(False, "the job has a comment of somebody else, which stays")
    code, said = _scontrol(environment, "update", f"JobId={job}", f"Comment={comment}")
    return Told(True, "accepted") if code == 0 else Told(False, f"scontrol update: {said}", again=True)


def _scontrol(environment: Environment, *words: str) -> tuple[int, str]:
    """Its exit code, and what it printed: on stderr where that is not 0."""
    try:
        done = subprocess.run(
            ["scontrol", *words], capture_output=True, timeout=_SECONDS, check=False, env=dict(environment),
            stdin=subprocess.DEVNULL, text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, "no answer"
    except OSError as error:
        return 1, error.strerror or "it cannot be started"
    if done.returncode == 0:
        return 0, done.stdout
    return done.returncode, clean(done.stderr.strip().rpartition("\n")[2])


def _write(path: Path, text: str) -> Told:
    """Whole or not at all: a script may read it at any time. No file where there never was a node at fault."""
    try:
        if not text and not path.exists():
            return Told(True, "no node at fault")
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.write_text(f"{text}\n" if text else "")
        new.replace(path)
    except OSError as error:
        return Told(False, f"{path} cannot be written: {error.strerror}", again=True)
    return Told(True, f"written: {path}")


FEED = Feed("slurm", ("comment", "exclude-file"), lacking, payload, send)
