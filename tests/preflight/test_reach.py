"""Meeting on a port: what else may listen there, or knock."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from diag.launch.ports import owner_of
from diag.preflight.rendezvous_probe import Met, connect, listen, resolve

ME = {"node_rank": 1, "nodes": 2, "host": "b"}


@pytest.fixture
def place() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def port_of(place: socket.socket) -> int:
    return int(place.getsockname()[1])


def knock(place: socket.socket, *messages: bytes) -> None:
    def talk() -> None:
        for message in messages:
            with contextlib.suppress(OSError), socket.create_connection(place.getsockname()[:2], 5) as peer:
                peer.recv(100)
                peer.sendall(message)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(100)

    threading.Thread(target=talk, daemon=True).start()


def test_two_meet_and_tell_each_other_who_they_are(place: socket.socket) -> None:
    came: list[Met | None] = []
    server = threading.Thread(
        target=lambda: came.extend(listen(place, 10, 1, {"node_rank": 0, "nodes": 2, "host": "a"}))
    )
    server.start()

    outcome = connect("127.0.0.1", port_of(place), 10, dict(ME))
    server.join(10)

    assert outcome.how == "reached" and outcome.met is not None
    assert of_who(outcome.met) == Met(0, 2, "a", "127.0.0.1", "127.0.0.1")
    assert [of_who(met) for met in came if met is not None] == [Met(1, 2, "b", "127.0.0.1", "127.0.0.1")]


def of_who(met: Met) -> Met:
    """Without the clocks, which test_clock compares."""
    return replace(met, ahead_seconds=None, unsure_seconds=0.0)


@pytest.mark.parametrize(
    "message",
    [b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"{\n", b"\xff" * 5000, b'{"node_rank": "x"', b"null\n"],
)
def test_who_speaks_otherwise_is_counted_and_not_believed(place: socket.socket, message: bytes) -> None:
    knock(place, message)

    assert next(listen(place, 10, 1, {})) is None


def test_values_of_a_wrong_kind_are_left_out(place: socket.socket) -> None:
    knock(place, b'{"node_rank": "1", "nodes": 1e99, "host": ["h"]}\n')

    found = next(listen(place, 10, 1, {}))

    assert found is not None and (found.node_rank, found.nodes, found.host) == (None, None, "['h']")


def test_node_that_comes_twice_is_one(place: socket.socket) -> None:
    knock(
        place,
        b'{"node_rank": 1, "host": "b"}\n',
        b'{"node_rank": 1, "host": "b"}\n',
        b'{"node_rank": 2, "host": "c"}\n',
    )

    assert [met.node_rank for met in listen(place, 10, 2, {}) if met is not None] == [1, 2]


def test_waiting_ends_in_time(place: socket.socket) -> None:
    began = time.monotonic()

    assert list(listen(place, 0.3, 1, {})) == []
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("greeting", "said"), [(b"SSH-2.0-OpenSSH_9\r\n", "SSH-2.0"), (None, "closed the connection")]
)
def test_another_program_on_the_port_is_a_stranger(
    place: socket.socket, greeting: bytes | None, said: str
) -> None:
    def answer() -> None:
        peer, _ = place.accept()
        with peer:
            if greeting:
                peer.sendall(greeting)

    threading.Thread(target=answer, daemon=True).start()

    outcome = connect("127.0.0.1", port_of(place), 5, dict(ME))

    assert outcome.how == "stranger" and said in outcome.said


def test_program_that_waits_for_words_hears_none(place: socket.socket) -> None:
    heard: list[bytes] = []

    def hear() -> None:
        peer, _ = place.accept()
        with peer:
            heard.append(peer.recv(100))

    server = threading.Thread(target=hear)
    server.start()

    assert connect("127.0.0.1", port_of(place), 5, dict(ME)).how == "stranger"
    server.join(5)
    assert heard == [b""]  # it was closed, and nothing was said


def test_closed_port_is_refused_and_tried_again(place: socket.socket) -> None:
    port = port_of(place)
    place.close()

    once, longer = connect("127.0.0.1", port, 0, dict(ME)), connect("127.0.0.1", port, 0.7, dict(ME))

    assert (once.how, once.tries, longer.how) == ("refused", 1, "refused") and longer.tries > 1


def test_names() -> None:
    assert resolve("127.0.0.1", 1, 5) == (("127.0.0.1",), "")
    assert resolve("a name", 1, 10)[0] == () and resolve("x" * 300, 1, 10)[1]


def test_owner_of_a_port(place: socket.socket) -> None:
    found = owner_of(port_of(place))

    assert found is not None and found.pid == os.getpid() and "python" in found.command
    place.close()
    assert owner_of(1) is None


def test_owner_that_may_not_be_seen(tmp_path: Path) -> None:
    """As another user's process looks: /proc/net/tcp of Linux 6.18, no /proc/PID/fd that may be read."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 00000000:7337 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 12345 1 0 100 0 0 10 0\n"
        "   1: 0100007F:A001 0100007F:7338 01 00000000:00000000 00:00000000 00000000     0        0 777 1 0 20 4 30 10 -1\n"
        "torn"
    )

    found = owner_of(0x7337, tmp_path)

    assert found is not None and (found.pid, found.uid) == (None, 1001)
    assert owner_of(0xA001, tmp_path) is None  # a connection, nobody listens
