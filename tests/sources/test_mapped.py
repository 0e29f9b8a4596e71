"""Files that a process has mapped, and which of them for itself alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diag.sources.stacks import mapped

JOB = """
import mmap, sys
path, access, written = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
with open(path, "r+b") as file:
    map = mmap.mmap(file.fileno(), 0, access=getattr(mmap, access))
first = map[0]
if written:
    map[5000] = 7
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@contextmanager
def process(path: Path, access: str, written: bool) -> Iterator[int]:
    command = [sys.executable, "-c", JOB, str(path), access, str(written)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdin is not None and job.stdout is not None and job.stdout.readline() == b"ready\n"
        yield job.pid
        job.stdin.close()


@pytest.mark.parametrize(
    ("access", "written", "private", "reaches_nobody"),
    [
        ("ACCESS_COPY", True, True, True),
        ("ACCESS_COPY", False, True, False),
        ("ACCESS_WRITE", True, False, False),
        ("ACCESS_READ", False, False, False),
    ],
)
def test_what_is_written_to_a_private_mapping_is_told_from_what_reaches_the_file(
    tmp_path: Path, access: str, written: bool, private: bool, reaches_nobody: bool
) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(10000))
    with process(path, access, written) as pid:
        rows = mapped.read(pid, lambda text: text)

    assert [row for row in rows if row["path"] == str(path)] == [
        {"path": str(path), "private": private, "written": reaches_nobody}
    ]
    assert not [row for row in rows if ".so" in row["path"]]  # libraries are private mappings too


def test_a_process_that_is_gone_has_none() -> None:
    assert mapped.read(2**22 + 1, lambda text: text) == []
