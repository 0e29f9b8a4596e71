"""All faces say the same of a job: its state, what is open, what is over and from when to when. Over every
capture, by the commands themselves."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import diag.engine.replay
from diag.cli.main import main
from diag.cli.recorded import RecordedView
from diag.engine.engine import Engine
from diag.model import Severity
from diag.outputs.http.app import create_app
from diag.outputs.report import report
from diag.outputs.view.sentence import summary_line
from diag.text.errors import DiagError
from diag.text.units import format_seconds, format_time

CAPTURES = Path(__file__).parents[1] / "captures"
RELEASED = CAPTURES / "over" / "hang-released"

# (id, class, ranks) of what is open; of what is over with since and resolved_at
Open = list[tuple[str, str, tuple[int, ...]]]
Over = list[tuple[str, str, tuple[int, ...], float, float]]


def captures() -> Iterator[Path]:
    """Whatever can be replayed: folders with evidence, and logs one by one."""
    for path in sorted(CAPTURES.glob("*/*")):
        if path.is_dir() and path.parent.name != "logs" and path.name != "__pycache__":
            yield path
    for path in sorted((CAPTURES / "logs").rglob("*")):
        if path.is_file() and path.suffix in (".log", ".txt"):
            yield path


def facts(document: dict[str, Any]) -> tuple[str, Open, Over]:
    """Of a diag.report/1, from whomever."""
    open_now = [one for one in document["findings"] if one.get("resolved_at") is None]
    return (
        document["job"]["state"],
        [(one["id"], one["class"], tuple(one["ranks"])) for one in open_now],
        [
            (one["id"], one["class"], tuple(one["ranks"]), one["since"], one["resolved_at"])
            for one in document["past"]
        ],
    )


def name(kind: str, klass: str) -> str:
    return kind + (f" ({klass})" if klass else "")


def heads(text: str) -> list[tuple[str, str]]:
    """The headings of findings in a text: (word, name)."""
    found = re.findall(r"^(CRITICAL|WARNING|INFO|OVER) ([a-z0-9-]+(?: \(\w+\))?)[:;]", text, re.MULTILINE)
    return [(word, named) for word, named in found]


def asked(engine: Engine, *paths: str) -> list[dict[str, Any]]:
    """What the page and scripts are answered."""
    view = RecordedView(engine, [Path("evidence")])

    async def play() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(view)), base_url="http://127.0.0.1"
        ) as client:
            return [(await client.get(path)).json() for path in paths]

    return asyncio.run(play())


@pytest.fixture
def typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, int]]:
    """Type a command of diag over an engine that has read its evidence; its stdout and exit code."""
    monkeypatch.setenv("COLUMNS", "20000")  # a finding's heading is one line
    monkeypatch.setenv("DIAG_LANG", "en")

    def type_(engine: Engine, *words: str) -> tuple[str, int]:
        monkeypatch.setattr(diag.engine.replay, "replay", lambda *given, **named: (engine, [], []))
        code = main([*words, "evidence"])
        return capsys.readouterr().out, code

    return type_


def agree(engine: Engine, typed: Callable[..., tuple[str, int]]) -> tuple[str, Open, Over]:
    document = report(engine)
    truth = state, open_now, over = facts(document)
    # documents
    text, code = typed(engine, "replay", "--json")
    replayed = json.loads(text)
    told, told_code = typed(engine, "top", "--json")
    shown, found = asked(engine, "/state", "/findings")
    for other in (replayed, json.loads(told)["report"], shown["report"], found):
        assert facts(other) == truth
        assert other["sentence"] == document["sentence"]
        assert other["next_command"] == document["next_command"]
    assert replayed.keys() == found.keys() == shown["report"].keys()
    # texts
    written, text_code = typed(engine, "replay")
    picture, picture_code = typed(engine, "top", "--once")
    expected = (
        [name(kind, klass) for kind, klass, _ in open_now],
        [name(kind, klass) for kind, klass, *_ in over],
    )
    for text in (written, picture):
        assert document["sentence"] in text
        said = heads(text)
        assert sorted(named for word, named in said if word != "OVER") == sorted(expected[0]), text
        assert [named for word, named in said if word == "OVER"] == expected[1], text
    line = summary_line(document)
    assert line.startswith(f"diag: job {state}")
    assert all(named in line or line.count(", ...") for named in expected[0])
    for text in (line, document["sentence"]):
        assert (f"{len(over)} over: " in text) == bool(over)
        assert ("nothing found" in text) == (not open_now and not over)
        assert ("nothing open" in text) == (not open_now and bool(over))
    for kind, klass, _, since, resolved in over[:3]:
        length = format_seconds(resolved - since)
        span = f"{format_time(since, since)}-{format_time(resolved, resolved)} ({length})"
        for text in (line, document["sentence"], written, picture):
            assert name(kind, klass) in text and span in text, text
    counts = any(Severity(one["severity"]).counts for one in (*document["findings"], *document["past"]))
    assert {code, told_code, text_code, picture_code} == {10 if counts else 0}
    # nobody is sent to a process that is gone
    gone = re.compile(r"/proc/\d|kill -\w+ \d|--pid \d|-p \d{2}|diag dump|\(pid \d")
    advice = [one["advice"] for one in document["past"]]
    if document["job"]["returncode"] is not None:
        advice += [*(one["advice"] for one in document["findings"]), document["next_command"]]
        advice += [line["remedy"] for line in document["not_checked"]]
    assert not [one for one in advice if gone.search(one)]
    return truth


@pytest.mark.parametrize("part", sorted({path.relative_to(CAPTURES).parts[0] for path in captures()}))
def test_all_faces_agree_on_every_capture(part: str, typed: Callable[..., tuple[str, int]]) -> None:
    read = 0
    for path in captures():
        if path.relative_to(CAPTURES).parts[0] != part:
            continue
        try:
            engine, _, _ = diag_replay([path])
        except DiagError:
            continue  # lines of one source, which other tests feed to their parser
        read += 1
        agree(engine, typed)
    assert read or part in ("nccl", "sources")


diag_replay = diag.engine.replay.replay  # the fixture puts another in its place


@pytest.mark.parametrize(("until", "state", "is_open", "is_over"), [
    ("before", "running", False, False), ("within", "held-up", True, False), ("after", "running", False, True),
    ("end", "finished", False, True),
])  # fmt: skip
def test_hang_that_ended_is_first_open_and_then_over_for_everybody(
    until: str, state: str, is_open: bool, is_over: bool, typed: Callable[..., tuple[str, int]]
) -> None:
    records = list(diag.engine.replay.Evidence([RELEASED]))
    opened, resolved = (change.at for change in diag.engine.replay.replay_records(records)[1])
    last = {"before": opened - 1, "within": opened + 1, "after": resolved + 1, "end": records[-1].at}[until]
    engine, _ = diag.engine.replay.replay_records(one for one in records if one.at <= last)

    found_state, open_now, over = agree(engine, typed)

    assert found_state == state
    assert open_now == ([("held-up", "data_loading", (1,))] if is_open else [])
    assert [one[:3] for one in over] == ([("held-up", "data_loading", (1,))] if is_over else [])
    # Between the lines of iterations 3 and 4 are 24 s.
    assert all(23 < resolved - since < 25 for *_, since, resolved in over)


def test_hang_that_was_open_when_the_job_was_killed_is_neither_over_nor_resolved(
    typed: Callable[..., tuple[str, int]],
) -> None:
    engine, changes, _ = diag_replay([CAPTURES / "h200-live" / "data-hang"])

    _, open_now, over = agree(engine, typed)
    text, _ = typed(engine, "replay")

    assert "held-up" in {kind for kind, *_ in open_now} and over == []
    assert [change for change in changes if change.kind.value == "resolved"] == []
    if engine.job.returncode is not None:
        assert (
            ", open when the job ended" in text and ", after being held up for " in report(engine)["sentence"]
        )


def test_report_of_a_job_that_lives_has_in_its_findings_what_is_open() -> None:
    records = [one for one in diag.engine.replay.Evidence([RELEASED]) if one.payload.get("event") != "ended"]
    engine, _ = diag.engine.replay.replay_records(records)
    engine.finished = False  # as in a hub

    document = report(engine)

    assert [one["id"] for one in document["findings"]] == [] and [one["id"] for one in document["past"]] == [
        "held-up"
    ]
    assert "nothing open; 1 over: held-up (data_loading), rank 1" in document["sentence"]
