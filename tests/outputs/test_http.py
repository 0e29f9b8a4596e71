"""The app as a browser or a scraper asks it: what is answered, the pages, who may ask."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from diag.launch.ports import is_loopback
from diag.launch.service_discovery import Target
from diag.outputs.http.app import create_app
from tests.outputs.asking import TOKEN, ask


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


# --- what is answered


def test_findings_are_the_report_document(hung: Any) -> None:
    answer = ask(hung, "/findings")

    assert answer.json() == json.loads(json.dumps(hung.report()))
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["date"] == "Thu, 01 Jan 1970 00:00:00 GMT"
    assert answer.headers["cache-control"] == "no-store"


def test_rank_that_was_not_seen_is_a_clear_404(hung: Any) -> None:
    answer = ask(hung, "/ranks/9/stacks")

    assert (answer.status_code, answer.json()) == (
        404,
        {"detail": "rank 9 was not seen on this node; seen: [0, 1, 2, 3]"},
    )


@pytest.mark.parametrize(
    "path, status",
    [("/ranks/x/stacks", 422), ("/dump?deadline=x", 422), ("/dump?deadline=1e9", 422), ("/nope", 404)],
)
def test_errors_are_a_sentence_in_json(hung: Any, path: str, status: int) -> None:
    answer = ask(hung, path)

    assert answer.status_code == status
    assert isinstance(answer.json()["detail"], str)


def test_metrics_are_text_or_openmetrics_as_asked(hung: Any) -> None:
    plain, opened = (
        ask(hung, "/metrics"),
        ask(hung, "/metrics", accept="application/openmetrics-text;version=1.0.0"),
    )

    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert opened.headers["content-type"].startswith("application/openmetrics-text")
    assert opened.text.endswith("# EOF\n")


def test_health_says_nothing_about_the_job(hung: Any) -> None:
    assert ask(hung, "/healthz").json() == {"status": "ok"}


def test_dump_gets_the_deadline_and_is_sent_as_it_is(hung: Any) -> None:
    assert ask(hung, "/dump").json()["deadline"] == 10.0
    assert ask(hung, "/dump?deadline=3").json()["deadline"] == 3.0


def test_dump_comes_with_its_text_for_who_has_a_terminal(hung: Any) -> None:
    async def small(deadline: float) -> dict[str, Any]:
        return {
            "report": hung.report(),
            "text": "rank 3: data",
            "missing": {},
            "ranks": [],
            "seconds": 0.1,
            "probes": [],
        }

    hung.on_dump = small

    assert "screen" not in ask(hung, "/dump").json()
    plain, coloured = (ask(hung, f"/dump?columns=80&colour={colour}").json()["screen"] for colour in (0, 1))
    assert "rank 3: data" in plain and "no process was paused" in plain
    assert "\x1b[" in coloured and "\x1b[" not in plain


def test_two_who_ask_for_a_dump_at_once_get_the_same(hung: Any) -> None:
    started = []

    async def slow(deadline: float) -> dict[str, Any]:
        started.append(deadline)
        await asyncio.sleep(0.05)
        return {"n": len(started)}

    hung.on_dump = slow

    async def both() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=create_app(hung))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return list(await asyncio.gather(client.get("/dump"), client.get("/dump")))

    assert [answer.json() for answer in asyncio.run(both())] == [{"n": 1}, {"n": 1}]


def test_broken_dump_is_a_500_that_says_what(hung: Any) -> None:
    async def broken(deadline: float) -> dict[str, Any]:
        raise KeyError("pid")

    hung.on_dump = broken

    answer = ask(hung, "/dump")

    assert answer.status_code == 500
    assert answer.json() == {"detail": "diag failed here, please report it: KeyError: 'pid'"}


def test_hub_that_holds_its_lock_is_reported_busy(hung: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diag.outputs.http.app._LOCK_SECONDS", 0.05)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with hung.lock:
            held.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    answer = ask(hung, "/healthz")
    release.set()
    holder.join()

    assert answer.status_code == 503
    assert "busy" in answer.json()["detail"]


# --- pages


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_load_nothing_from_elsewhere(hung: Any, path: str) -> None:
    answer = ask(hung, path)

    assert "default-src 'none'" in answer.headers["content-security-policy"]
    links = [value or "" for name, value in Page(answer.text).attributes if name in ("src", "href")]
    assert not [link for link in links if "//" in link]


def test_docs_list_every_endpoint_of_the_contract(hung: Any) -> None:
    text = Page(ask(hung, "/docs").text).text

    for path in ("/findings", "/ranks", "/ranks/{rank}/stacks", "/dump", "/metrics", "/healthz"):
        assert f"GET {path}" in text
    assert ask(hung, "/openapi.json").json()["info"]["version"] == hung.version


# --- who may ask


@pytest.mark.parametrize(
    "host", ["localhost:1", "127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "[::1]", "LOCALHOST"]
)
def test_loopback_answers_to_its_own_names(hung: Any, host: str) -> None:
    assert ask(hung, "/findings", Host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil:80", ""]
)
def test_loopback_refuses_a_rebound_name(hung: Any, host: str) -> None:
    answer = ask(hung, "/metrics", Host=host)

    assert answer.status_code == 403
    assert "Host header" in answer.json()["detail"]


def test_page_of_another_site_can_neither_read_nor_start_a_dump(hung: Any) -> None:
    assert ask(hung, "/findings", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status_code == 403
    assert ask(hung, "/dump", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="navigate").status_code == 403
    assert ask(hung, "/dump", method="POST", Origin="http://evil.example").status_code == 403


def test_prometheus_gets_the_hubs_that_are_known(hung: Any) -> None:
    hung.known_targets = (
        Target("10.0.0.7:9095", "812", "gpu-17", "run-1"),
        Target("10.0.0.8:9095", "812", "gpu-18", "run-2"),
    )

    answer = ask(hung, "/sd")

    assert answer.headers["content-type"] == "application/json"  # Prometheus takes no other
    assert answer.json() == [
        {
            "targets": ["10.0.0.7:9095"],
            "labels": {"job_id": "812", "node": "gpu-17", "__meta_diag_run_id": "run-1"},
        },
        {
            "targets": ["10.0.0.8:9095"],
            "labels": {"job_id": "812", "node": "gpu-18", "__meta_diag_run_id": "run-2"},
        },
    ]


def test_own_page_and_followed_links_are_welcome(hung: Any) -> None:
    assert ask(hung, "/findings", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors").status_code == 200
    assert ask(hung, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status_code == 200
    assert ask(hung, "/dump", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="navigate").status_code == 200


@pytest.fixture
def beyond(hung: Any) -> Any:
    hung.token, hung.bound_beyond_loopback = TOKEN, True
    return hung


@pytest.mark.parametrize(
    "path", ["/", "/findings", "/ranks", "/ranks/0/stacks", "/dump", "/sd", "/docs", "/openapi.json", "/x"]
)
def test_beyond_loopback_all_but_metrics_and_health_needs_the_token(beyond: Any, path: str) -> None:
    answer = ask(beyond, path, host="0.0.0.0", Host="gpu-17:8080")

    assert answer.status_code == 401
    # A line each: Chromium takes a line for one challenge, and asks for a password for Basic alone.
    challenges = answer.headers.get_list("www-authenticate")
    assert [line.partition(" ")[0] for line in challenges] == ["Basic", "Bearer"]
    assert "Authorization: Bearer" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
def test_beyond_loopback_metrics_and_health_are_open(beyond: Any, path: str) -> None:
    assert ask(beyond, path, host="0.0.0.0", Host="gpu-17:8080").status_code == 200


BASIC = base64.b64encode(f"me:{TOKEN}".encode()).decode()
WRONG = base64.b64encode(b"me:wrong").decode()


@pytest.mark.parametrize(
    "given_, status",
    [(f"Bearer {TOKEN}", 200), (f"bearer {TOKEN}", 200), (f"Basic {BASIC}", 200), (f"Basic {WRONG}", 401), ("Basic !", 401),
     (TOKEN, 401), ("Bearer", 401), ("Bearer ", 401), (f"Bearer {TOKEN}x", 401), (f"Digest {TOKEN}", 401)],
)  # fmt: skip
def test_token_opens_and_nothing_else_does(beyond: Any, given_: str, status: int) -> None:
    assert ask(beyond, "/findings", host="0.0.0.0", Authorization=given_).status_code == status


def test_bound_beyond_loopback_without_a_token_only_metrics_are_told(beyond: Any) -> None:
    beyond.token = None

    assert ask(beyond, "/findings", host="0.0.0.0", Authorization="Bearer ").status_code == 403
    assert ask(beyond, "/metrics", host="0.0.0.0").status_code == 200


def test_address_beyond_loopback_asks_for_the_token_even_if_the_hub_forgot_to_say_so(beyond: Any) -> None:
    beyond.bound_beyond_loopback = False

    assert ask(beyond, "/findings", host="10.0.0.7").status_code == 401


@pytest.mark.parametrize(
    "host, expected", [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
                       ("::", False), ("10.0.0.1", False), ("localhost.evil", False), ("", False), ("gpu-17", False)],
)  # fmt: skip
def test_loopback_is_told_from_the_world(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
