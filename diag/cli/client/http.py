"""One request to an HTTP server on this machine: `diag dump` would wait 50 ms for the standard library's
clients to load."""

from __future__ import annotations

import socket
import time

from diag.text.units import format_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import http.client

_LONGEST = 256 << 20
_LONGEST_HEAD = 1 << 16
_TLS_ALERT = b"\x15\x03"  # RFC 8446, 5.1: a record's type and version


def post(url: str, headers: dict[str, str], seconds: float, ca: str | None = None) -> tuple[int, str, bytes]:
    """As `get`, for what makes the hub do something; without a body."""
    return get(url, {**headers, "Content-Length": "0"}, seconds, ca, "POST")


def get(
    url: str, headers: dict[str, str], seconds: float, ca: str | None = None, method: str = "GET"
) -> tuple[int, str, bytes]:
    """Status, reason and body, all within `seconds`. No redirects, and no proxy: it must neither see this nor
    be waited for. Raises OSError, or ValueError for what is not an HTTP response. For https:// the standard client is taken;
    `ca` as of `open_connection`.
    """
    scheme, _, rest = url.partition("://")
    place, _, path = rest.partition("/")
    if scheme == "https":
        return _by_library(method, url, headers, seconds, ca)
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, "80"
    end = time.monotonic() + seconds
    lines = [
        f"{method} /{path} HTTP/1.0",
        f"Host: {place}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a line break in the address or in the token")
    with socket.create_connection((host.strip("[]"), int(port)), seconds) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1", "replace"))
        received, body_at, wanted, length = _receive(connection, end)
    first = bytes(received[: max(0, received.find(b"\r\n"))]).decode("latin-1").split(" ", 2)
    if body_at < 0 or not first[0].startswith("HTTP/") or len(first) < 2:
        if received.startswith(_TLS_ALERT):
            raise ValueError("it speaks TLS")
        raise ValueError("not an HTTP response" if received else "it closed the connection without an answer")
    if length is not None and len(received) < wanted:
        raise ValueError("the answer was cut off")
    if length is None and len(received) >= wanted:
        raise ValueError(_too_long())
    return int(first[1]), first[2] if len(first) > 2 else "", bytes(received[body_at + 4 : wanted])


def _receive(connection: socket.socket, end: float) -> tuple[bytearray, int, int, int | None]:
    """All that comes up to what is wanted; where its body begins (-1: nowhere), where it ends at the most, and
    its length, where the head has one."""
    received = bytearray()
    length: int | None = None
    wanted, body_at = _LONGEST_HEAD + _LONGEST, -1
    while len(received) < wanted:
        connection.settimeout(max(0.001, end - time.monotonic()))
        chunk = connection.recv(1 << 16)
        if not chunk:
            break
        received += chunk
        if body_at < 0 and (body_at := received.find(b"\r\n\r\n")) >= 0:
            length = _length(bytes(received[:body_at]))
            wanted = body_at + 4 + (_LONGEST + 1 if length is None else length)
        if body_at < 0 and len(received) > _LONGEST_HEAD:
            raise ValueError("no end of the headers")
    return received, body_at, wanted, length


def _length(head: bytes) -> int | None:
    """None without a Content-Length: the body ends with the connection; HTTP/1.0 has no other way."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
            if length > _LONGEST:
                raise ValueError(_too_long())
            return length
    return None


def _too_long() -> str:
    return f"the answer has more than {format_bytes(_LONGEST)}"


def open_connection(url: str, seconds: float, ca: str | None) -> http.client.HTTPConnection:
    """The standard library's connection, not yet made: it knows no proxy. With `ca`, a file of certificates, a
    server that shows one of these is trusted under any name: hubs go by addresses."""
    import http.client
    import ssl

    scheme, _, rest = url.partition("://")
    place = rest.partition("/")[0]
    if scheme == "http":
        return http.client.HTTPConnection(place, timeout=seconds)
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = ca is None
    return http.client.HTTPSConnection(place, timeout=seconds, context=context)


def _by_library(
    method: str, url: str, headers: dict[str, str], seconds: float, ca: str | None
) -> tuple[int, str, bytes]:
    import http.client

    connection = open_connection(url, seconds, ca)
    try:
        connection.request(method, "/" + url.partition("://")[2].partition("/")[2], headers=headers)
        answer = connection.getresponse()
        body = answer.read(_LONGEST + 1)
        if len(body) > _LONGEST:
            raise ValueError(_too_long())
        return answer.status, answer.reason, body
    except http.client.IncompleteRead:
        raise ValueError("the answer was cut off") from None
    except http.client.HTTPException as error:
        raise ValueError(f"not an HTTP response: {error!r}") from None
    finally:
        connection.close()
