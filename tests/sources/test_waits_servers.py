"""Connections that nobody has accepted: real sockets, TCP and UNIX, and servers that are at something else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.detectors.hang.kernel_causes import kernel_cause
from diag.detectors.hang.wait_text import format_chain
from tests.blocked import Start, chain, starting, until

# Serves one connection at a time: the next one is accepted when the one before is closed.
SERVER = """
import socket, sys, threading
where = sys.argv[1]
server = socket.socket(socket.AF_UNIX) if where else socket.socket()
server.bind(where or ("127.0.0.1", 0)); server.listen(int(sys.argv[2]))
open(sys.argv[3], "w").write(where or str(server.getsockname()[1]))
{more}
ready()
{serve}
"""
ONE_AT_A_TIME = "while True:\n    one, _ = server.accept()\n    while one.recv(99): one.send(b'ok')"
CLIENT = """
import socket, sys
where = sys.argv[1]
one = socket.socket(socket.AF_UNIX if "/" in where else socket.AF_INET)
one.connect(where if "/" in where else ("127.0.0.1", int(where)))
one.send(b"?")
if sys.argv[2] == "first": assert one.recv(9) == b"ok"
ready()
one.recv(9)
"""


@pytest.fixture
def start() -> Iterator[Start]:
    with starting() as started:
        yield started


def serve(  # noqa: PLR0917 - as short as it is
    start: Start, tmp_path: Path, where: str, loop: str, more: str = "", backlog: int = 5
) -> tuple[int, str]:
    place = tmp_path / "place"
    pid = start(SERVER.format(serve=loop, more=more), where, str(backlog), str(place))
    return pid, place.read_text()


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_server_that_still_reads_from_another_connection_is_found_behind_one_not_accepted(
    start: Start, tmp_path: Path, family: str
) -> None:
    server, where = serve(start, tmp_path, str(tmp_path / "s") if family == "unix" else "", ONE_AT_A_TIME)
    first = start(CLIENT, where, "first")
    second = start(CLIENT, where, "second")

    read, thread = until(second, f"{family}_receive", when=lambda read, one: one.wait.not_accepted > 0)
    found = chain(read, second)
    assert [other.pid for other in thread.wait.others] == [server]
    assert kernel_cause(found) == "connection_not_accepted"
    assert [step.process.pid for step in found.steps][:2] == [second, server]
    assert found.steps[1].wait.pids == {first}
    words = format_chain(found)
    assert f"a connection not accepted yet by pid {server} (" in words
    assert ", which waits for data from " in words and f"pid {first} (" in words
    # the first one's is accepted, and it waits for an answer as anybody does
    _, thread = until(first, f"{family}_receive")
    assert (thread.wait.not_accepted, thread.wait.pids) == (0, {server})


def test_server_that_computes_before_it_accepts_is_found_at_work(start: Start, tmp_path: Path) -> None:
    """Its main thread alone: others of a pool wait for work."""
    pool = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    server, where = serve(start, tmp_path, "", "while True: pass", pool)
    client = start(CLIENT, where, "second")

    read, _ = until(client, "tcp_receive", when=lambda read, one: one.wait.not_accepted > 0)
    found = chain(read, client)
    assert (found.end, found.last.process.pid) == ("computes", server)


def test_queue_that_is_full_lets_nobody_connect(start: Start, tmp_path: Path) -> None:
    server, where = serve(start, tmp_path, "", "import time\ntime.sleep(900)", backlog=0)
    start(CLIENT, where, "second")
    late = start(f"ready()\n{CLIENT}", where, "second")

    _, thread = until(late, "tcp_connect", when=lambda read, one: one.wait.not_accepted > 0)
    assert thread.wait.pids == {server}


def test_connection_is_accepted_when_a_thread_of_the_server_has_it(start: Start, tmp_path: Path) -> None:
    each = (
        "import time\ndef answer(one): time.sleep(900)\n"
        "while True: threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()"
    )
    server, where = serve(start, tmp_path, "", each)
    client = start(CLIENT, where, "second")

    _, thread = until(
        client, "tcp_receive", when=lambda read, one: one.wait.pids == {server} and not one.wait.not_accepted
    )
    assert thread.wait.not_accepted == 0
