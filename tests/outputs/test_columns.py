"""`/state` and `/events` for many ranks: as columns, packed, one look for all who ask."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from diag.cli.recorded import RecordedView
from diag.engine.replay import replay
from diag.outputs.http.app import create_app
from diag.outputs.http.events import packed
from diag.outputs.http.state import States, accepts_gzip
from diag.outputs.view.columns import columns, rows_of
from diag.outputs.view.parts import own_parts, with_others
from diag.outputs.view.view import json_bytes
from diag.text.units import format_bytes

HANG = Path(__file__).parent.parent / "captures/gpu-drills/data-hang-TP2-PP2-EP2"


@pytest.fixture(scope="module")
def recorded() -> RecordedView:
    return RecordedView(replay([HANG])[0], [HANG])


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


def many(view: RecordedView, times: int) -> list[dict[str, Any]]:
    """The rows of four ranks again and again, each a rank of its own with its own moments and numbers."""
    rows = own_parts(view)["ranks"]
    return [
        {
            **row,
            "rank": 4 * turn + row["rank"],
            "pid": 1000 + 37 * turn,
            "progress_at": row["progress_at"] + turn / 7,
        }
        for turn in range(times)
        for row in rows
    ]


FINENESS = {"progress_at": 0.051, "stack_since": 0.051, "utilization_ratio": 0.0051, "power_watts": 5.0}


def assert_near(one: Any, two: Any, name: str = "") -> None:
    """The same, numbers of a reading as near as a screen tells them apart; null is as good as not there."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in one.keys() | two.keys():
            assert_near(one.get(key), two.get(key), "share" if name == "time_shares" else key)
    elif name in FINENESS and one is not None:
        assert abs(one - two) <= FINENESS[name], (name, one, two)
    elif name == "share" or (name.endswith("_bytes") and isinstance(one, int)):
        assert abs(one - two) <= max(0.0051, abs(one) / 190 if name != "share" else 0), (name, one, two)
    else:
        assert (type(one), one) == (type(two), two), name


@pytest.mark.parametrize("times", [1, 256])
def test_columns_are_the_rows_as_fine_as_a_screen_shows_them(recorded: RecordedView, times: int) -> None:
    rows = many(recorded, times)
    again = rows_of(json.loads(json_bytes(columns(rows))))

    assert len(again) == len(rows)
    for row, other in zip(rows, again, strict=True):
        assert_near(row, other)


@pytest.mark.parametrize("unit", [0, 10, 20, 30, 40])
def test_memory_in_columns_is_shown_as_in_rows(unit: int) -> None:
    sizes = [
        int(size * (1 << unit))
        for size in (1, 1.005, 7.9, 7.901, 9.995, 61.24, 99.95, 140.4, 999.4, 1023.4, 1023.6)
    ]
    again = rows_of(columns([{"rss_bytes": size} for size in sizes]))

    assert [format_bytes(row["rss_bytes"]) for row in again] == [format_bytes(size) for size in sizes]


def test_columns_tell_true_from_one_and_none_from_an_object() -> None:
    rows = [{"a": True, "b": {"x": index}} if index % 2 else {"a": 1, "b": None} for index in range(8)]

    again = rows_of(json.loads(json.dumps(columns(rows))))

    assert [(type(row["a"]), row["b"]) for row in again] == [(type(row["a"]), row["b"]) for row in rows]


@pytest.mark.parametrize("values", [3, 64, 65, 4096, 4097])
def test_columns_of_few_and_of_many_values_are_whole(values: int) -> None:
    rows = [{"x": f"value {index % values}"} for index in range(2 * values)]

    assert rows_of(columns(rows)) == rows


def test_thousand_ranks_fit_into_25_kb(recorded: RecordedView) -> None:
    parts = with_others(own_parts(recorded), recorded)
    body = json_bytes({**parts, "ranks": columns(many(recorded, 256))})

    assert len(gzip.compress(body, 6)) < 25_000


