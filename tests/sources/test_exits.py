from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import RankExited, Unparsed
from diag.sources.host import exits
from diag.sources.host.exits import ExitWatch, parse

# How a parent that is not us treats its child: `reap` waits at once, `leave` keeps the zombie, `ignore` lets
# the kernel reap it with no zombie at all.
PARENT = """
import os, signal, subprocess, sys
if sys.argv[1] == "ignore":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen(["sh", "-c", sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
input()
child.stdin.write("\\n"); child.stdin.close()
if sys.argv[1] == "reap":
    os.waitpid(child.pid, 0)
    print("reaped", flush=True)
sys.stdin.readline()
"""
ENDS = {
    "exit 0": ("exit 0", 0, None),
    "exit 3": ("exit 3", 3, None),
    "SIGKILL": ("kill -9 $$", None, 9),
    "SIGTERM": ("kill -15 $$", None, 15),
}


def kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


@contextmanager
def child_of_another(treatment: str, end: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    code = f"echo; read line; {end}"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, treatment, code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    try:
        yield parent, int(parent.stdout.readline())
    finally:
        parent.communicate()


def let_it_end(parent: subprocess.Popen[str]) -> None:
    assert parent.stdin is not None
    parent.stdin.write("\n")
    parent.stdin.flush()


def exited(payload: Any) -> RankExited:
    (found,) = parse(Record("exits", payload, rank=2))
    assert isinstance(found, RankExited) and found.rank == 2
    return found


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("treatment", ["leave", "reap", "ignore"])
def test_end_of_a_process_that_is_not_our_child_is_told(how: str, treatment: str) -> None:
    if treatment != "leave" and kernel() < (6, 15):
        pytest.skip("before Linux 6.15 nobody can tell once it was reaped")
    code, exit_code, number = ENDS[how]
    with child_of_another(treatment, code) as (parent, pid):
        watch = ExitWatch(pid)
        assert watch.wait(timeout=0) is None

        let_it_end(parent)
        found = exited(watch.wait(timeout=20))
        watch.close()

    assert (found.pid, found.exit_code, found.signal) == (pid, exit_code, number)
    if treatment == "leave":
        assert found.how == "zombie"
    if treatment == "ignore":
        assert found.how == "pidfd"


def test_end_is_told_also_when_asked_after_it_was_reaped() -> None:
    with child_of_another("reap", "exit 3") as (parent, pid):
        watch = ExitWatch(pid)
        let_it_end(parent)
        assert parent.stdout is not None and parent.stdout.readline() == "reaped\n"

        found = exited(watch.wait(timeout=20))
        again = exited(watch.wait(timeout=0))
        watch.close()

    assert found == again
    assert (found.exit_code, found.how) in ((3, "pidfd"), (None, "reaped before it could be read"))


@pytest.mark.parametrize("how", ENDS)
def test_kernel_without_pidfds_tells_it_from_the_zombie(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    code, exit_code, number = ENDS[how]
    with child_of_another("leave", code) as (parent, pid):
        watch = ExitWatch(pid)
        assert watch.wait(timeout=0) is None
        let_it_end(parent)
        found = exited(watch.wait(timeout=20))
        watch.close()

    assert (found.exit_code, found.signal, found.how) == (exit_code, number, "zombie")


def test_process_already_gone_is_said_to_be_gone_at_once() -> None:
    process = subprocess.Popen(["true"])
    process.wait()

    found = exited(ExitWatch(process.pid).wait())

    assert (found.exit_code, found.signal, found.how) == (None, None, "gone before it was watched")


def test_process_already_a_zombie_still_tells() -> None:
    process = subprocess.Popen(["sh", "-c", "exit 3"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    found = exited(ExitWatch(process.pid).wait(timeout=20))
    process.wait()

    assert (found.exit_code, found.how) == (3, "zombie")


def test_reused_pid_is_not_taken_for_the_process_that_was_meant() -> None:
    watch = ExitWatch(os.getpid(), start_ticks=1)

    found = exited(watch.wait(timeout=0))
    watch.close()

    assert found.how == "gone before it was watched"


def test_living_process_is_waited_for_only_as_long_as_told() -> None:
    watch = ExitWatch(os.getpid())

    assert watch.wait(timeout=0.01) is None
    watch.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_zero_that_the_kernel_shows_to_strangers_is_not_taken_for_success() -> None:
    # given a reader of another user, and our child that ends with code 3
    target = subprocess.Popen(["sh", "-c", "read line; exit 3"], stdin=subprocess.PIPE)
    code = f"""
import json, os
from diag.sources.host import exits
from diag.sources.host.exits import ExitWatch
os.setgroups([]); os.setgid(65534); os.setuid(65534)
watch = ExitWatch({target.pid})
print("watching", flush=True)
print(json.dumps(watch.wait(20)), flush=True)
"""
    home = str(Path(__file__).parents[2])
    reader = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": home},
    )
    assert reader.stdout is not None and target.stdin is not None
    assert reader.stdout.readline() == "watching\n"
    target.stdin.close()
    found = exited(json.loads(reader.stdout.readline()))
    reader.communicate()
    target.wait()

    assert (found.exit_code, found.signal) == (None, None)
    assert "hidden" in found.how


def test_core_dump_bit_is_no_part_of_the_signal() -> None:
    # given the wait status of a process that dumped core at SIGSEGV
    found = exited({"pid": 5, "status": 11 | 0x80, "how": "zombie"})

    assert (found.exit_code, found.signal) == (None, 11)


def test_pidfd_info_has_the_size_of_the_kernels_first_version() -> None:
    assert exits._PIDFD_INFO.size == 64  # PIDFD_INFO_SIZE_VER0
    assert exits._PIDFD_GET_INFO == 0xC040FF0B


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(deadline=None, max_examples=60)
@given(
    JSON
    | st.fixed_dictionaries({}, optional={"pid": JSON, "status": JSON | st.integers(0, 70000), "how": JSON})
)
def test_parse_raises_for_nothing(payload: Any) -> None:
    found = list(parse(Record("exits", payload)))

    assert found and all(isinstance(item, (RankExited, Unparsed)) for item in found)
