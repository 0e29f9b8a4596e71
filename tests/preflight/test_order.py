"""In which order doctor prints its lines, and that JSON has them in the order of the checks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diag.preflight import Line, sorted_lines
from diag.preflight.plan import interfaces_here

ORDER = ["problem", "not checked", "note", "ok"]
TEXT = """\
apiVersion: v1
kind: Pod
metadata: {name: train-0}
spec:
  restartPolicy: Always
  containers:
  - name: trainer
    image: swift
    command: [bash, -c, "NPROC_PER_NODE=2 swift sft --model m"]
    resources: {limits: {nvidia.com/gpu: 2}}
---
apiVersion: v1
kind: Pod
metadata: {name: train-1}
spec:
  restartPolicy: Never
  containers:
  - name: trainer
    image: swift
    command: [bash, -c, "NPROC_PER_NODE=1 swift sft --model m"]
    resources: {limits: {nvidia.com/gpu: 1}}
    volumeMounts: [{name: shm, mountPath: /dev/shm}]
  volumes: [{name: shm, emptyDir: {medium: Memory}}]
"""


def doctor(*words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "diag", "doctor", *words], capture_output=True, text=True, check=False
    ).stdout


def test_what_has_to_be_done_stands_first_and_what_is_well_last(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(TEXT)

    rows = doctor("--manifest", str(tmp_path)).splitlines()
    checks = json.loads(doctor("--json", "--manifest", str(tmp_path)))["checks"]

    statuses = [
        next(status for status in ORDER if row.startswith(status))
        for row in rows
        if row.startswith(tuple(ORDER))
    ]
    assert {"problem", "ok"} <= set(statuses) and statuses == sorted(statuses, key=ORDER.index)
    assert rows[-1].startswith(f"{statuses.count('problem')} problems: ") and rows[-2] == ""
    assert sorted(statuses) == sorted(check["status"] for check in checks)


def test_critical_problems_come_before_others_and_else_the_order_stays() -> None:
    worst = Line("c", "problem", "3", severity="critical")
    lines = [Line("a", "problem", "1"), Line("b", "ok", "2"), worst, Line("d", "problem", "4")]

    assert [line.what for line in sorted_lines(lines)] == ["c", "a", "d", "b"]


def test_who_gives_up_waiting_is_told_what_was_seen() -> None:
    own = [
        place.ip
        for card in interfaces_here()
        for place in card.addresses
        if card.name != "lo" and "." in place.ip
    ]
    if not own:
        pytest.skip("no address but loopback")
    words = (
        "torchrun",
        "--nnodes",
        "2",
        "--node_rank",
        "0",
        "--master_addr",
        own[0],
        "--master_port",
        "29533",
        "t.py",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "diag", "doctor", "--no-load", "--wait", "600", "--", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while process.poll() is None and not _listens(29533):
        os.sched_yield()
    process.send_signal(signal.SIGINT)

    out = process.communicate(timeout=60)[0]

    assert process.returncode == 130 and "shared memory" in out and "rendezvous" in out


def _listens(port: int) -> bool:
    wanted = f":{port:04X} "
    return any(
        wanted in line and " 0A " in line
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()
    )
