"""What the page hears: /state, /events, /timeline, its files; live and of recorded evidence the same."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from diag.cli.recorded import RecordedView
from diag.engine.replay import replay
from diag.model import Change, ChangeKind
from diag.model.observations import RankExited
from diag.outputs.http import events as events_module
from diag.outputs.http import server as server_module
from diag.outputs.http.app import create_app
from diag.outputs.view.view import ranks_json
from tests.outputs.asking import ask

CAPTURES = Path(__file__).parent.parent / "captures"
HANG = CAPTURES / "gpu-drills/data-hang-TP2-PP2-EP2"
WEB = Path(events_module.__file__).parent.parent / "web"


@pytest.fixture(scope="module")
def recorded() -> RecordedView:
    return RecordedView(replay([HANG])[0], [HANG])


def test_state_has_all_that_the_page_shows(hung: Any) -> None:
    told = ask(hung, "/state").json()

    assert told["schema"] == "diag.state/1"
    assert told["report"]["sentence"].startswith("The job is hung; phase first_step")
    [finding] = told["report"]["findings"]
    assert (finding["id"], finding["opened_at"] > finding["since"] - 1) == ("hang", True)
    assert [row["rank"] for row in told["ranks"]] == [0, 1, 2, 3]
    assert told["stacks"] and told["timeline"]["schema"] == "diag.timeline/1"


def test_nothing_changes_in_the_state_while_only_time_passes(hung: Any) -> None:
    before = ask(hung, "/state").json()
    hung.engine.advance(hung.engine.now + 7.0)
    after = ask(hung, "/state").json()

    assert before.pop("now") != after.pop("now")
    assert before == after


def test_rank_that_a_restart_gave_to_another_node_is_shown_where_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view = RecordedView(replay([HANG])[0], [HANG])
    others = [{**row, "host": "node-b", "pid": 1} for row in ranks_json(view.engine) if row["rank"] in (2, 3)]
    # what the job hub heard of a rank before it died here
    late = [row for row in ranks_json(view.engine) if row["rank"] == 1]
    for number in (1, 3):
        rank = view.engine.job.ranks[number]
        rank.exit, rank.exited_at = RankExited(number, rank.placement.pid, 1, None, "waited"), view.engine.now
    monkeypatch.setattr(view.cluster, "takes_digests", True)
    monkeypatch.setattr(view.cluster, "other_ranks", lambda: [*others, *late, {**others[0], "rank": 4}])

    for path in ("/state", "/ranks"):
        rows = {row["rank"]: row for row in ask(view, path).json()["ranks"]}
        assert list(rows) == [0, 1, 2, 3, 4], path
        assert (rows[3]["host"], rows[3]["exit"]) == ("node-b", None)
        assert (rows[1]["exit"]["code"], rows[2]["host"]) == (1, rows[0]["host"])


def test_finding_that_came_and_went_all_day_does_not_fill_the_page() -> None:
    view = RecordedView(replay([HANG])[0], [HANG])
    [finding] = view.engine.active()
    view.engine._past = [Change(ChangeKind.RESOLVED, finding, float(at), float(at) - 1) for at in range(1000)]

    past = ask(view, "/state").json()["report"]["past"]
    assert (len(past), past[0]["resolved_at"]) == (100, 999.0)


def test_recorded_hang_is_told_like_a_live_one_and_nobody_is_asked_for_more(recorded: RecordedView) -> None:
    told = ask(recorded, "/state").json()

    assert told["head"]["recorded"] == str(HANG)
    [finding] = told["report"]["findings"]
    assert (finding["id"], finding["class"], finding["ranks"]) == ("held-up", "data_loading", [2])
    assert {row["rank"]: row["state"] for row in told["ranks"]} == {
        0: "stalled",
        1: "stalled",
        2: "delaying",
        3: "stalled",
    }
    assert ask(recorded, "/dump").status_code == 409
    drawn = ask(recorded, "/ranks/2/flame")
    assert drawn.status_code == 200 and "diag: rank 2" in drawn.text and "<script" not in drawn.text


def test_recorded_flame_graph_can_be_had_again_until_others_took_its_place(recorded: RecordedView) -> None:
    async def play() -> tuple[list[httpx.Response], list[httpx.Response]]:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(recorded)), base_url="http://127.0.0.1"
        ) as client:
            made = [await client.get(f"/ranks/{rank}/flame") for rank in (2, 0, 1, 3, 2)]
            return made, [await client.get(each.headers["content-location"]) for each in made]

    made, again = asyncio.run(play())
    assert [each.status_code for each in again] == [404, 200, 200, 200, 200]
    assert [each.content for each in again[1:]] == [each.content for each in made[1:]]
    assert again[1].headers["content-security-policy"] == made[1].headers["content-security-policy"]
    assert "sandbox" in again[1].headers["content-security-policy"]


def test_flame_of_several_paths_is_of_all_of_them(tmp_path: Path) -> None:
    other = CAPTURES / "h200-live/data-hang"
    drawn = ask(RecordedView(replay([other, HANG])[0], [other, HANG]), "/ranks/3/flame?format=collapsed")

    assert (drawn.status_code, b";" in drawn.content) == (200, True), drawn.text


@pytest.mark.parametrize("path", ["-", "pipe"])
def test_flame_of_what_can_be_read_once_only_says_so(path: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    view = RecordedView(replay([HANG])[0], [Path("-") if path == "-" else tmp_path / path])
    drawn = ask(view, "/ranks/2/flame")

    assert drawn.status_code == 503 and "can be read once only" in drawn.json()["detail"]


def test_end_of_the_server_does_not_wait_for_a_flame_of_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def recorded(*_: object) -> bytes:
        reading.set()
        go_on.wait(60)
        return b""

    monkeypatch.setattr("diag.cli.flame.recorded", recorded)
    server = server_module.serve(RecordedView(replay([HANG])[0], [HANG]))
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as page:
            page.sendall(b"GET /ranks/2/flame HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert reading.wait(30) and server.stop(30)
    finally:
        go_on.set()
        server.stop(0)


@pytest.mark.parametrize(("given", "called"), [(".", HANG.name), ("-", "stdin")])
def test_recorded_run_has_a_name_however_it_was_given(
    given: str, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HANG)
    assert RecordedView(replay([HANG])[0], [Path(given)]).run_id == called


def test_timeline_of_a_rank_is_of_its_process_and_its_gpu(recorded: RecordedView) -> None:
    told = ask(recorded, "/timeline?rank=2").json()
    series = {one["name"]: one for one in told["series"]}

    assert series["gpu_utilization_ratio"]["ranks"] == [2] and series["rank_rss_bytes"]["rank"] == 2
    assert {len(one["values"]) for one in told["series"]} == {told["count"]}
    assert [phase["phase"] for phase in told["phases"]][-2:] == ["first_step", "steady"]


def test_manual_page_of_a_finding_in_both_languages(hung: Any) -> None:
    assert "Meaning" in ask(hung, "/explain/hang").json()["sections"]
    assert "含义" in ask(hung, "/explain/hang?lang=zh").json()["sections"]
    assert ask(hung, "/explain/hnag").status_code == 404


def test_page_and_its_files_come_from_here_alone(hung: Any) -> None:
    named = re.findall(r'(?:src|href)="([^"]+)"', ask(hung, "/").text)
    assert "assets/app.js" in named
    modules = {f"assets/{file.relative_to(WEB)}" for file in WEB.rglob("*.js")}
    assert {name for name in named if name.endswith(".js")} == modules, (
        "each is asked for at once, not after the next"
    )
    for name in named:
        assert name.startswith("assets/") or not ("//" in name or name.startswith("/")), name
    for file in WEB.rglob("*.js"):
        answer = ask(hung, f"/assets/{file.relative_to(WEB)}")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/javascript")
        for imported in re.findall(r'\b(?:from|import)\s*"([^"\s]+)"', answer.text):
            assert (file.parent / imported).is_file(), f"{file.name} imports {imported}"


@pytest.mark.parametrize(
    "name", ["../__init__.py", "..%2f__init__.py", "vendor/../../cli.py", "vendor", "", "README.md"]
)
def test_no_other_file_is_served(hung: Any, name: str) -> None:
    assert ask(hung, f"/assets/{name}").status_code == 404
