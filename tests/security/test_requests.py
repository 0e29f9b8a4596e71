"""Requests as attackers make them: of other sites' pages, of a rebound name, malformed, huge. The app is
asked through ASGI, the server on a real port where its own parsing counts."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import re
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from diag.outputs.http import app as http_module
from diag.outputs.http.app import create_app
from diag.outputs.http.server import Server, serve
from tests.outputs.conftest import FakeHub, finding, tell_job

TOKEN = "t" * 32
COSTLY = [
    ("GET", "/dump"),
    ("POST", "/dump"),
    ("GET", "/ranks/0/flame"),
    ("POST", "/ranks/0/flame"),
    ("POST", "/digests"),
]


@pytest.fixture
def hub() -> FakeHub:
    hub = FakeHub()
    tell_job(hub, 2)
    return hub


def ask(
    hub: Any, method: str, path: str, bound: str = "127.0.0.1", content: bytes = b"", **headers: str
) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=create_app(hub, host=bound), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9095") as client:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, path, headers=named, content=content)

    return asyncio.run(asked())


# --- other sites
# -----------------------------------------------------------------------------------------------

# As Chromium, Firefox and Safari send them (Fetch metadata), and as browsers of before 2023 did.
FOREIGN = {
    "a form": (
        "POST",
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Origin": "http://evil.example"},
    ),
    "a form of a sandboxed frame": ("POST", {"Sec_Fetch_Site": "cross-site", "Origin": "null"}),
    "fetch": (
        "POST",
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Origin": "http://evil.example"},
    ),
    "an image": (
        "GET",
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"},
    ),
    "a link": (
        "GET",
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"},
    ),
    "a frame": (
        "GET",
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ),
    "another port of this host": ("POST", {"Sec_Fetch_Site": "same-site", "Origin": "http://127.0.0.1:8888"}),
    "an old browser's form": ("POST", {"Origin": "http://evil.example"}),
    "an old browser's form in a frame": ("POST", {"Origin": "null"}),
    "an old browser's fetch": ("GET", {"Origin": "http://evil.example"}),
}


@pytest.mark.parametrize("way", FOREIGN)
@pytest.mark.parametrize("path", ["/dump", "/ranks/0/flame"])
def test_no_page_of_another_site_makes_diag_do_anything(hub: FakeHub, way: str, path: str) -> None:
    method, headers = FOREIGN[way]

    answer = ask(hub, method, path, **headers)

    assert answer.status_code == 403 and "another site" in answer.json()["detail"]


@pytest.mark.parametrize("headers", [
    {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors", "Origin": "http://127.0.0.1:9095"},
    {"Sec_Fetch_Site": "same-origin", "Origin": "http://gateway.example"},  # behind a proxy that sets Host anew
    {"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate"}, {"Origin": "http://127.0.0.1:9095"}, {},
])  # fmt: skip
def test_own_page_and_a_terminal_may_ask_for_a_dump(hub: FakeHub, headers: dict[str, str]) -> None:
    assert ask(hub, "POST", "/dump", **headers).status_code == 200


@pytest.mark.parametrize("path", ["/state", "/events", "/findings", "/dump", "/metrics"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9095", "127.0.0.1.nip.io:9095", "localhost.evil.example", ""]
)
def test_rebound_name_gets_nothing(hub: FakeHub, path: str, host: str) -> None:
    answer = ask(hub, "GET", path, Host=host, Sec_Fetch_Site="same-origin")

    assert answer.status_code == 403 and b"rank" not in answer.content


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_nobody_is_given_leave_to_read_from_elsewhere(hub: FakeHub, method: str) -> None:
    told = ask(hub, method, "/findings", Origin="http://127.0.0.1:9095", Access_Control_Request_Method="POST",
               Access_Control_Request_Headers="authorization").headers  # fmt: skip

    assert [name for name in told if name.startswith("access-control")] == []


# --- the token
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method, path", COSTLY)
def test_where_there_is_a_token_it_is_needed_for_what_costs_ranks_something_on_loopback_too(
    hub: FakeHub, method: str, path: str
) -> None:
    hub.token = TOKEN

    assert ask(hub, method, path).status_code == 401
    assert ask(hub, method, path, Authorization=f"Bearer {TOKEN[:-1]}").status_code == 401
    assert ask(hub, method, path, Authorization=f"Bearer {TOKEN}").status_code in (200, 409, 422)
    assert ask(hub, "GET", "/findings").status_code == 200


@pytest.mark.parametrize("path", ["/metrics/../findings", "/metrics/", "/metrics//", "//metrics", "/healthz/../dump", "/METRICS",
                                  "/metrics;/findings", "/%2e/findings", "/metrics%00/findings"])  # fmt: skip
def test_no_spelling_of_a_path_gets_around_the_token(hub: FakeHub, path: str) -> None:
    hub.token, hub.bound_beyond_loopback = TOKEN, True

    assert (
        ask(hub, "GET", path, bound="0.0.0.0").status_code in (401, 404) or urlsplit(path).path == "/metrics"
    )


# --- what goes with every answer
# -------------------------------------------------------------------------------

ANSWERS = [
    ("GET", "/", 200), ("GET", "/assets/app.js", 200), ("GET", "/assets/style.css", 200), ("GET", "/assets/none.js", 404),
    ("GET", "/assets/vendor/preact.js", 200), ("GET", "/assets/..%2f..%2fhub.py", 404), ("GET", "/findings", 200),
    ("GET", "/ranks", 200),
    ("GET", "/state", 200), ("GET", "/metrics", 200), ("GET", "/docs", 200), ("GET", "/openapi.json", 200), ("GET", "/nope", 404),
    ("GET", "/timeline", 200), ("GET", "/explain/hang", 200), ("GET", "/sd", 200), ("GET", "/nodes", 200),
    ("GET", "/healthz", 200), ("GET", "/report.html", 200), ("GET", "/bundles/none.tar.gz", 404),
    ("GET", "/ranks/x/stacks", 422), ("DELETE", "/findings", 405), ("POST", "/digests", 422), ("POST", "/dump", 200),
    ("GET", "/flame", 200), ("GET", "/ranks/0/flame", 200), ("GET", "/drawings/none", 404), ("POST", "/dump?deadline=x", 422),
]  # fmt: skip


def has_all(headers: httpx.Headers) -> None:
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
    policy = headers["content-security-policy"]
    assert policy.count("default-src 'none'") == 1
    assert "frame-ancestors 'none'" in policy or ("sandbox" in policy and "frame-ancestors 'self'" in policy)
    assert not re.search(r"https?:|\*|unsafe-eval", policy)
    assert "sandbox" in policy or "unsafe-inline" not in policy


@pytest.mark.parametrize("method, path, status", ANSWERS)
def test_every_answer_has_the_headers(hub: FakeHub, method: str, path: str, status: int) -> None:
    answer = ask(hub, method, path)

    assert answer.status_code == status
    has_all(answer.headers)


def test_refusals_and_failures_have_them_too(hub: FakeHub) -> None:
    async def broken(deadline: float) -> dict[str, Any]:
        raise KeyError("pid")

    hub.on_dump = broken
    failed = ask(hub, "POST", "/dump")
    hub.token = TOKEN

    assert failed.status_code == 500
    for answer in (failed, ask(hub, "GET", "/", Host="evil.example"), ask(hub, "POST", "/dump")):
        has_all(answer.headers)


@pytest.mark.parametrize("path", ["/findings", "/state", "/dump"])
def test_answers_of_json_print_on_a_terminal_as_they_read(hub: FakeHub, path: str) -> None:
    odd = "loss \x9d0;title\x07 \u202egnp.exe\u2066 \u200b\x7f \U000e0041 \u2028 \u00e9 \u4e2d"
    hub.says.findings = [finding(summary=odd)]
    hub.engine.advance(2000.0)

    answer = ask(hub, "GET", path)

    assert odd in json.dumps(answer.json(), ensure_ascii=False).replace("\\u0007", "\x07")
    assert [char for char in answer.text if not char.isprintable()] == []
    assert "\u00e9 \u4e2d" in answer.text  # letters stay as they are


def test_policies_are_on_every_route_that_there_is(hub: FakeHub) -> None:
    """A route that is added later is in the list above, or this fails."""
    paths = {path for path in create_app(hub).openapi()["paths"] if path != "/events"}
    asked = {path.partition("?")[0] for _, path, _ in ANSWERS}

    patterns = {path: re.compile(re.sub(r"\{\w+\}", "[^/]+", path) + "$") for path in paths}
    assert {path for path, pattern in patterns.items() if not any(map(pattern.match, asked))} == set()


def test_pages_have_no_script_nor_style_of_their_own_and_load_nothing_from_elsewhere(hub: FakeHub) -> None:
    text = ask(hub, "GET", "/").text
    loaded = re.findall(r"(?:src|href)=\"([^\"]*)\"", text)

    assert loaded and all(not re.match(r"(?:\w+:)?//", each) or each.startswith("data:") for each in loaded)
    assert re.findall(r"<script[^>]*>([^<]+)", text) == [] and "<style" not in text
    assert not re.search(r"\son\w+\s*=|javascript:|\sstyle\s*=", text)


# --- bodies
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body, encoding, status", [
    (gzip.compress(b"[" * (200 << 20), 9, mtime=0), "gzip", 422), (b"{" * 100_000, "", 422), (b'{"node":' * 50_000, "", 422),
    (b"\x1f\x8b" + b"\0" * 100, "gzip", 422), (b'{"a": NaN}', "", 422), (b"\xff\xfe", "", 422), (b"1" * 100_000, "", 422),
], ids=["bomb", "open", "deep", "torn", "nan", "bytes", "number"])  # fmt: skip
def test_body_of_nonsense_is_refused_in_little_time_and_memory(
    hub: FakeHub, body: bytes, encoding: str, status: int
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    began = time.monotonic()
    answer = ask(
        hub, "POST", "/digests", content=body, **({"Content_Encoding": encoding} if encoding else {})
    )

    assert answer.status_code == status and time.monotonic() - began < 20.0
    # KiB: twice the longest digest, and room
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_body_that_is_announced_too_long_is_not_read(hub: FakeHub) -> None:
    assert ask(hub, "POST", "/digests", content=b"", Content_Length=str(1 << 40)).status_code == 422


# --- a real port
# -----------------------------------------------------------------------------------------------


@pytest.fixture
def server(hub: FakeHub) -> Iterator[Server]:
    server = serve(hub)
    yield server
    server.stop()


def talk(server: Server, sent: bytes) -> bytes:
    """All that comes until the server closes, or an answer is there and nothing follows it for a while."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection, contextlib.suppress(OSError):
        connection.sendall(sent)
        while chunk := connection.recv(1 << 16):
            received += chunk
            connection.settimeout(0.3)
    return received


