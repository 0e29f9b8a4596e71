"""Requests to servers of the cluster: never through a proxy, with the cluster's own certificates."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from diag import __version__
from diag.text.sanitize import clean

_SECONDS = 15.0
_MOST_BYTES = 1 << 20
_SHOWN = 300  # characters of a refusal


@dataclass(frozen=True, slots=True)
class Response:
    """`status` is 0 where no answer came; `reason` is of that, or of a refusal."""

    status: int
    body: Any
    reason: str

    @property
    def accepted(self) -> bool:
        return 200 <= self.status < 300

    @property
    def again(self) -> bool:
        return self.status in (0, 429) or self.status >= 500


def ask(
    method: str,
    url: str,
    *,
    token: str,
    ca: str | None,
    body: Any = None,
    kind: str = "application/json",
    by_name: bool = True,
) -> Response:
    """`ca` is a file of certificates by which the server is known; None: the system's. Not `by_name`: it may have the name
    of another, as a hub has that is asked on loopback."""
    headers = {"Accept": "application/json", "Content-Type": kind, "User-Agent": f"diag/{__version__}"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        context = ssl.create_default_context(cafile=ca)
        context.check_hostname = by_name
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=_SECONDS) as answer:
            return Response(answer.status, _json(answer.read(_MOST_BYTES)), "")
    except urllib.error.HTTPError as error:
        found = _json(error.read(_MOST_BYTES))
        said = found.get("message") if isinstance(found, dict) else None
        shown = f": {clean(str(said))[:_SHOWN]}" if said else ""
        return Response(error.code, found, f"refused (HTTP {error.code}){shown}")
    except (OSError, ValueError) as error:
        inner = getattr(error, "reason", error)
        why = getattr(inner, "verify_message", None) or getattr(inner, "strerror", None)
        return Response(0, None, f"cannot be reached: {why or type(inner).__name__}")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None
