"""What a dump reads of a real process by /proc: open files, sockets, threads with system calls, limits, memory map."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from diag.outputs.terminal.process_text import process_texts
from diag.sources.waits.decode import format_call, parse_call
from diag.sources.waits.inventory import Inventory, kind_of, summed
from tests.blocked import Start

CODE = """
import os, socket, sys, threading
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
a = socket.create_connection(listener.getsockname()); b, _ = listener.accept()
b.send(b"unread")
one, other = socket.socketpair()
reader, writer = os.pipe()
kept = open(sys.argv[1])
threading.Thread(target=lambda: os.read(reader, 1), daemon=True).start()
ready()
while True:
    one.recv(1)
"""


def inventory_of(pid: int) -> dict[str, Any]:
    """Looked at again until its threads are where they will stay."""
    deadline = time.monotonic() + 20
    while True:
        inventory = Inventory()
        assert (inventory.read_kernel(pid), inventory.read_map(pid)) == ("", "")
        (row,) = inventory.rows()
        calls = [one.get("call", "") for one in row["threads"]["listed"]]
        if any("recv" in call for call in calls) and any(call.startswith("read(") for call in calls):
            return row
        assert time.monotonic() < deadline, calls


def test_everything_that_people_look_up_by_hand_is_there(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "shard-0.bin"
    data.write_text("x")
    pid = start(CODE, str(data))

    row = inventory_of(pid)

    files = {one["to"]: one for one in row["open_files"]["listed"]}
    assert (files[str(data)]["mode"], files[str(data)]["at"]) == ("read", 0)
    assert row["open_files"]["count"] == len(row["open_files"]["listed"]) and row["open_files"]["more"] == {}
    sockets = [one["socket"] for one in files.values() if "socket" in one]
    assert any(re.match(r"TCP LISTEN 127\.0\.0\.1:\d+, 0 of \d+ connections wait", one) for one in sockets)
    assert any(re.match(r"TCP ESTABLISHED 127.* -> 127.*, unread 6, unsent 0 bytes", one) for one in sockets)
    assert any(re.match(r"UNIX -> socket:\[\d+\], unread 0", one) for one in sockets)
    main, reader = row["threads"]["listed"]
    assert (main["tid"], main["state"]) == (pid, "S")
    assert re.match(r"recvfrom\(\d+ -> socket:\[\d+\], 0x\w+, 1, 0, 0, 0\)", main["call"])
    assert re.match(r"read\(\d+ -> pipe:\[\d+\], 0x\w+, 1\)", reader["call"])
    assert "Max open files" in row["limits"] and "\nVmRSS:" in row["status"]
    assert row["memory_map"]["bytes"]["libraries"] > 1 << 20 and row["memory_map"]["whole"]
    assert any("/libc.so" in one["path"] for one in row["memory_map"]["libraries"])
    assert row["command"].endswith(str(data)) and row["not_checked"] == []
    text = process_texts([{"rank": 3, **row}])["proc/rank3.txt"]
    assert all(
        part in text
        for part in (f"pid {pid}: ", "threads (2)", "pipe:[", "Max open files", "VmRSS", "memory map")
    )


def test_secrets_are_hidden_in_paths_and_in_the_command_line(start: Start, tmp_path: Path) -> None:
    token = "hf_" + "aB3" * 11 + "x"
    data = tmp_path / token
    data.write_text("x")
    pid = start(CODE, str(data), "--hub_token", token)

    row = inventory_of(pid)

    assert token not in repr(row)
    assert "--hub_token ***" in row["command"]


def test_beyond_the_listed_files_kinds_are_counted(start: Start) -> None:
    pid = start(
        "import os\nkept = [os.open('/dev/null', 0) for _ in range(300)]\nready()\nimport time; time.sleep(900)"
    )
    inventory = Inventory()

    inventory.read_kernel(pid)

    files = inventory.rows()[0]["open_files"]
    assert len(files["listed"]) == 256 and files["count"] > 300
    assert files["more"]["device"] >= 300 - 256
    assert sum(files["more"].values()) == files["count"] - 256


def test_what_may_not_be_read_is_not_checked_with_its_reason(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start("ready()\nimport time; time.sleep(900)")

    def refuse(path: object) -> list[str]:
        if str(path).endswith("/fd"):
            raise PermissionError(13, "Permission denied")
        return listed(path)  # type: ignore[arg-type]

    listed = os.listdir
    monkeypatch.setattr(os, "listdir", refuse)
    inventory = Inventory()

    assert inventory.read_kernel(pid) == ""

    (row,) = inventory.rows(late=["memory_map"])
    assert "open_files" not in row and row["threads"]["count"] == 1
    assert row["not_checked"] == ["open files: Permission denied", "memory_map: not finished in time"]


def test_a_process_that_has_ended_is_said_to_be_gone(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path)

    assert inventory.read_kernel(7) == "the process is gone"
    assert inventory.rows() == []


# torch 2.11 on H200, trimmed; the last two are of Linux itself
MAPS = """\
7f0000000000-7f0000100000 r-xp 00000000 00:2e 12 /usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2
7f0000100000-7f0000300000 r--p 00000000 00:2e 13 /usr/local/lib/python3.12/dist-packages/torch/lib/libtorch_cuda.so
7f0000300000-7f0000400000 rw-s 00000000 00:06 14 /dev/nvidia0
7f0000400000-7f0000500000 rw-s 00000000 00:19 15 /dev/shm/torch_812_1
7f0000500000-7f0000600000 ---p 00000000 00:00 0
7f0000600000-7f0000700000 r-xp 00000000 00:2e 16 /usr/lib/libm.so.6 (deleted)
7ffc00000000-7ffc00001000 rw-p 00000000 00:00 0 [stack]
"""


def test_memory_map_is_summed_by_kind_with_the_libraries_that_people_ask_for_first() -> None:
    found = summed(MAPS)

    mib = 1 << 20
    assert found["bytes"] == {
        "libraries": 4 * mib, "devices": mib, "shared memory": mib, "reserved": mib, "stack": 4096,
    }  # fmt: skip
    assert [one["of"] for one in found["libraries"]] == ["torch", "NCCL", ""]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("61 0xffffffffffffffff 0x7ffd 0x0 0x0 0x0 0x0 0x7ffd 0x7f3c", "wait4(-1, 0x7ffd, 0, 0)"),
        ("257 0xffffff9c 0x7f00 0x80000 0x0 0x0 0x0 0x7ffd 0x7f3c", "openat(AT_FDCWD, 0x7f00, 0x80000, 0)"),
        ("7 0x7f00 0x1 0xffffffff 0x0 0x0 0x0 0x7ffd 0x7f3c", "poll(0x7f00, 1, -1)"),
        ("999 0x1 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f3c", "call 999"),
        ("running", "running"),
    ],
)
def test_system_calls_are_shown_as_strace_does(line: str, shown: str) -> None:
    call = parse_call(line, "x86_64")
    assert call is not None
    assert format_call(call, {}) == shown


def test_kinds_of_descriptors() -> None:
    assert [kind_of(link) for link in ("socket:[1]", "/dev/shm/a", "anon_inode:[eventfd]", "?")] == [
        "socket", "file", "eventfd", "?",
    ]  # fmt: skip
