"""What another user of the machine can take of the page on loopback, without a token: never all. With a real
second user."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from diag.agent.flames import FlameRecorder
from diag.model import Placement
from diag.outputs.http.asker import uid_of
from diag.outputs.http.server import Server, serve
from diag.outputs.view.view import FlameWanted
from tests.outputs.conftest import FakeHub, tell_job

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
NOBODY = 65534
TOKEN = "t" * 32
BUSY = "def busy_function():\n  print('ready', flush=True)\n  while True: sum(range(1000))\nbusy_function()"


@dataclass
class RecordingHub(FakeHub):
    """Its rank 0 is a real process, which py-spy records."""

    pid: int = 0
    flames: FlameRecorder = field(default_factory=FlameRecorder)

    async def flame(self, place: Placement, wanted: FlameWanted) -> bytes:
        return await self.flames.record(Placement(place.rank, 0, 1, "node0", self.pid), wanted)


@pytest.fixture
def server() -> Iterator[Server]:
    hub = RecordingHub()
    tell_job(hub, 2)
    rank = psutil.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    assert rank.stdout.readline() == b"ready\n"
    hub.pid = rank.pid
    server = serve(hub)
    yield server
    server.stop()
    hub.flames.close()
    rank.kill()
    rank.wait()
    rank.stdout.close()


@contextlib.contextmanager
def stranger(program: str, *words: object, drop: bool = True) -> Iterator[Any]:
    """A process of user nobody, after its first line. It has `socket`, `os` and `ask(path, method)`, which
    sends a request."""
    head = f"""
