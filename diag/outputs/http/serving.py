"""The hub's HTTP server over its life: on loopback first, open to the other nodes once they join. It never
stops the job.

And what a person sees of it, also of the page over recorded evidence: its address, how to log in, who has
its port.
"""

from __future__ import annotations

import errno
import secrets
import socket
import time
from typing import TYPE_CHECKING

from diag.launch.ports import is_loopback
from diag.launch.service_discovery import reachable_host
from diag.launch.tokens import SHORTEST
from diag.outputs.output import Output
from diag.text.errors import DiagError, shortage

if TYPE_CHECKING:
    from diag.outputs.http.server import Server
    from diag.outputs.output import OutputContext
    from diag.settings import Settings

_LOOPBACK = "127.0.0.1"
_LEAVING_SECONDS = 2.0  # for the run before, which may be on its way out: a script starts one after the other


class Serving(Output):
    """The page, the API behind it and the metrics. A job that is still to come is served too: a startup probe
    asks for the page."""

    documented = setting = "http"

    def __init__(self, run: OutputContext) -> None:
        super().__init__(run)
        self._hub, self._settings, self._say = run.hub, run.hub.settings, run.say
        self.server: Server | None = None

    @classmethod
    def is_wanted(cls, run: OutputContext) -> bool:
        return run.hub.settings.http

    @property
    def page(self) -> str:
        """The page's address for a person; empty where there is none."""
        if self.server is None:
            return ""
        run_dir = self._hub.run_dir
        return format_page_line(
            self.server,
            self._settings,
            self._hub.token,
            kept_in=f"{run_dir.path}/run.json" if run_dir else "",
        )

    @property
    def place(self) -> str:
        return f"page {self.page}" if self.server is not None else ""

    def start(self) -> None:
        """Serve, or say in a line why not. For a command that has ended meanwhile only where other nodes ask: nobody else
        could see the page, and loading a server takes longer than the rest of diag's start."""
        if not self.run.has_ended():
            self._serve_here()
        self._hub.cluster.open_port = self.open_to_nodes

    def _serve_here(self) -> None:
        self._serve(self._settings.host or _LOOPBACK, (self._settings.port, 0))

    def open_to_nodes(self) -> int | None:
        """The port at which other nodes reach this hub; None, and a line with the reason, where they cannot."""
        if self.server is None and self.run.has_ended():
            self._serve_here()
        if self.server is None:
            return None
        if self._settings.host and is_loopback(self._settings.host):
            self._say(
                f"diag: the other nodes' hubs cannot reach this one at {self._settings.host}: omit --host, or give an "
                "address that they can reach"
            )
            return None
        if not self._settings.host:
            port = self.server.port
            self.server.stop(1.0)
            # both families where the machine has both: a pod's address may be either
            self._serve("::" if socket.has_dualstack_ipv6() else "0.0.0.0", (port,))
            self.run.publish()
            # the page that was announced answers no request without the token from now on
            if self.server is not None:
                self._say(f"diag: open to the other nodes: page {self.page}")
        if self.server is not None and self._settings.port and self.server.port != self._settings.port:
            self._say(
                f"diag: port {self._settings.port} is taken here, where the hubs of other nodes look for this one: give "
                "all nodes another port (DIAG_PORT)"
            )
        return self.server.port if self.server is not None else None

    def _serve(self, host: str, ports: tuple[int, ...]) -> None:
        self.server = self._served(host, ports)
        self.run.url = self.server.url if self.server is not None else None

    def _served(self, host: str, ports: tuple[int, ...]) -> Server | None:
        from diag.outputs.http.server import CannotServe, PortTaken, serve

        hub, settings = self._hub, self._settings
        hub.bound_beyond_loopback = not is_loopback(host)
        if hub.bound_beyond_loopback and hub.token is None:
            hub.token = secrets.token_urlsafe(24)
        elif hub.bound_beyond_loopback and hub.token is not None and len(hub.token) < SHORTEST:
            self._say(
                f"diag: a token of {len(hub.token)} characters can be guessed by anyone who reaches this hub: one of "
                "`openssl rand -hex 16` cannot"
            )
        problem: Exception | None = None
        for port in ports:
            try:
                server = serve(hub, host, port, certificate=settings.tls_cert, key=settings.tls_key)
                hub.address = f"{reachable_host(server.host)}:{server.port}"
                return server
            except PortTaken as error:
                problem = error
            except (CannotServe, OSError, RuntimeError) as error:
                if not isinstance(error, CannotServe) and not shortage(error):
                    raise
                problem = error
                break
            except ImportError as error:  # a broken fastapi or uvicorn: findings go on without a page
                self._say(
                    f"diag: no HTTP: {error}; reinstall diag's packages (pip install --force-reinstall diag)"
                )
                return None
        self._say(f"diag: no HTTP: {problem}")
        return None

    def close(self, returncode: int | None, *, ended: bool) -> None:
        if self.server is not None:
            self.server.stop(1.0)


def format_page_line(server: Server, settings: Settings, token: str | None, *, kept_in: str = "") -> str:
    """Where the page is, and what has to be known to see it. `kept_in`: the file in which its owner finds the
    token."""
    url, notes = server.url, []
    if not is_loopback(server.host):
        url = f"{url.partition('://')[0]}://{reachable_host(server.host)}:{server.port}"
        password = f"the token in {kept_in}" if kept_in else token or ""
        notes.append(f"any user name, password {'the token that was given' if settings.token else password}")
    if settings.port and server.port != settings.port:
        notes.append(f"port {settings.port} is taken{_by(settings.port)}")
    return f"{url} ({'; '.join(notes)})" if notes else url


def refuse_taken_port(settings: Settings, *, asked_for: bool) -> None:
    """Raises DiagError where the port was asked for and another has it: the address given to others would lead
    them elsewhere."""
    if not (asked_for and settings.http and settings.port):
        return
    until = time.monotonic() + _LEAVING_SECONDS
    while _is_taken(settings.host or _LOOPBACK, settings.port):
        if time.monotonic() > until:
            raise DiagError(
                f"port {settings.port} is taken{_by(settings.port)}",
                exit_code=2,
                hint="give another one, 0 for any free one, or none: 9095 then, and any free one where that is taken",
            )
        time.sleep(0.1)


def _is_taken(host: str, port: int) -> bool:
    """Without the imports of a server, which CMD would wait for. Any other problem is reported when it is
    served."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _by(port: int) -> str:
    """Who listens there, as far as this user may know."""
    from diag.launch.launchers.secrets import redacted
    from diag.launch.ports import owner_of
    from diag.text.sanitize import clean

    owner = owner_of(port)
    if owner is None:
        return ""
    if owner.pid is None:
        return f" by a process of user {owner.uid}"
    command = " ".join(redacted(owner.command.split()))
    return f" by pid {owner.pid}" + (f" ({clean(command)[:80]})" if command else "")
