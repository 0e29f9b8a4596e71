"""Who may ask the server: the token beyond loopback, no foreign Host on loopback, no other site's page
anywhere, and some places that other users of the machine cannot take; and what goes with every answer, errors
too."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import re
from collections.abc import Callable, Collection
from email.utils import formatdate
from enum import Enum
from typing import TYPE_CHECKING

from diag.launch.ports import is_loopback
from diag.outputs.http.asker import Asker
from diag.outputs.view.view import HubView, json_bytes

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger(__name__)


class Access(Enum):
    """Who may ask for a route: anybody; with a token beyond loopback; with one wherever one is set."""

    OPEN = "open"
    READS = "reads"
    WORKS = "works"  # it makes ranks or this hub do something, or shows what was made so


# Every route that there is. What is not here needs the token wherever one is set.
_READS = """
/ /assets/{name:path} /docs /events /explain/{finding} /findings /nodes /openapi.json /ranks /ranks/{rank}/stacks
/report.html /sd /state /timeline
"""
_WORKS = "/bundles/{name} /digests /drawings/{name} /dump /flame /ranks/{rank}/flame"
ROUTES = {
    **dict.fromkeys(("/metrics", "/healthz"), Access.OPEN),
    **dict.fromkeys(_READS.split(), Access.READS),
    **dict.fromkeys(_WORKS.split(), Access.WORKS),
}
_PATTERNS = [
    (re.compile(re.sub(r"\{(\w+)(:path)?\}", lambda found: ".*" if found[2] else "[^/]+", path)), access)
    for path, access in ROUTES.items()
]
_FOR_ALL = 32  # requests under way on loopback, of the 64 connections of the server: what is left is for who owns the run
# Routes with a page of their own have a policy of their own; all else is data, and no document.
_POLICY = (
    b"content-security-policy",
    b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
)
_ALWAYS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
# A line each: Chromium reads one challenge a line, and does not ask for a password where the first is Bearer.
_HOW_TO = tuple(
    (b"www-authenticate", way) for way in (b'Basic realm="diag", charset="UTF-8"', b'Bearer realm="diag"')
)


class Guard:
    """The outermost part of the app, but for Starlette's last resort."""

    def __init__(self, app: ASGIApp, *, view: HubView, host: str, clock: Callable[[], float]) -> None:
        self._app = app
        self._view = view
        self._token = view.token
        self._beyond = view.bound_beyond_loopback or not is_loopback(host)
        self._hosts: Collection[str] = {
            "localhost",
            "127.0.0.1",
            "[::1]",
            f"[{host}]" if ":" in host else host.lower(),
        }
        self._clock = clock
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = False

        async def send_with_headers(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                own = list(message.get("headers", ()))
                policy = () if any(name == _POLICY[0] for name, _ in own) else (_POLICY,)
                date = (b"date", formatdate(self._clock(), usegmt=True).encode())
                message["headers"] = [*own, date, *_ALWAYS, *policy]
            await send(message)

        async def say(status: int, detail: str, *more: tuple[bytes, bytes]) -> None:
            body = json_bytes({"detail": detail})
            start = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *more,
            ]
            await send_with_headers({"type": "http.response.start", "status": status, "headers": start})
            await send({"type": "http.response.body", "body": body})

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope["method"], scope["path"], headers)
        if refusal is not None:
            status, detail = refusal
            if status == 401 and scope["path"] == "/digests" and scope.get("client"):
                self._view.cluster.refuse_digest(plain_address(scope["client"][0]))
            await say(status, detail, *(_HOW_TO if status == 401 else ()))
            return
        has_token = bool(self._token) and _token_matches(headers.get("authorization", ""), self._token or "")
        asker = Asker(scope.get("client"), scope.get("server"), trusted=self._beyond or has_token)
        scope["diag.asker"] = asker
        self._under_way += 1
        try:
            if self._under_way > _FOR_ALL and not await asker.owns_the_run():
                await say(
                    503,
                    "requests of other users of this machine already use their share of connections; try again, or "
                    "give the run's token (DIAG_TOKEN)",
                )
                return
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            _log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            if began:
                raise
            await say(500, f"diag failed here, please report it: {type(error).__name__}: {error}")
        finally:
            self._under_way -= 1

    def _refusal(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        name = (
            host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        )
        if not self._beyond and name.lower() not in self._hosts:
            return (
                403,
                f"refused Host header {host!r}: on loopback diag answers only to {sorted(self._hosts)}",
            )
        if self._is_of_another_site(method, path, headers):
            return 403, "this request comes from a page of another site; open diag's own page instead"
        access = _access(path)
        if access is Access.OPEN or not (self._beyond or (self._token and access is Access.WORKS)):
            return None
        if not self._token:
            return (
                403,
                "diag is bound beyond loopback without a token; only /metrics and /healthz are answered",
            )
        if not _token_matches(headers.get("authorization", ""), self._token):
            return (
                401,
                "this needs the run's token: Authorization: Bearer TOKEN (or as the password of Basic)",
            )
        return None

    def _is_of_another_site(self, method: str, path: str, headers: dict[str, str]) -> bool:
        """Browsers say where a request comes from: since 2023 all by Fetch metadata, older ones by Origin
        where it is a POST or its answer would be read. Other clients say nothing."""
        site = headers.get("sec-fetch-site")
        if site is not None:  # no script can set it, and it holds behind a proxy that changes Host
            # Following a link to a page is fine; a link to /dump or a flame graph would make us work.
            followed = (
                headers.get("sec-fetch-mode") == "navigate"
                and method == "GET"
                and not path.endswith(("/dump", "/flame"))
            )
            return site not in ("none", "same-origin") and not followed
        origin = headers.get("origin")
        return origin is not None and origin.partition("//")[2] != headers.get("host")


def asker_of(request: Request) -> Asker:
    """Of a request that came through the guard."""
    asker: Asker = request.scope["diag.asker"]
    return asker


def _access(path: str) -> Access:
    """
    >>> [_access(path).value for path in ("/metrics", "/ranks/3/stacks", "/ranks/3/flame", "/flame", "/no/such/route")]
    ['open', 'reads', 'works', 'works', 'works']
    """
    return next((access for pattern, access in _PATTERNS if pattern.fullmatch(path)), Access.WORKS)


def plain_address(host: str) -> str:
    """An IPv4 address as such, also where a socket of both families took it.

    >>> plain_address("::ffff:10.0.0.2")
    '10.0.0.2'
    """
    return host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host


def _token_matches(authorization: str, token: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "basic":  # what a browser can offer: any user name, the token as password
        try:
            given = base64.b64decode(given, validate=True).decode("utf-8", "replace").partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode("utf-8", "replace"))
