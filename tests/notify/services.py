"""Stand-ins of the services on this machine: one HTTPS proxy that answers for all of their hosts, as they do, and keeps
what it was sent; and a mail server."""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

HOSTS = (
    "hooks.slack.com", "open.feishu.cn", "open.larksuite.com", "oapi.dingtalk.com", "qyapi.weixin.qq.com",
    "discord.com", "api.telegram.org", "ntfy.sh",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    host: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Services:
    """`answers`: by host, status and body in place of the usual ones. `changed` is notified of each request."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, request: Request) -> tuple[int, bytes]:
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
        status, body = self.answers.get(request.host, (200, _USUAL.get(request.host, "ok")))
        return status, body.encode() if isinstance(body, str) else json.dumps(body).encode()

    def wait(self, condition: Callable[[list[Request]], bool], seconds: float = 60.0) -> list[Request]:
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self.requests), seconds), self.requests
            return [*self.requests]


# What they answer to a message that they take, by their documentation.
_USUAL: dict[str, Any] = {
    "hooks.slack.com": "ok",
    "open.feishu.cn": {"code": 0, "data": {}, "msg": "success"},
    "open.larksuite.com": {"code": 0, "data": {}, "msg": "success"},
    "oapi.dingtalk.com": {"errcode": 0, "errmsg": "ok"},
    "qyapi.weixin.qq.com": {"errcode": 0, "errmsg": "ok"},
    "discord.com": {"id": "1"},
    "api.telegram.org": {"ok": True, "result": {"message_id": 1}},
    "ntfy.sh": {"id": "x", "event": "message"},
}


@contextmanager
def services(folder: Path) -> Iterator[tuple[Services, dict[str, str]]]:
    """And the variables with which what is started here comes to them."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    names = ",".join(f"DNS:{host}" for host in HOSTS)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=stand-in", "-addext", f"subjectAltName={names}",
         "-keyout", str(key), "-out", str(certificate), "-days", "2"], check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    kept = Services()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        host = "plain"

        def do_CONNECT(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.host = self.path.rpartition(":")[0]
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), _Writer(self.connection)  # type: ignore[assignment]
            self.close_connection = False  # whoever asks for a tunnel by HTTP/1.0

        def do_POST(self) -> None:
            split = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            query = {name: values[0] for name, values in parse_qs(split.query).items()}
            status, answer = kept.take(Request(self.host, split.path, query, dict(self.headers), body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    kept.port = server.server_address[1]
    with _serving(server):
        yield (
            kept,
            {
                "HTTPS_PROXY": f"http://127.0.0.1:{kept.port}",
                "NO_PROXY": "127.0.0.1,localhost",
                "REQUESTS_CA_BUNDLE": str(certificate),
            },
        )


class _Writer:
    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection
        self.closed = False

    def write(self, data: bytes) -> None:
        self._connection.sendall(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@contextmanager
def mail_server() -> Iterator[tuple[int, list[str]]]:
    """Its port, and the messages that it took."""
    taken: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 stand-in\r\n")
            while line := self.rfile.readline():
                word = line[:4].upper().strip()
                if word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = iter(self.rfile.readline, b".\r\n")
                    taken.append(b"".join(lines).decode())
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with _serving(server):
        yield server.server_address[1], taken


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
