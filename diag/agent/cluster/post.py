"""One request to another hub: JSON there and back, within a deadline. No redirects and no proxies."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_LONGEST_ANSWER = 256 << 20
_RTT_AT = 68  # 8 bytes, then tcpi_rto as the first of the 32-bit numbers, tcpi_rtt the sixteenth
_PACK_ABOVE = 1024  # bytes; smaller ones fit into one packet as they are


class Failed(Exception):
    """No answer, or none that a hub gives. `kind` is timeout, refused, unreachable, unresolved or no_hub."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Refused(Failed):
    """A hub that answers, and takes nothing from us: 401 (another token), 409 (another job), 503 (busy)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__("no_hub", text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Exchange:
    """An answer, and what it took. `connect_seconds`: from SYN to its answer, as the kernel measured it: no
    program of either side is part of it. None where the kernel does not tell."""

    answer: Any
    sent_bytes: int
    received_bytes: int
    connect_seconds: float | None


@dataclass(frozen=True, slots=True)
class Sender:
    """`ca` is a file of certificates that hubs are trusted by; names in them are not compared, since hubs go
    by addresses."""

    token: str
    ca: Path | None = None

    def send(self, url: str, path: str, document: Any, seconds: float) -> Exchange:
        """POST a document. Raises Failed."""
        data = json.dumps(document, separators=(",", ":")).encode("utf-8", "backslashreplace")
        headers = {"Content-Type": "application/json"}
        if len(data) > _PACK_ABOVE:
            data, headers["Content-Encoding"] = gzip.compress(data, 1), "gzip"
        return self._ask("POST", url, path, data, headers, seconds)

    def get(self, url: str, path: str, seconds: float) -> Any:
        return self._ask("GET", url, path, None, {}, seconds).answer

    def _ask(  # noqa: PLR0917 - one place
        self, method: str, url: str, path: str, data: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> Exchange:
        connection = self._connection(url, seconds)
        until = time.monotonic() + seconds
        try:
            connection.connect()
            trip = _round_trip(connection.sock)
            connection.request(
                method,
                path,
                data,
                {
                    "Authorization": f"Bearer {self.token}",
                    "Accept-Encoding": "gzip",
                    "Connection": "close",
                    **headers,
                },
            )
            if connection.sock is not None:
                connection.sock.settimeout(max(0.05, until - time.monotonic()))
            answer = connection.getresponse()
            body = answer.read(_LONGEST_ANSWER)
            if answer.headers.get("Content-Encoding") == "gzip":
                body = zlib.decompressobj(31).decompress(body, _LONGEST_ANSWER)
            if answer.status != 200:
                raise Refused(answer.status, _detail(body) or f"{answer.status} {answer.reason}")
            return Exchange(json.loads(body), len(data or b""), len(body), trip)
        except Failed:
            raise
        except (OSError, http.client.HTTPException, ValueError, RecursionError, zlib.error) as error:
            raise _failed(error) from error
        finally:
            connection.close()

    def _connection(self, url: str, seconds: float) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
            context.check_hostname = False
            return http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=seconds, context=context
            )
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)


def _round_trip(connection: socket.socket | None) -> float | None:
    """tcpi_rtt of Linux (include/uapi/linux/tcp.h, struct tcp_info, in microseconds), right behind the
    handshake."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104) if connection else b""
        return float(struct.unpack_from("=I", info, _RTT_AT)[0]) / 1e6
    except (OSError, AttributeError, struct.error):
        return None


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])[:300]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


# the first that fits
_WHY: tuple[tuple[type[OSError], str], ...] = (
    (socket.gaierror, "unresolved"),
    (TimeoutError, "timeout"),
    (ConnectionError, "refused"),  # or it was there, and closed
    (ssl.SSLError, "no_hub"),
    (OSError, "unreachable"),
)


def _failed(error: Exception) -> Failed:
    text = str(getattr(error, "strerror", None) or error or type(error).__name__)
    why = next((why for kind, why in _WHY if isinstance(error, kind)), "no_hub")
    if isinstance(error, TimeoutError):
        text = "no answer in time"
    elif isinstance(error, ssl.SSLError):
        text = f"TLS: {text}"
    elif not isinstance(error, OSError):
        text = f"not a diag hub: {text}"
    return Failed(why, text)


def try_connection(url: str, seconds: float) -> tuple[str, float]:
    """Whether a hub listens there: connected, or why not; and how long that took."""
    parts = urlsplit(url)
    began = time.monotonic()
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), seconds).close()
        return "connected", time.monotonic() - began
    except (OSError, ValueError, OverflowError) as error:
        return _failed(error).kind if isinstance(error, OSError) else "unresolved", time.monotonic() - began