HOST = b"Host: 127.0.0.1\r\n"


@pytest.mark.parametrize("sent, status", [
    (b"GET / HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    (b"GET / HTTP/1.0\r\n\r\n", b"403"),
    (b"GET http://127.0.0.1/findings HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"403"),
    (b"POST /digests HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b"400"),
    (b"POST /digests HTTP/1.1\r\n" + HOST + b"Content-Length: +5\r\n\r\nhello", b"400"),
    (b"POST /digests HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", b"400"),
    (b"POST /digests HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\nY: b\r\n\r\n", b"200"),
    (b"GET / HTTP/1.1\r\n" + HOST + b" folded: x\r\n\r\n", b"403"),
    (b"GET / HTTP/1.1\r\n" + HOST + b"X : a\r\n\r\n", b"400"),
    (b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n", b"400"),
    (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * (1 << 20) + b"\r\n\r\n", b"400"),
    (b"CONNECT 10.0.0.1:22 HTTP/1.1\r\n" + HOST + b"\r\n", b"404"),
    (b"TRACE / HTTP/1.1\r\n" + HOST + b"Authorization: Bearer x\r\n\r\n", b"405"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"403"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100, b"400"),
], ids=[str(number) for number in range(17)])  # fmt: skip
def test_malformed_request_is_refused_and_the_next_one_answered(
    server: Server, sent: bytes, status: bytes
) -> None:
    answer = talk(server, sent)

    assert answer.split(b" ")[1] == status, answer[:300]
    assert b"nosniff" in answer and (b"Bearer x" not in answer)
    assert talk(server, b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n").startswith(
        b"HTTP/1.1 200"
    )


def test_request_inside_of_a_body_is_no_request(server: Server) -> None:
    """Both lengths given: the chunks count, and nothing behind them is taken for an answer's beginning."""
    inner = b"GET /findings HTTP/1.1\r\n" + HOST + b"\r\n"
    head = (
        b"POST /digests HTTP/1.1\r\n"
        + HOST
        + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(inner)
    )
    sent = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)

    assert talk(server, sent).count(b"HTTP/1.1 ") == 1


def test_guessing_a_token_costs_a_request_each_and_tells_nothing(hub: FakeHub) -> None:
    hub.token, hub.bound_beyond_loopback = TOKEN, True
    answers = {ask(hub, "GET", "/findings", bound="0.0.0.0", Authorization=f"Bearer {guess}").content
               for guess in ("", "t", TOKEN[:-1], TOKEN + "t", "x" * 32, "x" * 100_000)}  # fmt: skip

    assert len(answers) == 1


# --- connections
# -----------------------------------------------------------------------------------------------


def is_answered(server: Server) -> bool:
    return talk(server, b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n").startswith(
        b"HTTP/1.1 200"
    )


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\n" + HOST, b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
                                   b"POST /dump HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n",
                                   b"POST /digests HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n"],
                         ids=["silent", "head", "kept alive", "body that nobody reads", "body of a digest"])  # fmt: skip
def test_connection_that_drips_is_closed(hub: FakeHub, first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diag.outputs.http.connections._REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(http_module, "_BODY_SECONDS", 0.3)
    server = serve(hub)
    try:
        with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
            connection.settimeout(0.05)
            ended = False
            connection.sendall(first)
            for _ in itertools.repeat(None, 100):  # a byte every 50 ms, for 5 s at most
                try:
                    connection.sendall(b"x")
                    ended = connection.recv(1 << 16) == b""
                except TimeoutError:
                    continue
                except OSError:
                    ended = True
                if ended:
                    break
            assert ended
        assert is_answered(server)
    finally:
        server.stop()


def test_answer_that_nobody_takes_is_given_up(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diag.outputs.http.connections._UNREAD_SECONDS", 1)
    server = serve(hub)
    try:
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", server.port))
        reader.sendall((b"GET /assets/vendor/uplot.js HTTP/1.1\r\n" + HOST + b"\r\n") * 40)

        reader.recv(1)
        assert open_connections(server) == 1
        until = time.monotonic() + 20
        while time.monotonic() < until and open_connections(server):
            time.sleep(0.05)

        assert open_connections(server) == 0
        reader.close()
    finally:
        server.stop()


def open_connections(server: Server) -> int:
    return sum(1 for one in psutil.Process().net_connections("tcp") if one.laddr and one.laddr.port == server.port
               and one.status in (psutil.CONN_ESTABLISHED, psutil.CONN_CLOSE_WAIT))  # fmt: skip
