"""What has started the ranks of a machine, and whether a Python program was among what it started and has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from diag.model import Record
from diag.model.observations import StarterSeen
from diag.sources.host import starters
from diag.sources.stacks import program

SCRIPT = """
n=$(grep -c x /etc/passwd)
{before}
for rank in 0 1; do
    RANK=$rank {python} -c 'import os, sys; os.write(1, b"up\\n"); sys.stdin.read()' <&0 &
    echo $!
done
wait
"""


def started(tmp_path: Path, before: str = "true") -> tuple[dict[str, object] | None, int]:
    script = tmp_path / "launch.sh"
    script.write_text(SCRIPT.format(python=sys.executable, before=before))
    with subprocess.Popen(
        ["bash", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdin is not None and job.stdout is not None
        lines = [job.stdout.readline().strip() for _ in range(4)]
        assert lines.count("up") == 2
        pids = [int(line) for line in lines if line.isdecimal()]
        found = starters.read(dict(enumerate(pids)))
        fewer = starters.read({0: pids[0]})
        assert fewer is not None and fewer["alone"] is False, "another Python program of it lives"
        job.stdin.close()
    return found, job.pid


def test_script_that_has_started_two_ranks_has_started_no_third(tmp_path: Path) -> None:
    found, pid = started(tmp_path)

    assert found is not None
    assert (found["pid"], found["ranks"], found["alone"]) == (pid, [0, 1], True)
    assert str(found["command"]).startswith("bash ")
    assert 0 < int(str(found["ended_faults"])) < 700


def test_a_rank_that_ended_at_once_is_seen_in_what_the_ended_ones_had(tmp_path: Path) -> None:
    found, _ = started(tmp_path, before=f"{sys.executable} /nowhere/train.py 2> /dev/null")

    assert found is not None and int(str(found["ended_faults"])) >= 700


def test_diag_itself_is_no_starter() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as rank:
        found = starters.read({0: rank.pid})
        rank.communicate(b"\\n")
    assert found is None
    assert starters.read({}) is None


def test_what_was_read_comes_back_as_a_fact() -> None:
    payload = {
        "pid": 7,
        "command": "bash launch.sh",
        "files": {},
        "started": {"ranks": [0, 1], "ended_faults": 382, "alone": True},
    }
    (seen,) = program.parse(Record(program.SOURCE, payload, rank=0))
    assert seen == StarterSeen(0, 7, "bash launch.sh", (0, 1), 382, alone=True)


def test_where_pages_are_larger_nothing_is_said_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB on some aarch64: a start has a fraction of the faults, and would pass for none."""
    with subprocess.Popen(["sh", "-c", f"{sys.executable} -c 'input()'; true"], stdin=subprocess.PIPE) as job:
        rank = wait_for_child(job.pid)
        assert starters.read({0: rank}) is not None
        monkeypatch.setattr(os, "sysconf", lambda name: 65536 if name == "SC_PAGE_SIZE" else 100)
        found = starters.read({0: rank})
        monkeypatch.undo()
        job.communicate(b"\n")
    assert found is None


def wait_for_child(pid: int) -> int:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if children := psutil.Process(pid).children():
            return children[0].pid
        time.sleep(0.02)
    raise AssertionError("no child came")
