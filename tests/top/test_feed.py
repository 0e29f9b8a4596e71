"""Listening to a hub: what comes late, in pieces, as garbage or not at all, and how it ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from diag.cli.recorded import RecordedView
from diag.cli.tui import live as live_module
from diag.cli.tui.live import EventParser, Live
from diag.cli.tui.source import Inbox, Link
from diag.cli.tui.state import State
from diag.engine.replay import replay
from diag.outputs.http.app import create_app
from diag.outputs.http.server import serve
from diag.text.errors import DiagError
from tests.top.screens import CAPTURES, document

HANG = "gpu-drills/data-hang-TP2-PP2-EP2"
Answer = Callable[[BaseHTTPRequestHandler], None]


class Hub:
    """Answers /events by a script, one entry a connection, the last again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.seen: list[tuple[float, str | None]] = []
        self.going_on = threading.Event()  # set when the test is over: answers that wait end
        told = list(answers)
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.seen.append((time.monotonic(), self.headers.get("Authorization")))
                answer = told.pop(0) if len(told) > 1 else told[0]
                with contextlib.suppress(OSError):
                    answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.going_on.set()
        self._server.shutdown()
        self._server.server_close()


def event(part: str, value: Any) -> bytes:
    return f"event: {part}\ndata: {json.dumps(value)}\n\n".encode()


def begin(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "text/event-stream")
    request.end_headers()


def stream(*chunks: bytes, wait: float = 0.0) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        begin(request)
        for chunk in chunks:
            request.wfile.write(chunk)
            request.wfile.flush()
            time.sleep(wait)

    return answer


class Listener:
    """What a Live put into its inbox, folded into a state."""

    def __init__(self, hub: Hub | str, token: str | None = None, run_path: str | None = None) -> None:
        self.live = Live(hub if isinstance(hub, str) else hub.url, token, run_path, None)
        self.state = State()
        self.links: list[Link] = []
        self._woken = threading.Event()
        self.live.start(self._woken.set)

    def until(self, condition: Callable[[], object], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.links
            if self._woken.wait(0.2):
                self._woken.clear()
            parts, link = self.live.inbox.take()
            if link is not None:
                self.links.append(link)
            for part, value in parts.items():
                with contextlib.suppress(ValueError):
                    self.state.take(part, value)

    def said(self, word: str, about: str = "") -> bool:
        return any(link.word == word and about in link.about for link in self.links)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "_BACKOFF_SECONDS", (0.05, 0.1))


@contextlib.contextmanager
def listening(hub: Hub, **options: Any) -> Iterator[Listener]:
    listener = Listener(hub, **options)
    try:
        yield listener
    finally:
        listener.live.stop()
        hub.close()


