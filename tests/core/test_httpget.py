"""The small HTTP client of `diag dump`: real sockets, servers that are well, slow, torn or no HTTP at all."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from diag.cli.client.http import get


@contextlib.contextmanager
def answering(data: bytes, *, hold: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """A server that takes one request, sends this and closes; with `hold` it keeps the connection open."""
    asked: list[bytes] = []
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    asked.append(connection.recv(1 << 16))
                    connection.sendall(data)
                    if hold:
                        over.wait(30)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", asked
        finally:
            over.set()
            thread.join(10)


class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"{self.path} {self.headers['Authorization']} {self.headers['Host']}".encode() * 10_000
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def test_answer_of_a_real_server_comes_whole() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{server.server_port}"
        status, reason, body = get(
            f"http://{place}/below/dump?deadline=3", {"Authorization": "Bearer x"}, 10.0
        )
        server.shutdown()

    assert (status, reason, body) == (200, "OK", f"/below/dump?deadline=3 Bearer x {place}".encode() * 10_000)


def test_refusal_is_told_by_its_number() -> None:
    with answering(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}") as (url, _):
        assert get(f"{url}/dump", {}, 10.0) == (401, "Unauthorized", b"{}")


def test_body_without_a_length_ends_with_the_connection() -> None:
    with answering(b"HTTP/1.0 200 OK\r\n\r\nhalf and half") as (url, _):
        assert get(url + "/", {}, 10.0) == (200, "OK", b"half and half")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not an HTTP response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "cut off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "invalid literal"),
        (b"x" * 100_000, "no end of the headers"),
    ],
)
def test_what_is_no_answer_is_said(data: bytes, said: str) -> None:
    with answering(data) as (url, _), pytest.raises(ValueError, match=said):
        get(url, {}, 10.0)


def test_server_that_says_nothing_is_given_up_in_time() -> None:
    began = time.monotonic()
    with answering(b"HTTP/1.1 200 OK\r\n", hold=True) as (url, _), pytest.raises(TimeoutError):
        get(url, {}, 0.3)
    assert time.monotonic() - began < 10


def test_token_cannot_add_lines_of_its_own() -> None:
    with answering(b"") as (url, asked):
        with pytest.raises(ValueError, match="line break"):
            get(url, {"Authorization": "Bearer x\r\nHost: elsewhere"}, 10.0)
        assert asked == []
        with contextlib.suppress(ValueError):
            get(url, {}, 10.0)  # lets the server go
