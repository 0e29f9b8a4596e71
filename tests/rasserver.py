"""A server of NCCL RAS's line protocol on a real socket that gives real captured answers, or misbehaves."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

CAPTURES = Path(__file__).parent / "captures" / "sources" / "ras"


def captured(name: str) -> str:
    """The report of a captured answer, without the lines of the protocol in front of it."""
    text = (CAPTURES / name).read_text()
    for line in ("SERVER PROTOCOL 2\n", "OK\n"):
        text = text.removeprefix(line)
    return text


class RasServer:
    """Speaks as NCCL 2.28.9 does (src/ras/client_support.cc); `json` None: as 2.28.6 and before, which know
    no SET FORMAT.

    `mode`: "" behaves; "silent" takes connections and says nothing; "hangs" says all but the report; "closes"
    at once; "http", "endless line", "endless report"; "torn" ends in the middle of the report.
    """

    def __init__(self, text: str = "", json: str | None = None, mode: str = "", port: int = 0) -> None:
        self.text, self.json, self.mode = text, json, mode
        self.commands: list[str] = []
        self.connections = 0
        self.reports = 0
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        if self.mode == "closes":
            return
        if self.mode == "silent":
            self._over.wait(60)
            return
        if self.mode == "endless line":
            while not self._over.is_set():
                client.sendall(b"\xff\x00 no line " * 1000)
        as_json = False
        for raw in client.makefile("rb"):
            command = raw.decode("utf-8", "replace").rstrip("\r\n")
            self.commands.append(command)
            lower = command.lower()
            if self.mode == "http":
                client.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
                return
            if lower.startswith("client protocol "):
                client.sendall(b"SERVER PROTOCOL 2\n")
            elif lower.startswith("timeout "):
                client.sendall(b"OK\n")
            elif lower == "set format json" and self.json is not None:
                as_json = True
                client.sendall(b"OK\n")
            elif lower in ("status", "verbose status"):
                self._report(client, (self.json or "") if as_json else self.text)
                return
            else:
                client.sendall(f"ERROR: Unknown command {command}\n".encode())

    def _report(self, client: socket.socket, report: str) -> None:
        self.reports += 1
        data = report.encode()
        if self.mode == "hangs":
            self._over.wait(60)
        elif self.mode == "endless report":
            while not self._over.is_set():
                client.sendall(data)
        elif self.mode == "torn":
            client.sendall(data[: len(data) * 2 // 3])
        else:
            for start in range(0, len(data), 700):  # as it comes over a network: in pieces that end anywhere
                client.sendall(data[start : start + 700])

    def close(self) -> None:
        self._over.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextlib.contextmanager
def ras_server(text: str = "", json: str | None = None, mode: str = "") -> Iterator[RasServer]:
    server = RasServer(text, json, mode)
    try:
        yield server
    finally:
        server.close()
