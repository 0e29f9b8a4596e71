"""Runs an app in a daemon thread with a loop of its own. Idle, it does not wake at all."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from diag.outputs.http.app import create_app
from diag.outputs.view.view import HubView
from diag.text.errors import DiagError

if TYPE_CHECKING:
    import uvicorn

    from diag.outputs.http.events import Events

_MOST_REQUESTS = 4096  # at once, and connections: all nodes may report in the same second
_MOST_ACCEPTED = 16  # at one time: asyncio takes as many before it serves any of them
_MOST_WAITING = 4096  # for that, in the kernel: who finds no place there tries again after a second
_OTHER_FILES = 256  # that this process needs beside its connections
_GRACE_SECONDS = 1  # for requests under way when the job has ended
_LAST_WORD_SECONDS = 0.2  # of it for a page to take that diag ends: a laptop that was closed takes nothing
_HANDSHAKE_SECONDS = 10.0  # of TLS
_START_SECONDS = 10.0  # imports and one bind; measured 0.3 s


class CannotServe(DiagError):
    """The page and the metrics cannot be served here; everything else goes on."""


class PortTaken(CannotServe):
    """Another process listens on this port; port 0 takes a free one."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"port {port} of {host} is taken: page and metrics cannot be served there",
            hint="another run of diag on this machine? Give another port, or 0 for any free one",
        )
        self.port = port


class Server:
    """A running server. `url` is where a person of this machine reaches it."""

    def __init__(
        self, server: uvicorn.Server, listener: socket.socket, host: str, events: Events, scheme: str = "http"
    ) -> None:
        self._events = events
        self._scheme = scheme
        self._server = server
        self._listener = listener
        self.host = host
        self.port: int = listener.getsockname()[1]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="diag-http", daemon=True)

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and self._server.started

    def start(self) -> Server:
        self._thread.start()
        self._ready.wait(_START_SECONDS)
        if not self.alive:
            self._given_up = True
            raise CannotServe(f"the server for {self.url} did not start")
        return self

    def stop(self, timeout: float = 2.0) -> bool:
        """End requests under way (at most a second), close the port. False when the thread has not ended in
        time."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop closed between the look and the call
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError:  # its listener was closed by `serve`, which gave up waiting on a busy machine
            if not self._given_up:
                raise
        finally:
            self._listener.close()
            self._ready.set()

    async def _serve(self) -> None:
        # uvicorn.Server.serve() looks ten times a second whether to end and renews the Date header each
        # second. Its own parts around that loop, awaited here instead, need no tick: the guard sets Date. (No
        # signals either.)
        server = self._server
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        if server.config.ssl is not None:  # a minute otherwise, in which such a connection counts nowhere
            patient = self._loop.create_server
            self._loop.create_server = partial(  # type: ignore[method-assign]
                patient, ssl_handshake_timeout=_HANDSHAKE_SECONDS
            )
        await server.startup(sockets=[self._listener])
        self._listener.listen(_MOST_WAITING)
        await server.on_tick(0)  # sets what it sends with every answer
        self._ready.set()
        await self._stop.wait()
        self._events.close()  # streams have no end of their own, and the job's exit must not wait for a page
        server.should_exit = True
        self._loop.call_later(_LAST_WORD_SECONDS, self._leave_pages_that_read_nothing)
        await server.shutdown(sockets=[self._listener])

    def _leave_pages_that_read_nothing(self) -> None:
        for connection in list(self._server.server_state.connections):
            scope, transport = getattr(connection, "scope", None), getattr(connection, "transport", None)
            if scope and scope["path"].endswith("/events") and transport is not None:
                transport.abort()


def serve(
    view: HubView,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
) -> Server:
    """Serve a view, over TLS where a certificate is given. Port 0 is any free one. Raises PortTaken, or
    CannotServe where it cannot listen for another reason (no such address, no right to the port, no such
    certificate)."""
    import uvicorn

    from diag.outputs.http.connections import Connection, forget_readers_that_stopped

    if certificate is not None:
        _check_certificate(certificate, key)
    listener = _listen(host, port)
    forget_readers_that_stopped(listener)
    app = create_app(view, host=host)
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",  # the terminal is the job's; failures are logged by the app
        access_log=False,
        date_header=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        limit_concurrency=_most_requests() if view.bound_beyond_loopback else 64,
        backlog=_MOST_ACCEPTED,
        ssl_certfile=str(certificate) if certificate else None,
        ssl_keyfile=str(key) if key else None,
    )
    try:
        return Server(
            uvicorn.Server(config), listener, host, app.state.events, "https" if certificate else "http"
        ).start()
    except CannotServe:
        listener.close()
        raise


def _most_requests() -> int:
    """Above it 503 is answered, and the node comes again: better than no more open files for anything."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return _MOST_REQUESTS
    return max(64, min(_MOST_REQUESTS, most - _OTHER_FILES))


def _check_certificate(certificate: Path, key: Path | None) -> None:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise CannotServe(
            f"the certificate {certificate} cannot be used: {error.strerror or error}",
            hint="tls_cert is a PEM file with the certificate, tls_key one with its key",
        ) from error


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:  # getaddrinfo would quietly take its lower 16 bits
        raise _cannot_listen(host, port, "no such port")
    try:
        name = "127.0.0.1" if host.lower() == "localhost" else host or None
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(host, port, getattr(error, "strerror", None) or "no such host") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(_MOST_WAITING)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(host, port) from error
        raise _cannot_listen(host, port, error.strerror or str(error)) from error
    return listener


def _cannot_listen(host: str, port: int, reason: str) -> CannotServe:
    return CannotServe(
        f"cannot listen on {host}:{port}: {reason}",
        hint="give an address of this machine and a port from 1024 to 65535, or port 0 for any free one",
    )