def held(*chunks: bytes) -> Answer:
    """These, and then nothing until the test is over."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        stream(*chunks)(request)
        time.sleep(60)

    return answer


# --- a hub that answers oddly


def test_event_that_comes_byte_by_byte_is_whole_in_the_end() -> None:
    told = event("report", document(HANG)["report"])[:400] + b"\n\n"  # cut off: no JSON
    pieces = [bytes([byte]) for byte in event("now", {"at": 7.0})]
    with listening(Hub(held(b"retry: 2000\n\n", *pieces, told))) as heard:
        heard.until(lambda: heard.state.now == 7.0 and heard.said("LIVE", "not understood: report"))


def test_garbage_is_told_and_what_was_shown_stays() -> None:
    chunks = [
        event("now", {"at": 7.0}), b"event: now\ndata: {\n\n", b"data\n\xff\xfe\n\n", event("ranks", [1, 2]),
        event("ranks", {"rows": [None]}), event("of a newer hub", 1),
    ]  # fmt: skip
    with listening(Hub(held(*chunks))) as heard:
        heard.until(lambda: heard.said("LIVE", "not understood: ranks"))
        assert heard.state.now == 7.0 and heard.state.rows == {}


@pytest.mark.usefixtures("quick")
def test_no_http_and_refusals_are_lost_connections_and_the_next_may_do() -> None:
    def no_http(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"\x00\x01 not at all\r\n" * 50)

    def busy(request: BaseHTTPRequestHandler) -> None:
        request.send_response(503)
        request.end_headers()
        request.wfile.write(json.dumps({"detail": "too many pages are watching this run\x1b[2J"}).encode())

    with listening(Hub(no_http, busy, held(event("now", {"at": 9.0}))), token="secret") as heard:
        heard.until(lambda: heard.state.now == 9.0)
        assert [link.word for link in heard.links if link.word != "LIVE"] == ["LOST", "LOST"]
        assert heard.said("LOST", "it answers 503: too many pages are watching this run; trying again")
        assert heard.links[-1] == Link("LIVE")


@pytest.mark.usefixtures("quick")
def test_hub_that_falls_silent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "_SILENT_SECONDS", 0.3)
    with listening(Hub(held(event("now", {"at": 1.0})), held(event("now", {"at": 2.0})))) as heard:
        heard.until(lambda: heard.state.now == 2.0)
        assert heard.said("LOST", "nothing was received for")


def test_hub_that_is_gone_is_asked_ever_more_rarely() -> None:
    hub = Hub(stream())
    with listening(hub):
        end = time.monotonic() + 20
        while len(hub.seen) < 4 and time.monotonic() < end:
            time.sleep(0.05)
        times = [at for at, _ in hub.seen]
        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert waits[0] > 0.9 and waits[1] > 1.9 and waits[2] > 3.9, waits  # 1, 2, 4 s


def test_token_goes_along() -> None:
    hub = Hub(held(event("now", {"at": 1.0})))
    with listening(hub, token="secret") as heard:
        heard.until(lambda: heard.state.now == 1.0)
        assert hub.seen[0][1] == "Bearer secret"


def test_stream_without_an_end_is_given_up() -> None:
    parser = EventParser()
    with pytest.raises(ValueError, match="without an end"):
        for _ in range(80):
            list(parser.feed(b"x" * (1 << 20)))


def test_slow_reader_holds_the_latest_only() -> None:
    inbox = Inbox()
    for at in range(1000):
        inbox.put("now", {"at": float(at)})
        inbox.put("ranks", {"whole": at == 0, "rows": [{"rank": at % 4, "state": f"of {at}"}]})

    parts, _ = inbox.take()
    assert parts["now"] == {"at": 999.0} and parts["ranks"]["whole"]
    assert sorted(row["state"] for row in parts["ranks"]["rows"]) == ["of 996", "of 997", "of 998", "of 999"]
    assert inbox.take() == ({}, None)


# --- the end


@pytest.mark.usefixtures("quick")
def test_end_of_the_hub_is_told_with_what_became_of_the_job(tmp_path: Path) -> None:
    run = {"schema": "diag.run/1", "ended": True, "returncode": 137}
    (tmp_path / "run.json").write_text(json.dumps(run))
    with listening(Hub(stream(event("now", {"at": 3.0}), event("end", {}))), run_path=str(tmp_path)) as heard:
        heard.until(lambda: heard.said("ENDED"))
        assert heard.links[-1] == Link(
            "ENDED", "the job ended with exit code 137, and diag with it", f"diag top {tmp_path}"
        )
        assert heard.state.now == 3.0


@pytest.mark.usefixtures("quick")
def test_end_without_a_run_directory_is_told_and_a_new_hub_there_is_heard() -> None:
    hub = Hub(stream(event("now", {"at": 3.0}), event("end", {})), held(event("now", {"at": 4.0})))
    with listening(hub) as heard:
        heard.until(lambda: heard.state.now == 4.0)
        assert heard.said("ENDED", "this is its last state") and heard.links[-1].word == "LIVE"


@pytest.mark.usefixtures("quick")
def test_new_hub_of_the_same_run_is_found_at_its_new_address(tmp_path: Path) -> None:
    second = Hub(held(event("now", {"at": 5.0})))

    def publish(url: str) -> None:
        (tmp_path / "run.json").write_text(
            json.dumps({"schema": "diag.run/1", "url": url, "token": "of the second"})
        )

    first = Hub(stream(event("now", {"at": 3.0})))
    publish(first.url)
    with listening(first, run_path=str(tmp_path)) as heard:
        heard.until(lambda: heard.said("LOST"))
        publish(second.url)
        heard.until(lambda: heard.state.now == 5.0)
        assert second.seen[0][1] == "Bearer of the second"
    second.close()


# --- a hub of ours


def test_state_stacks_and_events_of_a_real_server_are_understood_whole() -> None:
    paths = [CAPTURES / HANG]
    view = RecordedView(replay(paths)[0], paths)
    assert create_app(view)
    server = serve(view, "127.0.0.1", 0)
    try:
        heard = Listener(server.url)
        first = State()
        first.take_document(heard.live.first())
        heard.until(lambda: len(heard.state.rows) == 4 and heard.state.stacks and heard.state.timeline.series)
        assert (heard.state.rows, heard.state.stacks, heard.state.report) == (
            first.rows,
            first.stacks,
            first.report,
        )
        assert heard.live.stacks(2)["main"]["pid"] == 2343
        with pytest.raises(DiagError, match="rank 77 was not seen"):
            heard.live.stacks(77)
        with pytest.raises(DiagError, match="recorded evidence"):
            heard.live.dump(80, "en")
    finally:
        server.stop()
    heard.until(lambda: heard.said("ENDED") or heard.said("LOST"))
    assert heard.said("ENDED"), heard.links
    heard.live.stop()
