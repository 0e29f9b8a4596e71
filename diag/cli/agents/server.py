"""The server: the tools over stdio, or over HTTP for who has the token."""

from __future__ import annotations

import hmac
import secrets
import sys
from typing import TYPE_CHECKING

import diag
from diag.cli.agents.tools import INSTRUCTIONS, Tools
from diag.launch.ports import is_loopback
from diag.outputs.view.view import json_bytes
from diag.text.errors import DiagError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

INSTALL = "pip install 'diag[mcp]'"


def make_server(tools: Tools) -> MCPServer:
    """Raises DiagError where the SDK is not installed."""
    try:
        from mcp.server import MCPServer
        from mcp_types import ToolAnnotations
    except ImportError as error:
        raise DiagError(
            f"diag mcp needs the package mcp, version 2 or later: {error}", hint=INSTALL, exit_code=2
        ) from None
    server = MCPServer("diag", version=diag.__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    looks = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    for tool in tools.all():
        server.add_tool(_told(tool), annotations=looks, structured_output=False)
    return server


def _told(tool: Callable[..., str]) -> Callable[..., str]:
    """What went wrong, as an answer that an agent understands, with what to do."""
    import functools

    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    def asked(*args: object, **kwargs: object) -> str:
        try:
            return tool(*args, **kwargs)
        except DiagError as error:
            raise ToolError(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else "")) from None

    return asked


def serve_http(server: MCPServer, host: str, port: int, token: str | None) -> None:
    """Until a signal ends it. The token is always needed: a port of this machine is open to all its users."""
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    given = token or secrets.token_urlsafe(24)
    names = [f"{name}:*" for name in ("127.0.0.1", "localhost", "[::1]", host)]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=is_loopback(host), allowed_hosts=names, allowed_origins=[]
    )
    app = server.streamable_http_app(host=host, transport_security=security)
    shown = f"[{host}]" if ":" in host else host
    print(f"diag: MCP at http://{shown}:{port}/mcp; Ctrl-C stops it", file=sys.stderr, flush=True)
    if not token:
        print(f"diag: its header: Authorization: Bearer {given}", file=sys.stderr, flush=True)
    try:
        uvicorn.run(TokenOnly(app, given), host=host, port=port, log_level="warning", access_log=False)
    except SystemExit:
        raise DiagError(f"{shown}:{port} cannot be listened at", hint="another --port, or --host") from None


class TokenOnly:
    """Answers 401 to whoever does not have the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                body = json_bytes({"detail": "this needs the token that diag mcp printed"})
                headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await self._app(scope, receive, send)