def test_state_is_packed_for_who_takes_it_and_the_same_otherwise(recorded: RecordedView) -> None:
    async def play() -> list[httpx.Response]:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(recorded)), base_url="http://127.0.0.1"
        ) as client:
            first = await client.get("/state", headers={"accept-encoding": "gzip"})
            tag = first.headers["etag"]
            return [
                first,
                await client.get("/state", headers={"accept-encoding": "identity"}),
                await client.get("/state", headers={"if-none-match": tag}),
                await client.get("/state", headers={"if-none-match": '"other", ' + tag}),
                await client.get("/state", headers={"if-none-match": '"other"'}),
                await client.get("/state?ranks=columns", headers={"if-none-match": tag}),
                await client.get("/state?ranks=rank"),
            ]

    first, plain, same, among, other, table, wrong = asyncio.run(play())
    assert (first.headers["content-encoding"], "content-encoding" in plain.headers) == ("gzip", False)
    assert first.json() == plain.json() and first.headers["vary"] == "Accept-Encoding"
    assert [(each.status_code, each.content) for each in (same, among)] == [(304, b""), (304, b"")]
    assert (other.status_code, table.status_code, wrong.status_code) == (200, 200, 422)
    assert [row["rank"] for row in rows_of(table.json()["ranks"])] == [0, 1, 2, 3]
    assert table.json()["report"] == first.json()["report"]


@pytest.mark.parametrize(
    ("said", "takes"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("gzip; q=0", False), ("br", False), ("", False)],
)
def test_gzip_is_for_who_says_so(said: str, takes: bool) -> None:
    assert accepts_gzip(request(accept_encoding=said)) is takes


class LiveView:
    """What States needs of a view."""

    def __init__(self) -> None:
        self.recorded = ""
        self.engine = SimpleNamespace(now=1.0, change_count=0)


def test_one_look_serves_all_of_a_second_and_then_there_is_another() -> None:
    now, looks = [100.0], []

    async def look() -> dict[str, Any]:
        looks.append(now[0])
        return {"now": {"at": now[0]}, "ranks": [], "stacks": [], "report": len(looks) // 2}

    view = LiveView()
    states = States(view, look, clock=lambda: now[0])  # type: ignore[arg-type]

    async def play() -> list[str]:
        tags = []
        for step in (0.0, 0.5, 0.6, 1.1):
            now[0] += step
            tags.append((await states.answer(request(), as_columns=False)).headers["etag"])
        return tags

    tags = asyncio.run(play())
    assert looks == pytest.approx([100.0, 101.1, 102.2])
    assert tags[0] == tags[1] != tags[2] == tags[3], "only the time went on between the last two"


def test_finding_that_changes_is_seen_at_once() -> None:
    looks = []

    async def look() -> dict[str, Any]:
        looks.append(1)
        return {"now": {"at": 1.0}, "ranks": [], "stacks": [], "report": len(looks)}

    view = LiveView()
    states = States(view, look, clock=lambda: 100.0)  # type: ignore[arg-type]

    async def play() -> None:
        first = await states.answer(request(), as_columns=False)
        view.engine.change_count += 1
        second = await states.answer(request(), as_columns=False)
        assert first.headers["etag"] != second.headers["etag"]

    asyncio.run(play())


def test_those_who_ask_at_once_get_one_look() -> None:
    looks = []

    async def look() -> dict[str, Any]:
        looks.append(1)
        await asyncio.sleep(0)
        return {"now": {"at": 1.0}, "ranks": [], "stacks": []}

    async def play() -> None:
        states = States(LiveView(), look)  # type: ignore[arg-type]
        await asyncio.gather(*(states.answer(request(), as_columns=False) for _ in range(5)))
        assert len(looks) == 1
        assert states._last is not None
        states._forget(states._last)
        await states.answer(request(), as_columns=False)
        assert len(looks) == 2

    asyncio.run(play())


def test_packed_stream_is_read_piece_by_piece_and_closes_what_it_packs() -> None:
    closed = []

    async def source() -> Any:
        try:
            yield b"event: now\n\n"
            yield b"event: head\n\n"
        finally:
            closed.append(True)

    async def play() -> list[bytes]:
        unpack = zlib.decompressobj(31)
        stream = packed(source())
        found = [unpack.decompress(await stream.__anext__())]
        found.append(unpack.decompress(await stream.__anext__()))
        await stream.aclose()  # type: ignore[attr-defined]
        return found

    assert asyncio.run(play()) == [b"event: now\n\n", b"event: head\n\n"]
    assert closed == [True]
