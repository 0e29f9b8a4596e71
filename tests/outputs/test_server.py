"""The server on a real port."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.outputs.http.server import CannotServe, PortTaken, serve
from tests.outputs.asking import ask


def test_server_takes_a_free_port_answers_and_stops_at_once(hung: Any) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = serve(hung)
    try:
        answer = httpx.get(server.url + "/findings")
        assert answer.json()["job"]["state"] == "hung"
        assert server.url == f"http://127.0.0.1:{server.port}"
    finally:
        began = time.monotonic()
        assert server.stop(5.0)
    assert time.monotonic() - began < 2.0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/findings")
    assert server.stop(0.1)


def test_server_stops_although_a_client_keeps_its_connection(hung: Any) -> None:
    server = serve(hung)
    with httpx.Client() as client:
        client.get(server.url + "/healthz")
        began = time.monotonic()
        assert server.stop(5.0)

    assert time.monotonic() - began < 2.0


def test_taken_port_is_named_and_another_one_works(hung: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken) as taken:
            serve(hung, port=port)
        server = serve(hung, port=0)

    assert taken.value.port == port and str(port) in str(taken.value)
    assert server.stop(5.0)


@pytest.mark.parametrize(
    "host, port", [("192.0.2.1", 0), ("no.such.host.invalid", 0), ("a" * 70 + ".b", 0), ("127.0.0.1", 70000)]
)
def test_address_that_cannot_be_bound_is_a_clear_error(hung: Any, host: str, port: int) -> None:
    with pytest.raises(CannotServe, match=re.escape(f"cannot listen on {host}:{port}: ")):
        serve(hung, host, port)


def test_garbage_on_the_port_leaves_the_terminal_alone(hung: Any, capfd: pytest.CaptureFixture[str]) -> None:
    server = serve(hung)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
        client.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        client.recv(1000)
    answered = httpx.get(server.url + "/healthz").status_code
    server.stop(5.0)

    assert answered == 200
    assert capfd.readouterr() == ("", "")


def test_importing_the_outputs_imports_no_web_framework() -> None:
    code = (
        "import sys, diag.outputs.wiring, diag.outputs.terminal.text\n"
        "print([name for name in ('fastapi', 'uvicorn', 'starlette', 'pydantic', 'prometheus_client') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )

    assert done.stdout.strip() == "[]"


@settings(max_examples=30, deadline=None)
@given(token=st.text(st.characters(), min_size=1, max_size=20))
def test_any_token_is_compared_without_failing(kit: Any, token: str) -> None:
    hub = kit.FakeHub(token=token, bound_beyond_loopback=True)

    assert ask(hub, "/findings", host="0.0.0.0", Authorization="Bearer wrong!").status_code == 401
