"""Limits that a process has come to, as the kernel shows them; nothing of one that is below them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from diag.sources.stacks import reached

JOB = """
import os, resource, sys
path, size, limit, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
fd = os.open(path, os.O_WRONLY | os.O_CREAT)
os.ftruncate(fd, size)
held = []
try:
    while files:
        held.append(os.dup(0))
except OSError:
    pass
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("size", "limit", "files", "kinds"),
    [
        (4096, 4096, 0, ["file_size"]),
        (4095, 4096, 0, []),
        (10, 4096, 16, ["open_files"]),
    ],
)
def test_limit_that_is_reached_is_read(
    tmp_path: Path, size: int, limit: int, files: int, kinds: list[str]
) -> None:
    path = tmp_path / "masks.bin"
    command = [sys.executable, "-c", JOB, str(path), *map(str, (size, limit, files))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdin is not None and job.stdout is not None and job.stdout.readline() == b"ready\n"
        rows = reached.read(job.pid, lambda text: text)
        job.stdin.close()

    assert [row["kind"] for row in rows] == kinds
    if kinds == ["file_size"]:
        assert (rows[0]["path"], rows[0]["value"]) == (str(path), 4096)
    assert [one.kind for one in reached.reached_of(rows)] == kinds


def test_of_a_process_that_is_gone_nothing_is_said() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as job:
        job.wait()

    assert reached.read(job.pid, lambda text: text) == []
