"""Actors of two nodes that share a lease: each ends its own part of the job, once all are ready, or none does."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diag.agent.act.lease import FileLease
from diag.agent.act.together import BEAT_SECONDS, READY_SECONDS, Order, Together
from diag.launch.actions import read_rules
from tests.act.test_actor import Stage
from tests.act.test_lease import ROOT_TOKEN, Clock
from tests.act.test_together import Cluster


class Two:
    """Node a, whose hub judges the job, and node b."""

    def __init__(self, folder: Path, *on: str) -> None:
        self.clock = Clock()
        self.stages = [self._stage(folder, name, on) for name in "ab"]
        self.a, self.b = self.stages
        for seconds in (0.0, BEAT_SECONDS):
            self.clock.now += seconds
            for stage in self.stages:
                assert stage.actor.together is not None
                stage.actor.together.tend()

    def _stage(self, folder: Path, name: str, on: tuple[str, ...]) -> Stage:
        (folder / name).mkdir()
        stage = Stage(folder / name, *on)
        cluster = Cluster(["a", "b"], 2, job_hub=name == "a")

        def lease() -> FileLease:
            made = FileLease.of(folder, ROOT_TOKEN, name)
            made.clock = self.clock
            return made

        stage.actor.together = Together(name, f"host-{name}", cluster, read_rules(on), 1, lease, self.clock)
        fence: Any = SimpleNamespace(closed=lambda: "unused", of_several=lambda: True)
        stage.actor.fence = fence
        return stage

    def look(self, times: int = 6) -> None:
        for _ in range(times):
            self.clock.now += 1.0
            for stage in self.stages:
                stage.look()

    def whats(self, stage: Stage) -> list[str]:
        return [what for what, _ in stage.told if what != "holds"]


def test_each_ends_its_part_under_the_number_of_the_lease(tmp_path: Path) -> None:
    two = Two(tmp_path, "hang=end:75")
    two.look()

    assert [[one["code"], one["lease"]] for stage in two.stages for one in stage.orders] == [[75, 1], [75, 1]]
    assert two.whats(two.a) == ["evidence", "orders", "agrees", "acts"]
    assert two.whats(two.b) == ["agrees", "follows"]
    assert two.b.dumps.count == 1  # evidence of its own
    lines = [json.loads(line) for line in (tmp_path / "b" / "actions.jsonl").read_text().splitlines()]
    acted = [one for one in lines if one["what"] == "follows"]
    assert [(one["lease"], one["class"], one["ranks"]) for one in acted] == [(1, "data_loading", [3])]
    assert "as host-a ordered (number 1 of the lease)" in acted[0]["text"]


def test_node_without_evidence_or_journal_keeps_all_from_it(tmp_path: Path) -> None:
    for number, spoil in enumerate(("evidence", "journal")):
        folder = tmp_path / str(number)
        folder.mkdir()
        two = Two(folder, "hang=end:75")
        if spoil == "journal":
            two.b.hub.keeps = False
        else:
            two.b.dumps.take = lambda deadline: {"bundle_error": "disk full"}  # type: ignore[method-assign]
        two.look(int(READY_SECONDS) + 10)

        assert [stage.orders for stage in two.stages] == [[], []]
        assert [text[:14] for what, text in two.b.told if what == "failed"] == ["does not agree"]
        (failed,) = [text for what, text in two.a.told if what == "failed"]
        assert failed == "does not act: not all nodes got ready (number 1 of the lease)"


def test_hang_that_resolves_while_nodes_get_ready_is_let_be(tmp_path: Path) -> None:
    two = Two(tmp_path, "hang=end:75")
    two.b.dumps.then = two.a.hub.engine.findings.clear
    two.look()

    assert [stage.orders for stage in two.stages] == [[], []]
    assert ("failed", "does not act: it may not be done any more (number 1 of the lease)") in two.a.told


def test_command_is_run_by_one_node(tmp_path: Path) -> None:
    target = tmp_path / "got"
    two = Two(tmp_path, f"hang=run:tee -a {target}")
    two.look()

    assert target.read_text().count('"action"') == 1
    assert two.whats(two.a) == ["evidence", "acts", "ran"] and two.whats(two.b) == []


def ended(stage: Stage) -> threading.Thread:
    """Its part of the job has, and its hub concludes."""
    thread = threading.Thread(target=stage.actor.close)
    thread.start()
    return thread


def test_each_part_is_started_again_once_all_have_ended(tmp_path: Path) -> None:
    two = Two(tmp_path, "hang=restart")
    two.look()
    for stage in two.stages:
        agreed, order = stage.orders
        assert agreed == {"agreed": True}
        assert order["again"] == {
            "words": ["python", "train.py"], "flags": [], "text": "from the start, as no whole checkpoint was seen",
        }  # fmt: skip

    first = ended(two.a)
    first.join(1.0)
    assert first.is_alive()
    ended(two.b).join(10.0)
    first.join(10.0)
    assert not first.is_alive()
    assert [len(stage.orders) for stage in two.stages] == [2, 2]  # nothing keeps them from it


@pytest.mark.parametrize("why", ["it does not end", "another is not heard of"])
def test_none_is_started_again_where_one_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("diag.agent.act.actor._ENDED_SECONDS", -3.0)  # of a grace of 5 s
    two = Two(tmp_path, "hang=restart")
    two.look()
    if why == "it does not end":
        two.b.actor.step({"step": "left", "text": "these do not end"})
        ended(two.b).join(10.0)
        assert two.b.orders[-1] == {"stays": "this node's part has not ended wholly"}
    ended(two.a).join(10.0)
    assert two.a.orders[-1] == {"stays": "not all nodes' parts have ended"}


def test_node_that_would_go_on_from_elsewhere_does_not_agree(tmp_path: Path) -> None:
    """The checkpoint is on a disk of the first node alone; or the second one's program takes other flags."""
    two = Two(tmp_path, "hang=restart")
    monkey = [str(tmp_path / "gone"), "hf"]
    document = {"again": {"words": [], "flags": ["--resume_from_checkpoint", monkey[0]], "text": ""}}
    seen = two.b.actor._differs(Order(1, "hang=restart:1", {**document, "whole": monkey}, go=False))
    other = two.b.actor._differs(Order(1, "hang=restart:1", {**document, "whole": None}, go=False))
    assert seen == f"{monkey[0]} is not seen on this node" and other == "its command would go on with nothing"
    assert two.b.actor._differs(Order(1, "hang=end", {"again": None}, go=False)) == ""


def test_part_that_ended_of_the_others_end_has_the_code_that_was_agreed(tmp_path: Path) -> None:
    two = Two(tmp_path, "hang=end:75")
    while not two.a.orders:
        two.clock.now += 1.0
        two.a.look()
        if "agrees" not in two.whats(two.b):
            two.b.look()
    assert not two.b.orders
    two.b.actor.close()

    (order,) = two.b.orders
    assert (order["code"], order["lease"]) == (75, 1)


def test_part_that_ended_by_itself_has_its_own(tmp_path: Path) -> None:
    two = Two(tmp_path, "hang=end:75")
    two.look(1)
    two.b.actor.close()
    assert two.b.orders == []


def test_healthy_job_orders_nothing_and_takes_no_number(tmp_path: Path) -> None:
    two = Two(tmp_path, "hang=end:75", "hang=run:false", "hang=notify")
    for stage in two.stages:
        stage.hub.engine.findings.clear()
    two.look(300)

    assert [two.whats(stage) for stage in two.stages] == [[], []]
    assert not list(tmp_path.glob(".leases/*/lease-*"))
