"""What listens, who reaches it, and what another user of the machine can do to the ranks: tried against a
live run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from diag.launch.inject import STACK_SIGNAL
from tests.liverun import LiveRun
from tests.security.secretrun import TOKEN, get, processes

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("secrets")]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
_LISTEN, _BOUND = "0A", "07"  # include/net/tcp_states.h; of UDP: an unconnected socket


def sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process holds."""
    found = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link)):
                    found.add(match[1])
    return found


def listening(pids: list[int]) -> set[tuple[str, str]]:
    """(protocol, address in the kernel's hexadecimal) of all on which these processes take what others send."""
    inodes = set().union(*(sockets(pid) for pid in pids))
    found = set()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pids[0]}/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes and words[3] == (_LISTEN if name.startswith("tcp") else _BOUND):
                found.add((name, words[1].partition(":")[0]))
    return found


def as_nobody(program: str) -> list[str]:
    """Lines that a program of user nobody prints. All is imported before: Python itself may lie where nobody
    may not look."""
    drop = (
        "import ctypes, os, socket, diag.launch.runs\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", drop + program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_only_this_machine_can_reach_diag_and_only_one_socket_listens(run: LiveRun) -> None:
    pids = [process.pid for process in processes(run)]

    assert len(pids) > 5  # the hub, its helpers, a launcher and three ranks
    assert listening(pids) == {("tcp", "0100007F")}


def test_unix_sockets_that_listen_are_in_the_run_directory_alone(run: LiveRun) -> None:
    assert run.run_dir is not None
    inodes = set().union(*(sockets(process.pid) for process in processes(run)))
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    named = [row[7] for row in rows if row[6] in inodes and len(row) > 7]

    # An abstract name (@...) could be reached by every user of the network namespace.
    assert [name for name in named if not name.startswith(str(run.run_dir))] == []


@pytest.mark.parametrize("sent", [b"", b"GET /findings HTTP/1.1\r\nHost: 127"], ids=["silent", "half a head"])
def test_thousand_idle_connections_keep_nobody_out_and_cost_the_hub_few_files(
    run: LiveRun, sent: bytes
) -> None:
    told = run.run_json()
    port, hub = urlsplit(told["url"]).port, psutil.Process(told["hub_pid"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    before, most = hub.num_fds(), 0
    with contextlib.ExitStack() as opened:
        for number in range(1000):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            connection.sendall(sent)
            if number % 50 == 0:
                most = max(most, hub.num_fds())
        began = time.monotonic()
        assert get(run, "/healthz") == b'{"status":"ok"}'
        assert time.monotonic() - began < 8.0  # and not only once the first of them are closed, after 10 s
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert most - before < 200  # 64 that are kept, some that were just taken, some on their way out


@as_root
def test_another_user_cannot_make_a_rank_write_stacks_nor_trace_it(run: LiveRun) -> None:
    ranks = [int(path.name.split(".")[1]) for path in (run.run_dir or Path()).glob("hook.*.json")]
    assert len(ranks) == 3

    said = as_nobody(f"""
libc = ctypes.CDLL(None, use_errno=True)
for pid in {ranks}:
    try:
        os.kill(pid, {STACK_SIGNAL}); print("ALLOWED signal")
    except PermissionError:
        print("refused signal")
    print("ALLOWED ptrace" if libc.ptrace(16, pid, 0, 0) == 0 else "refused ptrace")  # PTRACE_ATTACH
    for name in ("mem", "environ", "maps", "stack"):
        try:
            open(f"/proc/{{pid}}/{{name}}", "rb").read(1); print("ALLOWED", name)
        except OSError:
            print("refused", name)
""")

    assert (
        said
        == [
            "refused signal",
            "refused ptrace",
            "refused mem",
            "refused environ",
            "refused maps",
            "refused stack",
        ]
        * 3
    )


@as_root
def test_another_user_can_neither_open_nor_replace_anything_of_the_run(run: LiveRun) -> None:
    assert run.run_dir is not None
    inside = [str(path) for path in run.run_dir.rglob("*")]
    assert len(inside) > 10

    said = as_nobody(f"""
for path in {inside!r}:
    for act in (lambda: open(path, "rb"), lambda: open(path, "ab"), lambda: os.rename(path, path + "x"),
                lambda: os.symlink("/etc/passwd", path + "y"), lambda: socket.socket(socket.AF_UNIX).connect(path)):
        try:
            act(); print("ALLOWED", path)
        except OSError:
            pass
print("done")
""")

    assert said == ["done"]


@as_root
def test_another_user_does_not_find_the_run_nor_its_token(run: LiveRun) -> None:
    said = as_nobody(f"""
os.environ["HOME"] = "/nonexistent"
print([path for path, told in diag.launch.runs.live_in(diag.launch.runs.places({str(run.root)!r}))])
for pid in {[process.pid for process in processes(run)]}:
    try:
        words = open(f"/proc/{{pid}}/cmdline", "rb").read()
    except OSError:
        continue
    if {TOKEN.encode()!r} in words: print("TOKEN in ps")
""")

    assert said == ["[]"]


def test_ranks_let_nobody_but_diag_trace_them(run: LiveRun) -> None:
    """Under Yama 1 the hook names one process, never PR_SET_PTRACER_ANY. Without Yama it asks for nothing."""
    assert run.run_dir is not None
    hub = run.run_json()["hub_pid"]
    told = [json.loads(path.read_text()) for path in run.run_dir.glob("hook.*.json")]

    assert len(told) == 3
    assert {each.get("ptracer", hub) for each in told} <= {
        hub,
        *(child.pid for child in psutil.Process(hub).children()),
    }
