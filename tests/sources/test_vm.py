"""Memory and variables of another user's process, for who may ptrace it and nothing else."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from diag.sources.host.process_tree import read_environ
from diag.sources.host.vm import read_memory

# Becomes user 4243 with SYS_PTRACE alone, or with nothing, and reads.
_READER = """
import ctypes, json, os, struct, sys
from diag.sources.stacks.remote_stack.memory import Memory
from diag.sources.host.process_tree import read_environ
pid, keep = int(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(8, 1) == 0  # PR_SET_KEEPCAPS
os.setgroups([])
os.setresgid(4243, 4243, 4243)
os.setresuid(4243, 4243, 4243)
head, data = struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", keep << 19, keep << 19, 0, 0, 0, 0)
assert libc.capset(head, data) == 0
environ = read_environ(pid)
try:
    opened = bool(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
except OSError:
    opened = False
start = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[47])
try:
    kept = Memory(pid).read(start, 9).decode()
except PermissionError:
    kept = None
print(json.dumps({"mark": (environ or {}).get("MARK"), "opened": opened, "memory": kept}))
"""
# Becomes user 4242, and open to that user again (PR_SET_DUMPABLE), as if it had been started by it.
_RANK = """
import ctypes, os, sys
os.setgroups([])
os.setresgid(4242, 4242, 4242)
os.setresuid(4242, 4242, 4242)
assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0
def waits_here():
    print(flush=True)
    sys.stdin.read()
waits_here()
"""


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """Of user 4242."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make processes of two other users")
    process = subprocess.Popen(
        [sys.executable, "-c", _RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"MARK": "here"}
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def read_as_another(pid: int, keep: int) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", _READER, str(pid), str(keep)], capture_output=True, text=True, check=True
    )
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_own_memory_is_what_it_is() -> None:
    kept = ctypes.create_string_buffer(b"forty-two bytes")

    assert read_memory(os.getpid(), ctypes.addressof(kept), 5) == b"forty"


def test_nothing_mapped_and_nobody_there_are_told_apart() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()

    for pid, number in ((os.getpid(), errno.EFAULT), (gone.pid, errno.ESRCH)):
        with pytest.raises(OSError) as refused:
            read_memory(pid, 4096, 1)
        assert refused.value.errno == number


def test_sys_ptrace_alone_reads_variables_and_memory_of_another_user(rank: subprocess.Popen[bytes]) -> None:
    told = read_as_another(rank.pid, keep=1)

    assert told == {"mark": "here", "opened": False, "memory": "MARK=here"}


def test_another_user_without_it_reads_nothing(rank: subprocess.Popen[bytes]) -> None:
    told = read_as_another(rank.pid, keep=0)

    assert told == {"mark": None, "opened": False, "memory": None}


def test_variables_of_a_process_that_is_gone_are_none() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()

    assert read_environ(gone.pid) is None