import encodings.idna, os, socket, sys
if {drop}: os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
def ask(path, method="GET", *headers):
    one = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
    one.sendall("\\r\\n".join([f"{{method}} {{path}} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode())
    return one
"""
    command = [sys.executable, "-c", head + program, *map(str, words)]
    process = psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def status(server: Server, path: str, method: str = "GET", **headers: str) -> int:
    """Of a request of our own user, whose answer is not waited for."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse().status
    connection.close()
    return answer


HOLD = """
held = [ask(sys.argv[2]) for _ in range(int(sys.argv[3]))]
print(*[one.recv(12)[9:].decode() for one in held], flush=True)
sys.stdin.read()
"""


def test_streams_of_another_user_leave_half_of_the_places_to_the_owner(server: Server) -> None:
    with stranger(HOLD, server.port, "/events", 40) as other:
        got = other.stdout.readline().split()
        own = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(16)]
        for one in own:
            one.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        heard = [one.recv(12) for one in own]
        over = status(server, "/events")
        for one in own:
            one.close()

    assert got == ["200"] * 16 + ["503"] * 24
    assert heard == [b"HTTP/1.1 200"] * 16
    assert over == 503  # 32 in all


def test_requests_under_way_of_another_user_leave_half_of_the_connections_to_the_owner(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """70 who wait for a dump, each on a connection of its own, of which the server has 64."""
    program = """
held = [ask("/dump", "POST") for _ in range(70)]
print("asked", flush=True)
sys.stdin.read()
"""

    async def slow(self: FakeHub, deadline: float, **how: Any) -> dict[str, Any]:
        await asyncio.sleep(60)
        return {}

    monkeypatch.setattr(FakeHub, "dump", slow)
    with stranger(program, server.port) as other:
        assert other.stdout.readline() == "asked\n"
        told = [status(server, path) for path in ("/state", "/findings", "/events", "/ranks")]

    assert told == [200] * 4


def py_spies() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # gone since it was listed
            found += [each] if "py-spy" in each.name() else []
    return found


def until(is_so: Any, seconds: float) -> float:
    """How long it took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)
    return time.monotonic() - began


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("drop", [False, True], ids=["own user", "other user"])
def test_recording_ends_when_who_asked_for_it_has_gone(server: Server, method: str, drop: bool) -> None:
    ask = (
        'one = ask("/ranks/0/flame?seconds=300", sys.argv[2])\nprint("asked", flush=True)\nsys.stdin.read()\n'
    )
    with stranger(ask, server.port, method, drop=drop) as other:
        other.stdout.readline()
        until(py_spies, 20)
    took = until(lambda: not py_spies(), 20)  # and reaped, or it would be among the children

    assert took < 3.0  # a busy machine; 0.2 s here
    assert status(server, "/ranks/0/flame?seconds=1&format=collapsed") == 200


def test_recording_of_another_user_ends_for_one_of_the_owner_and_not_the_other_way_round(
    server: Server,
) -> None:
    ask = """
one = ask("/ranks/0/flame?seconds=300")
print("asked", flush=True)
print(one.recv(1000).decode().splitlines()[0], flush=True)
again = ask("/ranks/0/flame?seconds=1")
print(again.recv(1000).decode().splitlines()[0], flush=True)
"""
    with stranger(ask, server.port) as other:
        other.stdout.readline()
        until(py_spies, 20)
        began = time.monotonic()
        own = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        own.request("GET", "/ranks/0/flame?seconds=3&format=collapsed")
        ended = other.stdout.readline()
        refused = other.stdout.readline()
        answer = own.getresponse()
        text = answer.read()
        own.close()

    assert answer.status == 200 and b"busy_function" in text
    assert time.monotonic() - began < 20.0
    assert ended.startswith("HTTP/1.1 503") and refused.startswith("HTTP/1.1 503")


COSTLY = [
    "/ranks/0/flame?seconds=1&native=true",
    "/dump?native=true",
    "/dump?deadline=60",
    "/dump?scope=node",
]


@pytest.mark.parametrize("path", COSTLY)
def test_another_user_cannot_have_ranks_stopped_nor_dumps_held_up(server: Server, path: str) -> None:
    with stranger(HOLD, server.port, path, 1) as other:
        got = other.stdout.readline().split()

    assert got == ["403"]
    assert status(server, path) in (200, 503)  # ours: 503 where this machine allows no ptrace


@pytest.mark.parametrize("path", ["/dump", "/ranks/0/flame?seconds=1&format=collapsed", "/state"])
def test_another_user_gets_what_costs_ranks_nothing(server: Server, path: str) -> None:
    with stranger(HOLD, server.port, path, 1) as other:
        assert other.stdout.readline().split() == ["200"]


def test_bearer_of_the_token_owns_the_run_whoever_it_is() -> None:
    hub = FakeHub(token=TOKEN)
    tell_job(hub, 1)
    server = serve(hub)
    program = f"""
one = ask("/dump?native=true", "POST", "Authorization: Bearer {TOKEN}")
print(one.recv(12).decode(), flush=True)
"""
    try:
        with stranger(program, server.port) as other:
            assert other.stdout.readline() == "HTTP/1.1 200\n"
    finally:
        server.stop()


# --- whose a connection is
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_kernel_says_whose_the_other_end_is(host: str) -> None:
    family = socket.AF_INET6 if host == "::1" else socket.AF_INET
    listener = socket.socket(family)
    listener.bind(("::1" if host == "::1" else "127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    connect = f"""
one = socket.socket(socket.AF_INET6 if ":" in {host!r} else socket.AF_INET)
one.connect(({host!r}, int(sys.argv[1])))
print("there", flush=True)
sys.stdin.readline()
one.close()
print("closed", flush=True)
sys.stdin.read()
"""
    with stranger(connect, port) as other, listener:
        accepted, client = listener.accept()
        here = accepted.getsockname()
        told = uid_of(client[:2], here[:2])
        other.stdout.readline()
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "closed\n"
        after = uid_of(client[:2], here[:2])
        accepted.close()

    assert told == NOBODY
    assert after is None  # the kernel shows a closed socket as root's


ROW = "   0: 0100007F:8000 0100007F:2387 {} 00000000:00000000 00:00000000 00000000 {:>5}        0 {} 1 0000 20 4 30 10 -1\n"
ROWS = [(("01", 1000, 77), 1000), (("05", 0, 0), None), (("01", 0, 0), None), (("08", 7, 77), None)]


@pytest.mark.parametrize("row, told", ROWS)
def test_socket_that_has_no_owner_any_more_is_nobodys(
    tmp_path: Path, row: tuple[str, int, int], told: int | None
) -> None:
    (tmp_path / "tcp").write_text("  sl  local_address ...\n" + ROW.format(*row))

    assert uid_of(("127.0.0.1", 0x8000), ("127.0.0.1", 9095), tmp_path) == told
    assert uid_of(("127.0.0.1", 0x8001), ("127.0.0.1", 9095), tmp_path) is None
    assert uid_of(("a name", 0x8000), ("127.0.0.1", 9095), tmp_path) is None
    assert uid_of(("127.0.0.1", 0x8000), ("127.0.0.1", 9095), tmp_path / "none") is None
