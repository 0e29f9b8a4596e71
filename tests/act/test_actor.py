"""The actor: evidence before anything, a record before each step, nothing done where anything fails."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diag.agent.act import cases as cases_of
from diag.agent.act.actor import Actor
from diag.agent.act.orders import Orders
from diag.launch.actions import read_rules
from diag.launch.rundir import RunDir
from diag.model import Finding, Record
from diag.state.job import JobState
from tests.act.facts import hang


class Engine:
    """What cases are made of."""

    finished = False

    def __init__(self) -> None:
        self.job, self.now, self.findings = JobState(), 1000.0, [hang()]

    def active(self) -> list[Finding]:
        return self.findings


class Hub:
    host, version = "gpu-1", "0"

    def __init__(self, folder: Path) -> None:
        (folder / "dumps").mkdir()
        self.engine, self.lock, self.records = Engine(), threading.RLock(), list[Record]()
        self.run_dir, self.keeps = RunDir(folder, "run"), True

    def put(self, record: Record) -> None:
        self.records.append(record)

    def keep(self, seconds: float) -> bool:
        return self.keeps


class Dumps:
    """`then` happens while the evidence is taken."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.count, self.then = hub, 0, lambda: None

    def take(self, deadline: float) -> dict[str, Any]:
        self.count += 1
        self.then()
        path = self.hub.run_dir.path / "dumps" / f"dump-{self.count}.tar.gz"
        path.write_bytes(b"evidence")
        return {"bundle": str(path)}


class Stage:
    def __init__(self, folder: Path, *on: str, several: bool = False, after: float = 0.0) -> None:
        self.hub = Hub(folder)
        self.dumps = Dumps(self.hub)
        self.orders: list[Mapping[str, Any]] = []
        self.said: list[str] = []
        given = Orders(
            read_rules(on), after, 5.0, ["python", "train.py"], 1.0, 1, "",
            send=lambda order: self.orders.append(order) is None, say=self.said.append,
        )  # fmt: skip
        fence: Any = SimpleNamespace(closed=lambda: "the job has other nodes" if several else "")
        self.actor = Actor(self.hub, given, self.dumps, fence, clock=lambda: self.hub.engine.now)  # type: ignore[arg-type]

    def look(self, seconds: float = 1.0) -> None:
        self.hub.engine.now += seconds
        self.actor.look()

    @property
    def told(self) -> list[tuple[str, str]]:
        return [
            (one.payload["what"], one.payload["text"]) for one in self.hub.records if "what" in one.payload
        ]


def test_evidence_is_on_disk_before_the_order_and_each_step_is_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "hang=end:75")
    stage.look()

    (order,) = stage.orders
    assert [what for what, _ in stage.told] == ["evidence", "acts"]
    assert Path(order["past"]["evidence"]).read_bytes() == b"evidence"
    assert (order["rule"], order["code"], order["again"]) == ("hang=end:75", 75, None)
    assert stage.said[0].endswith("CMD is ended")
    assert len((tmp_path / "actions.jsonl").read_text().splitlines()) == 2


def test_an_order_is_given_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "hang=end:75", "hang=restart")
    for _ in range(5):
        stage.look()

    assert len(stage.orders) == 1 and stage.dumps.count == 1


def test_nothing_is_done_before_its_time_and_no_evidence_taken(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "hang=end", after=3.0)
    for _ in range(3):
        stage.look()
    assert not stage.orders and not stage.dumps.count

    stage.look()
    assert len(stage.orders) == 1


def test_a_hang_that_resolves_while_the_evidence_is_taken_is_let_be(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "hang=end")
    stage.dumps.then = stage.hub.engine.findings.clear
    stage.look()

    assert not stage.orders


def test_without_evidence_nothing_is_done(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "hang=end")

    def fail() -> None:
        raise OSError(28, "No space left on device")

    stage.dumps.then = fail
    for _ in range(5):
        stage.look()

    assert not stage.orders and stage.dumps.count == 1  # and not again within a minute
    assert "No space left on device" in stage.told[0][1]


def test_without_a_journal_nothing_is_done(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "hang=restart")
    stage.hub.keeps = False
    stage.look()
    stage.look()

    assert not stage.orders
    assert ("failed", "does not act: the journal cannot be written") in stage.told


def test_of_several_nodes_none_acts_without_a_lease(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "hang=restart", several=True)
    for _ in range(3):
        stage.look()

    assert not stage.orders
    ((what, text),) = stage.told  # once
    assert what == "holds" and "the job has other nodes" in text


def test_the_first_rule_whose_gates_are_open_is_followed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "hang=restart", "hang=end:9")
    stage.hub.engine.findings = [hang("collective_mismatch", retryable="no")]
    stage.look()

    (order,) = stage.orders
    assert order["code"] == 9 and order["again"] is None


def test_a_command_gets_the_finding_and_the_job_goes_on(tmp_path: Path) -> None:
    target = tmp_path / "got.json"
    stage = Stage(tmp_path, f"hang=run:tee {target}")
    stage.look()
    stage.look()

    assert '"class": "data_loading"' in target.read_text()
    assert not stage.orders and [what for what, _ in stage.told] == ["evidence", "acts", "ran"]


def test_an_error_of_the_actor_ends_it_and_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, "hang=end")
    monkeypatch.setattr(stage.actor, "look", lambda: 1 / 0)
    monkeypatch.setattr("diag.agent.act.actor._LOOK_SECONDS", 0.0)
    stage.actor._run()

    assert not stage.orders
    assert stage.said == [
        "diag: --on is not followed any more (ZeroDivisionError: division by zero); the job goes on"
    ]


def test_secrets_of_its_command_are_not_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "hang=run:true --token hf_abcdefghijklmnopqrstuvwxyz012345")
    stage.look()

    assert "hf_abcdef" not in (tmp_path / "actions.jsonl").read_text()


def test_cases_are_of_findings_that_are_open_now(tmp_path: Path) -> None:
    engine: Any = SimpleNamespace(
        job=JobState(), now=5.0, finished=False, active=lambda: [hang(id="straggler")]
    )

    assert not list(
        cases_of.cases(engine, Stage(tmp_path).actor._standing, read_rules(["hang=end"]), after=0.0)
    )
