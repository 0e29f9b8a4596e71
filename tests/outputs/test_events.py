"""What the page hears of changes: /events, and how they are made."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from diag.cli.recorded import RecordedView
from diag.engine.replay import replay
from diag.outputs.http import events as events_module
from diag.outputs.http import server as server_module
from diag.outputs.http.app import create_app
from diag.outputs.http.events import MOST_LISTENERS, Events, TooMany
from diag.outputs.view.parts import SLOW_PARTS, own_parts, with_others

CAPTURES = Path(__file__).parent.parent / "captures"
HANG = CAPTURES / "gpu-drills/data-hang-TP2-PP2-EP2"


class StepSamples:
    """What `Events` is told to show, look by look; the last again and again."""

    def __init__(self, *told: dict[str, Any]) -> None:
        self.told = list(told)
        self.count = 0
        self.slow: list[bool] = []

    async def __call__(self, slow: bool) -> dict[str, Any]:
        self.count += 1
        self.slow.append(slow)
        return dict(self.told.pop(0) if len(self.told) > 1 else self.told[0])


def parts(report: str, *rows: tuple[int, str]) -> dict[str, Any]:
    return {"report": report, "ranks": [{"rank": rank, "state": state} for rank, state in rows]}


async def heard(stream: AsyncIterator[bytes], count: int) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    while len(found) < count:
        chunk = (await asyncio.wait_for(stream.__anext__(), 10)).decode()
        match = re.fullmatch(r"event: (\w+)\ndata: (.*)\n\n", chunk)
        if match:
            found.append((match[1], json.loads(match[2])))
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "LOOK_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
def test_only_what_changed_is_told_again() -> None:
    async def play() -> list[tuple[str, Any]]:
        shown = Events(
            StepSamples(parts("a", (0, "running"), (1, "running")), parts("a", (0, "running"), (1, "hung")))
        )
        stream = await shown.listen()
        found = await heard(stream, 3)
        shown.close()
        return found

    assert asyncio.run(play()) == [
        ("report", "a"),
        (
            "ranks",
            {"whole": True, "rows": [{"rank": 0, "state": "running"}, {"rank": 1, "state": "running"}]},
        ),
        ("ranks", {"whole": False, "rows": [{"rank": 1, "state": "hung"}]}),
    ]


@pytest.mark.usefixtures("quick")
def test_rank_that_is_gone_goes_from_the_page_though_another_came_at_the_same_look() -> None:
    async def play() -> list[tuple[str, Any]]:
        shown = Events(
            StepSamples(
                parts("a", (0, "running"), (1, "running")), parts("a", (0, "running"), (2, "starting"))
            )
        )
        stream = await shown.listen()
        found = await heard(stream, 3)
        shown.close()
        return found

    rows = [{"rank": 0, "state": "running"}, {"rank": 2, "state": "starting"}]
    assert asyncio.run(play())[-1] == ("ranks", {"whole": True, "rows": rows})


@pytest.mark.usefixtures("quick")
def test_who_comes_while_there_is_no_rank_is_told_so() -> None:
    async def play() -> list[tuple[str, Any]]:
        shown = Events(StepSamples(parts("a")))
        await heard(await shown.listen(), 2)
        found = await heard(await shown.listen(), 2)
        shown.close()
        return found

    assert asyncio.run(play()) == [("report", "a"), ("ranks", {"whole": True, "rows": []})]


@pytest.mark.usefixtures("quick")
def test_listener_that_goes_before_its_first_byte_leaves_its_place() -> None:
    async def play() -> None:
        shown = Events(StepSamples(parts("a", (0, "running"))))
        for _ in range(MOST_LISTENERS):
            stream = await shown.listen()
            await stream.aclose()  # type: ignore[attr-defined]
        await heard(await shown.listen(), 2)
        shown.close()

    asyncio.run(play())


def test_end_of_the_server_does_not_wait_for_a_page_that_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "_GRACE_SECONDS", 100)
    view = RecordedView(replay([HANG])[0], [HANG])
    view.recorded = "x" * (64 << 20)  # more than two sockets hold
    server = server_module.serve(view)

    def is_full() -> bool:
        return any(one.flow.write_paused for one in server._server.server_state.connections)

    try:
        with socket.create_connection(("127.0.0.1", server.port)) as page:
            page.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            end = time.monotonic() + 60
            while not is_full() and time.monotonic() < end:
                time.sleep(0.01)
            assert is_full() and server.stop(30)
    finally:
        server.stop(0)


def test_who_comes_while_the_server_ends_is_told_so() -> None:
    async def play() -> bytes:
        shown = Events(StepSamples(parts("a", (0, "running"))))
        shown.close()
        return b"".join([chunk async for chunk in await asyncio.wait_for(shown.listen(), 10)])

    assert asyncio.run(asyncio.wait_for(play(), 30)) == b"retry: 2000\n\nevent: end\ndata: {}\n\n"


@pytest.mark.usefixtures("quick")
def test_listener_that_does_not_read_gets_the_latest_and_holds_no_more() -> None:
    async def play() -> list[tuple[str, Any]]:
        looks = StepSamples(*(parts(f"say {n}", (0, f"state {n}")) for n in range(200)))
        shown = Events(looks)
        stream = await shown.listen()
        while looks.count < 202:  # the last of the 200 was taken in before one more look was asked for
            await asyncio.sleep(0.01)
        found = await heard(stream, 2)
        shown.close()
        return found

    assert asyncio.run(play()) == [
        ("report", "say 199"),
        ("ranks", {"whole": True, "rows": [{"rank": 0, "state": "state 199"}]}),
    ]


@pytest.mark.usefixtures("quick")
def test_nobody_looks_when_nobody_listens_any_more() -> None:
    async def play() -> tuple[int, int]:
        looks = StepSamples(parts("a", (0, "running")))
        shown = Events(looks)
        stream = await shown.listen()
        await heard(stream, 2)
        await stream.aclose()  # type: ignore[attr-defined]
        task = shown._task
        assert task is not None
        await asyncio.wait_for(task, 10)
        before = looks.count
        await asyncio.sleep(0.05)
        return before, looks.count

    before, after = asyncio.run(play())
    assert before == after


@pytest.mark.usefixtures("quick")
def test_looks_that_cost_much_are_made_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    sleep = asyncio.sleep

    async def look(slow: bool) -> dict[str, Any]:
        await sleep(0.05)
        return parts("a", (0, "running"))

    async def pause(seconds: float) -> None:
        paused.append(seconds)
        await sleep(0)

    async def play() -> None:
        shown = Events(look)
        stream = await shown.listen()
        monkeypatch.setattr(events_module.asyncio, "sleep", pause)
        await heard(stream, 2)
        while not paused:
            await sleep(0.01)
        shown.close()

    asyncio.run(play())
    assert paused[0] >= 0.05 * 20


@pytest.mark.usefixtures("quick")
def test_what_is_large_and_changes_slowly_is_made_at_each_fifth_look_only() -> None:
    async def play() -> list[bool]:
        looks = StepSamples(*(parts(f"say {n}", (0, "running")) for n in range(12)))
        shown = Events(looks)
        stream = await shown.listen()  # kept: a stream that nobody has is closed
        while looks.count < 11:
            await asyncio.sleep(0.01)
        shown.close()
        await stream.aclose()  # type: ignore[attr-defined]
        return looks.slow[:11]

    assert [number for number, slow in enumerate(asyncio.run(play())) if slow] == [0, 5, 10]


def test_look_without_the_slow_parts_makes_no_timeline(hung: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = with_others(own_parts(hung), hung)
    monkeypatch.setattr(hung.engine, "timeline", None)  # whoever asks it fails

    assert with_others(own_parts(hung, slow=False), hung, slow=False).keys() == whole.keys() - set(SLOW_PARTS)


@pytest.mark.parametrize("path", ["/state", "/ranks", "/nodes", "/metrics"])
def test_server_answers_others_while_one_waits_for_the_job_hub(
    path: str, hung: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_hub_lock, waiting = threading.Lock(), threading.Event()

    def held(value: Any) -> Any:
        waiting.set()
        with job_hub_lock:
            return value

    monkeypatch.setattr(hung.cluster, "takes_digests", True)
    for name, value in (("other_ranks", []), ("nodes", []), ("facts", None)):
        monkeypatch.setattr(hung.cluster, name, lambda value=value: held(value))

    async def play() -> tuple[int, bool, int]:
        transport = httpx.ASGITransport(create_app(hung))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            asked = asyncio.ensure_future(client.get(path))
            while not waiting.is_set():
                await asyncio.sleep(0.01)
            other = await client.get("/healthz")
            done = asked.done()
            job_hub_lock.release()
            return other.status_code, done, (await asked).status_code

    job_hub_lock.acquire()
    # where the loop itself waits, or the test would never end
    watchdog = threading.Timer(20, job_hub_lock.release)
    watchdog.start()
    try:
        assert asyncio.run(play()) == (200, False, 200)
    finally:
        watchdog.cancel()


def test_listeners_are_counted_and_the_end_of_the_server_ends_them() -> None:
    async def play() -> bytes:
        shown = Events(StepSamples(parts("a", (0, "running"))))
        streams = [await shown.listen() for _ in range(MOST_LISTENERS)]
        with pytest.raises(TooMany):
            await shown.listen()
        told = streams[0]
        await heard(told, 1)
        shown.close()
        last = b""
        async for chunk in told:
            last = chunk
        return last

    assert asyncio.run(play()) == b"event: end\ndata: {}\n\n"


def test_look_that_fails_is_told_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(slow: bool) -> dict[str, Any]:
        raise OSError("no luck")

    async def play() -> list[tuple[str, Any]]:
        shown = Events(broken)
        found = await heard(await shown.listen(), 1)
        shown.close()
        return found

    assert asyncio.run(play()) == [("trouble", {"detail": "OSError: no luck"})]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_app_streams_what_the_engine_says(hung: Any, lang: str) -> None:
    async def play() -> str:
        app = create_app(hung)
        text = ""
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
        ) as client:
            closing = asyncio.get_running_loop().call_later(1.5, app.state.events.close)
            answer = await client.get(f"/events?lang={lang}")
            text = answer.text
            closing.cancel()
        return text

    text = asyncio.run(play())
    assert "event: report\ndata: {" in text and '"sentence":"The job is hung' in text
    assert text.endswith("event: end\ndata: {}\n\n")
    chinese = text.partition("event: chinese\ndata: ")[2].partition("\n")[0]
    assert ("任务已卡住" in chinese) == (lang == "zh")
