"""`/state` for many who ask: one look at the engine serves all who come within a second, while no finding changes; each form
of it is written once, and who has it already is told so (ETag)."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from diag.outputs.view.columns import with_columns
from diag.outputs.view.view import HubView, json_bytes

_FRESH_SECONDS = 1.0  # as often as the engine checks
_LEAST_PACKED = 1024  # bytes: less is not worth the work


@dataclass(slots=True)
class _Look:
    parts: dict[str, Any]
    engine_now: float
    changes: int
    until: float
    bodies: dict[tuple[bool, bool], tuple[bytes, str]] = field(
        default_factory=dict
    )  # by (columns, packed): body, ETag


class States:
    """`look` gives all parts as they are now."""

    def __init__(
        self,
        view: HubView,
        look: Callable[[], Awaitable[dict[str, Any]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view, self._look, self._clock = view, look, clock
        self._last: _Look | None = None
        self._turn = asyncio.Lock()

    async def answer(self, request: Request, *, as_columns: bool) -> Response:
        async with self._turn:
            last = await self._fresh()
        body, etag = self._written(last, as_columns, accepts_gzip(request))
        headers = {"ETag": etag, "Vary": "Accept-Encoding"}
        if etag in (each.strip() for each in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        if body[:2] == b"\x1f\x8b":
            headers["Content-Encoding"] = "gzip"
        return Response(body, media_type="application/json", headers=headers)

    async def _fresh(self) -> _Look:
        last = self._last
        if last is None or not self._is_fresh(last):
            at, changes = self._view.engine.now, self._view.engine.change_count
            last = self._last = _Look(await self._look(), at, changes, self._clock() + _FRESH_SECONDS)
            if not self._view.recorded:  # of thousands of ranks it is tens of MB
                asyncio.get_running_loop().call_later(_FRESH_SECONDS, self._forget, last)
        return last

    def _forget(self, look: _Look) -> None:
        if self._last is look:
            self._last = None

    def _is_fresh(self, last: _Look) -> bool:
        """Recorded evidence does not change by itself; a finding that was opened or resolved is seen at once, as by all who
        look elsewhere."""
        if self._view.recorded:
            return last.engine_now == self._view.engine.now
        return self._clock() < last.until and last.changes == self._view.engine.change_count

    def _written(self, last: _Look, as_columns: bool, packed: bool) -> tuple[bytes, str]:
        form = (as_columns, packed)
        if form not in last.bodies:
            parts = with_columns(last.parts) if as_columns else last.parts
            # `now` goes on while nothing happens: who has the rest has all, but for the time (weak, W/)
            rest = json_bytes({name: part for name, part in parts.items() if name != "now"})
            body = b'{"schema":"diag.state/1","now":' + json_bytes(parts["now"]) + b"," + rest[1:]
            etag = f'W/"{hashlib.sha256(rest).hexdigest()[:24]}"'
            if packed and len(body) >= _LEAST_PACKED:
                body = gzip.compress(body, 6, mtime=0)
            last.bodies[form] = (body, etag)
        return last.bodies[form]


def accepts_gzip(request: Request) -> bool:
    """
    >>> from starlette.requests import Request
    >>> [accepts_gzip(Request({"type": "http", "headers": [(b"accept-encoding", words)]})) for words in (b"br, gzip", b"gzip;q=0", b"")]
    [True, False, False]
    """
    for each in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = each.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
