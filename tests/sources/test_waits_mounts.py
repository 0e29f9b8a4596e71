"""A file system of our own that stops answering: the mount is asked by a child, which may be lost."""

from __future__ import annotations

import os
import time

import pytest

from diag.detectors.hang.kernel_causes import kernel_cause
from diag.detectors.hang.wait_text import format_chain
from diag.model import Record
from diag.model.observations.waits import WaitsRead
from diag.sources.waits import SOURCE, WaitReader, mounts, parse
from tests.blocked import LOOK, Start, chain

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK), reason="needs root and FUSE"
)

# linux/fuse.h: fuse_in_header, fuse_out_header, fuse_init_out, fuse_attr_out, fuse_kstatfs. It serves its root folder,
# and of that, as told, its statfs; every other request waits for ever.
SERVER = """
import ctypes, os, struct, subprocess, sys, time
c = ctypes.CDLL(None, use_errno=True)
assert c.unshare(0x20000) == 0 and c.mount(None, b"/", None, 0x44000, None) == 0  # a private mount namespace
fuse, at = os.open("/dev/fuse", os.O_RDWR), sys.argv[1]
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
assert c.mount(b"t", at.encode(), b"fuse", 0, options) == 0, ctypes.get_errno()
def serve():
    while True:
        data = os.read(fuse, 1 << 20)
        _, code, unique = struct.unpack_from("=IIQ", data)
        if code == 26: body = struct.pack("=IIIIHHIIHHI28x", 7, 31, 4096, 0, 8, 8, 4096, 1, 1, 0, 0)
        elif code == 3: body = struct.pack("=QII QQQQQQ IIIIIIIIII", 0, 0, 0, 1, *[0] * 8, 0o40755, 2, *[0] * 6)
        elif code == 17 and sys.argv[2] == "answers": body = struct.pack("=QQQQQIIII24x", *[9] * 9)
        else: continue
        os.write(fuse, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)
if not os.fork(): serve()
os.close(fuse); ready()
subprocess.run([at + "/a"]) if sys.argv[2] == "program" else os.stat(at + "/a")
"""


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_ANSWER_SECONDS", 0.5)


def look(reader: WaitReader) -> WaitsRead:
    (read,) = parse(Record(SOURCE, reader.sample(LOOK), 0, "node", time.time()))
    return read


def until(reader: WaitReader, answers: bool) -> WaitsRead:
    deadline = time.monotonic() + 20
    while True:
        read = look(reader)
        wait = chain(read, reader.pid).last.wait
        if wait.kind == "file_io" and wait.mount_answers is answers:
            return read
        assert time.monotonic() < deadline, wait


def children() -> set[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())


def test_mount_that_does_not_answer_is_asked_once_and_named(
    start: Start, tmp_path: object, patience: None
) -> None:
    reader = WaitReader(pid := start(SERVER, f"{tmp_path}", "silent"))
    before = children()
    read = until(reader, False)

    found = chain(read, pid)
    assert (found.last.wait.mount, found.last.wait.file_system) == (f"{tmp_path}", "fuse")
    assert format_chain(found).endswith("(fuse), which does not answer")
    assert kernel_cause(found) == "file_system_does_not_answer"
    until(reader, False)
    (child,) = children() - before
    assert os.listdir(f"/proc/{child}/fd") == []  # nobody waits for the end of a file because of it


def test_program_on_a_mount_that_does_not_answer_is_followed_into_the_child(
    start: Start, tmp_path: object, patience: None
) -> None:
    """vfork holds the parent up until the child runs its program."""
    reader = WaitReader(pid := start(SERVER, f"{tmp_path}", "program"))
    found = chain(until(reader, False), pid)

    assert [step.wait.kind for step in found.steps] == ["vfork", "file_io"]
    assert found.last.wait.path == f"{tmp_path}/a"
    assert kernel_cause(found) == "file_system_does_not_answer"
    assert "which it has just forked, to run its program, which is in " in format_chain(found)


def test_mount_that_answers_is_no_cause(start: Start, tmp_path: object, patience: None) -> None:
    reader = WaitReader(pid := start(SERVER, f"{tmp_path}", "answers"))
    before = children()
    read = until(reader, True)

    assert kernel_cause(chain(read, pid)) == ""
    assert format_chain(chain(read, pid)).endswith("(fuse), which answers")
    assert children() == before


def test_mount_that_is_not_late_yet_is_not_said_to_be_silent(start: Start, tmp_path: object) -> None:
    reader = WaitReader(pid := start(SERVER, f"{tmp_path}", "silent"))
    deadline = time.monotonic() + 20
    while (wait := chain(look(reader), pid).last.wait).kind != "file_io":
        assert time.monotonic() < deadline, wait

    assert wait.mount_answers is None
