"""The hub's HTTP face over its life: on loopback first, open to the other nodes once they join. It never stops the job."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from diag.tokens import SHORTEST

if TYPE_CHECKING:
    from diag.hub import Hub
    from diag.outputs.server import Server
    from diag.settings import Settings

__all__ = ["Serving"]

_LOOPBACK = "127.0.0.1"


class Serving:
    """`say` prints a line, `changed` is called when the address is another one."""

    def __init__(self, hub: Hub, settings: Settings, say: Callable[[str], object], changed: Callable[[], object]) -> None:
        self._hub = hub
        self._settings = settings
        self._say = say
        self._changed = changed
        self.server: Server | None = None

    @property
    def url(self) -> str | None:
        return self.server.url if self.server is not None else None

    def start(self) -> None:
        """Serve, or say in a line why not."""
        if self._settings.http:
            self.server = self._serve(self._settings.host or _LOOPBACK, (self._settings.port, 0))

    def open_to_nodes(self) -> int | None:
        """The port at which other nodes reach this hub; None, and a line that says why, where they cannot."""
        from diag.outputs.http import is_loopback

        if self.server is None:
            return None
        if self._settings.host and is_loopback(self._settings.host):
            self._say(f"diag: the other nodes' hubs cannot reach this one at {self._settings.host}: leave out --host, or give an "
                      "address that they reach")
            return None
        if not self._settings.host:
            port = self.server.port
            self.server.stop(1.0)
            self.server = self._serve(_any_address(), (port,))
            self._changed()
        if self.server is not None and self._settings.port and self.server.port != self._settings.port:
            self._say(f"diag: port {self._settings.port} is taken here, where the hubs of other nodes look for this one: give "
                      "all nodes another port (DIAG_PORT)")
        return self.server.port if self.server is not None else None

    def _serve(self, host: str, ports: tuple[int, ...]) -> Server | None:
        from diag.outputs.http import is_loopback
        from diag.outputs.server import CannotServe, PortTaken, serve

        hub, settings = self._hub, self._settings
        hub.bound_beyond_loopback = not is_loopback(host)
        if hub.bound_beyond_loopback and hub.token is None:
            hub.token = secrets.token_urlsafe(24)
        elif hub.bound_beyond_loopback and hub.token is not None and len(hub.token) < SHORTEST:
            self._say(f"diag: a token of {len(hub.token)} characters can be guessed by whoever reaches this hub: one of "
                      "`openssl rand -hex 16` cannot")
        from diag.discovery import reachable_host
        from diag.errors import shortage

        problem: Exception | None = None
        for port in ports:
            try:
                server = serve(hub, host, port, certificate=settings.tls_cert, key=settings.tls_key)
                hub.address = f"{reachable_host(server.host)}:{server.port}"
                return server
            except PortTaken as error:
                problem = error
            except CannotServe as error:
                problem = error
                break
            except (OSError, RuntimeError) as error:
                if not shortage(error):
                    raise
                problem = error
                break
            except ImportError as error:  # a broken installation of fastapi or uvicorn: findings go on without a page
                self._say(f"diag: no HTTP: {error}; reinstall diag's packages (pip install --force-reinstall diag)")
                return None
        self._say(f"diag: no HTTP: {problem}")
        return None

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop(1.0)


def _any_address() -> str:
    """Both families where the machine has both: a pod's address may be either."""
    import socket

    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
