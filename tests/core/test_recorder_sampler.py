"""When a rank's flight recorder is asked: one question at a time, whose answer is taken whenever it comes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.agent.samplers import rank_suspicion
from diag.agent.samplers.rank_context import RankContext
from diag.agent.samplers.rank_suspicion import CollectivesSampler
from diag.agent.samplers.sampler import Reporter
from diag.model import Record
from diag.sources.collectives import flight_recorder
from tests.core.sidecars import ticks, wait_for

TASK = {"rank": 1, "stack_seconds": 30, "close_stack_seconds": 2, "proc_seconds": 2, "node_seconds": 5}
ANSWER = {"pid": 0, "answered": ["gloo"], "traces": []}


class Server:
    """Stands for that of the rank: it answers when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.let = threading.Event()
        self.answer: dict[str, Any] = ANSWER

    def read(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.asked += 1
        assert self.let.wait(20.0)
        return self.answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    monkeypatch.setattr(flight_recorder, "read", server.read)
    monkeypatch.setattr(rank_suspicion, "_ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(rank_suspicion, "_PIPE_SECONDS", 0.02)
    yield server
    server.let.set()


@pytest.fixture
def records() -> list[Record]:
    return []


@pytest.fixture
def sampler(records: list[Record], tmp_path: Path) -> CollectivesSampler:
    task = {**TASK, "pid": os.getpid(), "start_ticks": ticks(os.getpid()), "run_dir": str(tmp_path)}
    rank = RankContext(task, Reporter(records.append, "node-0", 1))
    rank.closer = True
    return CollectivesSampler(rank)


def told(records: list[Record]) -> list[str]:
    return [str(one.payload["event"]) if one.source == "run" else one.source for one in records]


def test_answer_that_is_late_is_taken_when_it_comes_and_nothing_is_asked_meanwhile(
    server: Server, sampler: CollectivesSampler, records: list[Record]
) -> None:
    """A crowded machine: the server comes to its answer after whoever asked would have given up."""
    for _ in range(3):
        sampler.sample()
    late, [failed] = sampler.is_late, records
    server.let.set()
    wait_for(lambda: len(records) == 3, "the answer")

    assert late and server.asked == 1
    assert failed.payload["source"] == "flight_recorder" and "in time" in failed.payload["reason"]
    assert told(records) == ["failed", "flight_recorder", "works"]


def test_what_has_answered_late_is_asked_for_its_second_reading_soon(
    server: Server, sampler: CollectivesSampler, records: list[Record]
) -> None:
    """What stands in both readings stands still: with one alone nothing is known."""
    sampler.sample()
    server.let.set()
    wait_for(lambda: "flight_recorder" in told(records), "the answer")
    wait_for(lambda: sampler.period(0.0, 0.0) < 10.0, "one reading is not enough")
    sampler.sample()

    assert server.asked == 2 and told(records).count("flight_recorder") == 2
    assert not sampler.is_late


def test_recorder_is_asked_once_more_shortly_before_most_hangs_are_reported_and_seldom_from_then_on(
    server: Server, sampler: CollectivesSampler
) -> None:
    """Ranks that sleep in their own loop look alike at each look: their calls alone tell that they go on."""
    server.let.set()
    asked, at = [], 0.0
    while at < 120.0:
        sampler.sample()
        asked.append(at)
        at += sampler.period(0.0, 0.0)

    last = max(one for one in asked if one < 30.0)
    assert last >= 20.0 and len([one for one in asked if one < 30.0]) == 4
    assert [one - last for one in asked if one > last] == [30.0, 60.0, 90.0]


def test_dump_waits_for_what_the_sampler_has_asked_and_does_not_end_it(
    server: Server, sampler: CollectivesSampler, records: list[Record]
) -> None:
    sampler.sample()

    assert "did not answer in time" in sampler.ask(0.01, 0.01)
    server.let.set()
    assert sampler.ask(20.0, 20.0) == ""
    assert told(records).count("flight_recorder") == server.asked


def test_rank_that_is_not_suspected_is_not_asked(
    server: Server, sampler: CollectivesSampler, records: list[Record]
) -> None:
    sampler.rank.closer = False
    sampler.sample()

    assert server.asked == 0 and records == []


def test_rank_is_not_looked_at_while_an_answer_is_due(
    server: Server, sampler: CollectivesSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(flight_recorder, "look", lambda *_: looks.append(1) or {"failed": "gone"})
    monkeypatch.setattr(flight_recorder, "has_server", lambda *_: True)
    sampler.ask(0.01, 0.01)
    sampler.rank.closer = False

    for due in (True, False):
        sampler._look_at = 0.0
        sampler.sample()
        assert bool(looks) is not due
        server.let.set()
        wait_for(lambda: sampler._question is not None and sampler._question.done.is_set(), "the answer")


def test_pipe_is_asked_twice_as_each_question_is_a_line_in_the_jobs_log(
    server: Server, sampler: CollectivesSampler
) -> None:
    server.answer = {**ANSWER, "how": "pipe"}
    server.let.set()
    for _ in range(4):
        sampler.sample()
        wait_for(lambda: sampler._question is not None and sampler._question.done.is_set(), "the answer")

    assert server.asked == 2


def test_dumps_before_the_suspicion_take_nothing_from_it(server: Server, sampler: CollectivesSampler) -> None:
    server.answer = {**ANSWER, "how": "pipe"}
    server.let.set()
    sampler.rank.closer = False
    for _ in range(3):
        assert sampler.ask(20.0, 20.0) == ""
    sampler.rank.closer = True
    sampler.sample()

    assert server.asked == 4


CALLS = [{"backend": "gloo", "group": "0", "calls": "one"}]
WITH_LINES = {"pid": 0, "answered": ["gloo"], "calls": [{**CALLS[0], "frames": []}]}


def test_lines_of_calls_are_asked_for_once_no_call_was_made_between_two_answers(
    server: Server, sampler: CollectivesSampler, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For them the rank's own interpreter has to work."""
    asked: list[int] = []
    monkeypatch.setattr(flight_recorder, "look_with_lines", lambda pid, _: asked.append(pid) or WITH_LINES)
    server.let.set()
    seen = []
    for calls in ("one", "two", "two", "two", "three"):
        server.answer = {**ANSWER, "calls": [{**CALLS[0], "calls": calls}]}
        assert sampler.ask(5.0, 5.0) == ""
        last = [one.payload for one in records if one.source == "flight_recorder"][-1]
        seen.append((len(asked), last == WITH_LINES))

    assert seen == [(0, False), (0, False), (1, True), (1, True), (1, False)]
    assert asked == [os.getpid()]
