"""One request to a hub, and what came of it in plain text: the body of the answer, or an error that reports what
was there instead.

A person who types `diag dump` waits: nothing is imported that is not needed.
"""

from __future__ import annotations

import errno
import json
import socket

from diag.cli.client.http import get
from diag.launch import tokens
from diag.text.errors import DiagError
from diag.text.units import format_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Send = Callable[[str, dict[str, str], float, str | None], tuple[int, str, bytes]]

_NO_DIAG = "is that another server's port? `diag run` prints its own address, and run.json in the run directory contains it"
_NOT_ALLOWED, _NOT_IMPLEMENTED, _FAILED = 405, 501, 500
_REDIRECTS = range(300, 400)


def check_address(url: str) -> None:
    """Raises DiagError for what cannot be asked at all."""
    scheme, _, rest = url.partition("://")
    place = rest.partition("/")[0]
    port = place.rpartition(":")[2] if ":" in place.rpartition("]")[2] else "80"
    if (
        scheme not in ("http", "https")
        or not place
        or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536)
    ):
        raise DiagError(
            f"{_clean(url)} is not a hub address", hint="it looks like http://127.0.0.1:9095", exit_code=2
        )


def authorization(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def ask(  # noqa: PLR0917 - what a request is
    url: str, path: str, token: str | None, ca: str | None, seconds: float, hint: str, send: Send = get
) -> bytes:
    """The body of the hub's answer. `hint`: what to do where there is no hub any more. Raises DiagError."""
    check_address(url)
    try:
        status, reason, body = send(url + path, authorization(token), seconds, ca)
    except (OSError, ValueError) as error:
        raise no_answer(url, error, seconds=seconds, hint=hint) from None
    if status != 200:
        raise refusal(url, status, reason, body, has_token=bool(token))
    return body


# Of OpenSSL, where what answers is not TLS.
_PLAIN_ANSWERS = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "RECORD_LAYER_FAILURE",
    "UNEXPECTED_EOF_WHILE_READING",
}


def no_answer(url: str, error: BaseException, *, seconds: float, hint: str) -> DiagError:
    """Of the OSError or ValueError that asking ended with. `hint` is what to do where there is no hub any
    more."""
    message = _clean(str(error))
    if isinstance(error, ConnectionRefusedError):
        return DiagError(f"the hub at {url} does not answer: connection refused", hint=hint)
    if isinstance(error, TimeoutError):
        return DiagError(
            f"the hub at {url} does not answer within {format_seconds(seconds)}",
            hint="it, its machine or the network may be "
            f"overloaded: ask again with more --seconds; else {hint}",
        )
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return DiagError(
            f"the hub at {url} does not answer: the host name does not resolve",
            hint="--endpoint takes the address that the hub printed, as reached from this machine",
        )
    if type(error).__module__ == "ssl" and getattr(error, "reason", None) is not None:
        return _no_tls(url, error, hint)
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return DiagError(
            f"the hub at {url} does not answer: no route to it ({error.strerror})",
            hint="ask on the node itself, or through `ssh -L`",
        )
    if "speaks TLS" in message:
        return DiagError(f"{url} speaks TLS", hint=f"ask https{url.removeprefix('http')}")
    if isinstance(error, ConnectionError) or "without an answer" in message:
        return DiagError(
            f"{url} closed the connection without an answer",
            hint=f"where it serves TLS it is https:// there; else {hint}",
        )
    if "cut off" in message:
        return DiagError(
            f"the answer of {url} was cut off", hint=f"ask again; where the hub has ended: {hint}"
        )
    if isinstance(error, ValueError):
        return DiagError(f"{url} answers, but is not diag: {message}", hint=_NO_DIAG)
    return DiagError(f"the hub at {url} does not answer: {message}", hint=hint)


def _no_tls(url: str, error: BaseException, hint: str) -> DiagError:
    reason: str = getattr(error, "reason", "")
    if reason == "CERTIFICATE_VERIFY_FAILED":
        why = getattr(error, "verify_message", "") or _clean(str(error))
        return DiagError(
            f"the certificate of {url} is not trusted: {why}",
            hint="--tls-ca FILE (DIAG_TLS_CA): its certificate, or that of its issuer",
        )
    if reason in _PLAIN_ANSWERS:
        return DiagError(f"{url} does not speak TLS", hint=f"ask http{url.removeprefix('https')}")
    return DiagError(
        f"{url} and this machine have no TLS version or cipher in common: {reason.lower().replace('_', ' ')}",
        hint=hint,
    )


def refusal(url: str, status: int, reason: str, body: bytes, *, has_token: bool) -> DiagError:
    """Of an answer other than 200."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        given = {}
    if not isinstance(given, dict):
        given = {}
    detail, hint = _clean(str(given.get("detail") or "")), _clean(str(given.get("hint") or ""))
    answers = f"{url} answers {status} {_clean(reason)}".rstrip()
    if status == 401:
        return DiagError(
            f"{answers}: the token is not that of this run"
            if has_token
            else f"{answers}: it needs the run's token",
            hint=tokens.WHERE,
        )
    if not isinstance(given.get("detail"), str) or status in (*_REDIRECTS, _NOT_ALLOWED, _NOT_IMPLEMENTED):
        where = _NO_DIAG
        if status in (413, 429, 502, 503, 504):
            where = "something between here and the hub may answer so: ask on the node itself, or through `ssh -L`"
        return DiagError(f"{answers}, and is not diag", hint=where)
    if status == 404 and detail == "Not Found":
        return DiagError(f"{answers}: not diag, or an older version", hint=_NO_DIAG)
    if not hint and status == _FAILED:
        hint = "please report it with what the hub printed"
    elif not hint and status in (503, 504):
        hint = "ask again"
    return DiagError(f"{url}: {detail}", hint=hint)


def document_of(url: str, body: bytes) -> dict[str, Any]:
    """The JSON object that a hub answered. Raises DiagError."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        return document
    what = "nothing" if not body.strip() else "a page" if body.lstrip()[:1] == b"<" else "something else"
    raise DiagError(f"{url} answers, but is not diag: it returned {what}", hint=_NO_DIAG)


def _clean(text: str) -> str:
    from diag.text.sanitize import clean

    return clean(text)[:300]
