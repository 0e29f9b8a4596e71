"""The port that `diag run` gives to NCCL RAS: free, not held, and not one that an outgoing connection gets
first."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from diag.launch import ports


def test_port_is_free_for_several_that_share_it_as_nccl_does() -> None:
    port = ports.free_port()
    assert port is not None
    held = []
    for _ in range(2):  # every process of a node binds the same one
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", port))
        one.listen()
        held.append(one)
    for one in held:
        one.close()


def test_port_is_outside_of_the_range_for_outgoing_connections(tmp_path: Path) -> None:
    folder = tmp_path / "sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text("20100\t60999\n")
    assert all(20000 <= (ports.free_port(tmp_path) or 0) < 20100 for _ in range(5))

    (folder / "ip_local_port_range").write_text("1024\t65535\n")  # all of them: then any that is free
    assert ports.free_port(tmp_path)

    (folder / "ip_local_port_range").write_text("x")
    assert ports.free_port(tmp_path)


def test_port_that_somebody_has_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(ports, "_FIRST", port)
        monkeypatch.setattr(ports, "_LAST", port)
        assert ports.free_port(Path("/nonexistent")) is None
    assert ports.free_port(Path("/nonexistent")) == port


def test_no_socket_to_be_had_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    assert ports.free_port() is None
