"""A connection of the server that no client can keep for nothing: it is closed where no whole request comes in
time.

uvicorn waits for ever for the first request of a connection, and counts those that wait among the requests
under way: a few dozen silent connections of anybody, and all others would be answered 503.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_REQUEST_SECONDS = 10.0  # for the head of a request, from the connection or the last answer on
_UNREAD_SECONDS = 60  # an answer that is not taken for so long is given up, and its memory with it


class Connection(H11Protocol):
    """What uvicorn calls a protocol: one of each connection."""

    transport: asyncio.Transport
    _timer: asyncio.TimerHandle | None = None

    @property
    def answers(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_request()
        most = self.limit_concurrency
        if most is not None and len(self.connections) >= most:
            # uvicorn would answer 503. The oldest silent one is closed instead: who has a request sends it at
            # once.
            silent = [
                each
                for each in self.connections
                if isinstance(each, Connection) and each is not self and not each.answers
            ]
            if silent:
                min(silent, key=lambda each: each.since).give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._await_request()

    def send_400_response(self, msg: str) -> None:
        """As uvicorn's, with what goes with every answer of diag."""
        body = msg.encode("ascii", "replace")
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"content-security-policy", b"default-src 'none'"),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]
        start = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (start, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def give_up(self) -> None:
        """Close at once. It counts no longer, although its end is reported later."""
        self._stop_timer()
        self.connections.discard(self)
        self.transport.abort()

    def _await_request(self) -> None:
        self._stop_timer()
        self.since = self.loop.time()
        self._timer = self.loop.call_later(_REQUEST_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self.answers:
            self.give_up()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def forget_readers_that_stopped(listener: socket.socket) -> None:
    """Connections inherit it. It counts also where the other side lives and takes nothing (tcp(7),
    TCP_USER_TIMEOUT)."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_SECONDS * 1000)
