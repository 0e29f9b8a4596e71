"""How nodes agree on what ends their job: all of them or none, under one number, whoever is killed or cut off meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diag.agent.act.kubernetes_lease import KubernetesLease
from diag.agent.act.lease import TTL_SECONDS, FileLease, Lease
from diag.agent.act.together import BEAT_SECONDS, NO_LEASE, READY_SECONDS, Order, Together
from diag.launch.actions import Rule, read_rules
from tests.act.kubeapi import Server
from tests.act.test_lease import ROOT_TOKEN, Clock

END = Rule.read("hang=end:75")
ALL = ("hang=end:75", "hang=restart:1", "hang=run:true", "hang=notify")


@dataclass
class Cluster:
    """What hubs tell of each other."""

    names: list[str]
    heard: int
    of_several: bool = True
    job_hub: bool = False
    joined: bool = True
    gone: set[str] = field(default_factory=set)

    @property
    def member(self) -> Any:
        roster = [{"run_id": one, "host": f"host-{one}", "gone": one in self.gone} for one in self.names]
        return SimpleNamespace(is_job_hub=self.job_hub, roster=roster) if self.joined else None

    def facts(self) -> Any:
        return SimpleNamespace(heard=self.heard, expected=len(self.names))


@pytest.fixture(params=["files", "kubernetes"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path | Server]:
    """Where the lease is. Each node sees at once what another has said."""
    monkeypatch.setattr("diag.agent.act.kubernetes_lease._CALM_SECONDS", 0.0)
    if request.param == "files":
        yield tmp_path
        return
    with Server() as server:
        yield server


class Lab:
    """So many nodes on one lease, of which the first judges the job."""

    def __init__(self, place: Path | Server, *names: str, on: tuple[str, ...] = ALL) -> None:
        self.clock = Clock()
        self.clusters = {one: Cluster(list(names), len(names)) for one in names}
        self.clusters[names[0]].job_hub = True
        self.nodes = {one: self._node(place, one, on) for one in names}
        self.wait(0.0)
        self.wait(BEAT_SECONDS)

    def _node(self, place: Path | Server, name: str, on: tuple[str, ...]) -> Together:
        def lease() -> Lease:
            made = (
                FileLease.of(place, ROOT_TOKEN, name)
                if isinstance(place, Path)
                else KubernetesLease.of(place.api, ROOT_TOKEN, name)
            )
            made.clock = self.clock
            return made

        rules = read_rules(on)
        return Together(name, f"host-{name}", self.clusters[name], rules, 1, lease, self.clock)

    def __getitem__(self, name: str) -> Together:
        return self.nodes[name]

    def wait(self, seconds: float, *names: str) -> None:
        """The nodes that live, or these, speak meanwhile."""
        end = self.clock.now + seconds
        while True:
            for name in names or self.nodes:
                self[name].tend()
            if self.clock.now >= end:
                return
            self.clock.now = min(end, self.clock.now + BEAT_SECONDS)

    def begins(self, name: str, rule: Rule = END, what: str = "end it") -> int:
        assert self[name].closed(rule) == ""
        number, why = self[name].begin(rule, what, {"past": {}})
        assert why == ""
        return number

    def agree(self, *names: str) -> None:
        for name in names:
            order = self.pending(name)
            assert not order.go
            self[name].agree(order)

    def pending(self, name: str) -> Order:
        order = self[name].pending()
        assert order is not None
        return order

    def acting(self) -> list[str]:
        """Who would act now."""
        found = []
        for name, node in self.nodes.items():
            if (order := node.pending()) is not None and order.go:
                found += [name] if node.may_act(order) else []
                node.forget(order)
        return found


def test_all_act_once_all_are_ready_and_never_again(place: Path | Server) -> None:
    lab = Lab(place, "a", "b", "c")
    assert lab.begins("a") == 1
    lab.agree("a", "b")
    assert lab["a"].conclude(lab.pending("a"), still=True) == "" and lab.acting() == []
    lab.agree("c")
    assert lab["a"].conclude(lab.pending("a"), still=True) == "go"

    assert lab.acting() == ["a", "b", "c"]
    assert lab.acting() == []


def test_who_does_not_get_ready_makes_it_void_for_all(place: Path | Server) -> None:
    lab = Lab(place, "a", "b", "c")
    lab.begins("a")
    lab.agree("a", "b")
    for _ in range(int(READY_SECONDS / BEAT_SECONDS)):
        assert lab["a"].conclude(lab.pending("a"), still=True) == ""
        lab.wait(BEAT_SECONDS)
    lab.wait(1.0)
    order, late = lab.pending("a"), lab.pending("c")
    assert lab["a"].conclude(order, still=True) == "void"

    lab["c"].agree(late)  # it comes too late
    assert lab.acting() == []


def test_what_may_not_be_done_any_more_is_void(place: Path | Server) -> None:
    """The hang has ended while the nodes got ready."""
    lab = Lab(place, "a", "b")
    lab.begins("a")
    lab.agree("a", "b")
    assert lab["a"].conclude(lab.pending("a"), still=False) == "void"
    assert lab.acting() == []


def test_decider_that_is_killed_before_go_ends_nothing_and_another_takes_over(place: Path | Server) -> None:
    lab = Lab(place, "a", "b")
    lab.begins("a")
    lab.agree("a", "b")
    # when a is killed, and b judges the job from now on
    lab.clusters["b"].job_hub, lab.clusters["b"].gone = True, {"a"}
    lab.wait(TTL_SECONDS / 2, "b")
    assert lab["b"].begin(END, "end it", {"past": {}}) == (0, "another node holds the lease")
    lab.wait(TTL_SECONDS, "b")

    # then the part that is left is ended under the next number, and nothing under the first
    assert lab.begins("b") == 2
    lab.agree("b")
    assert lab["b"].conclude(lab.pending("b"), still=True) == "go"
    assert lab["b"].may_act(lab.pending("b"))
    assert lab["a"].pending() is None  # it is not named


def test_decider_that_was_away_says_no_go_once_another_has_the_next_number(place: Path | Server) -> None:
    lab = Lab(place, "a", "b", "c")
    lab.begins("a")
    lab.agree("a", "b", "c")
    first = lab.pending("a")
    lab.clusters["b"].job_hub, lab.clusters["b"].gone = True, {"a"}
    lab["b"].begin(END, "end it", {"past": {}})  # it looks at the lease for the first time
    lab.wait(TTL_SECONDS, "b", "c")
    assert lab.begins("b") == 2

    assert lab["a"].conclude(first, still=True) == "void"  # it wakes up
    assert not lab["c"].may_act(first) and lab.acting() == []


def test_of_two_partitions_that_share_the_folder_one_gets_a_number(place: Path | Server) -> None:
    """Each side believes that it is the whole job."""
    lab = Lab(place, "a", "b", "c", "d")
    for name in "cd":
        lab.clusters[name].names, lab.clusters[name].heard = ["c", "d"], 2
    for name in "ab":
        lab.clusters[name].names, lab.clusters[name].heard = ["a", "b"], 2
    lab.clusters["c"].job_hub = True
    assert lab.begins("a") == 1
    assert lab["c"].begin(END, "end it", {"past": {}})[0] == 0
    lab.agree("a", "b")
    assert lab["a"].conclude(lab.pending("a"), still=True) == "go"
    assert lab.acting() == ["a", "b"]


def test_side_that_hears_not_all_nodes_begins_nothing(place: Path | Server) -> None:
    lab = Lab(place, "a", "b")
    lab.clusters["a"].heard = 1
    assert lab["a"].closed(END) == "only 1 of 2 nodes are heard"


def test_only_the_node_whose_hub_judges_begins(place: Path | Server) -> None:
    lab = Lab(place, "a", "b")
    for rule in ALL:
        assert "decides for all" in lab["b"].closed(Rule.read(rule))
    assert [lab["a"].closed(Rule.read(rule)) for rule in ALL] == ["", "", "", ""]


def test_node_with_another_folder_or_other_rules_is_named(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "a", "b")
    lab.wait(60.0, "a")
    assert lab["a"].closed(END).startswith(f"{NO_LEASE}: host-b is not seen in the run root")
    other = Lab(_made(tmp_path / "other"), "a", "b")
    other.nodes["b"].rules = read_rules(["hang=notify"])
    other.wait(BEAT_SECONDS)
    assert other["a"].closed(END) == "host-b was started without --on hang=end:75"


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_without_members_or_folder_there_is_no_lease(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "a", "b")
    lab.clusters["a"].joined = False
    assert lab["a"].closed(END).startswith(NO_LEASE) and lab["a"].closed(Rule.read("hang=notify")) == ""
    lab.clusters["b"].job_hub = True
    lab["b"].open_lease, lab["b"]._lease = lambda: None, None
    lab["b"].tend()
    assert lab["b"].closed(END) == f"{NO_LEASE}: there is no run directory"


def test_folder_that_fails_is_no_lease_and_no_error(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "a", "b")
    folder = lab["a"]._lease.folder  # type: ignore[union-attr]
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    lab.wait(BEAT_SECONDS)
    assert "it cannot be used: No such file" in lab["a"].closed(END)
    assert lab["a"].pending() is None and lab["a"].begin(END, "end it", {"past": {}})[0] == 0


@pytest.mark.parametrize("rule", ["hang=run:true", "hang=notify"])
def test_what_ends_nothing_is_done_by_one_node_and_not_again_by_the_next(
    place: Path | Server, rule: str
) -> None:
    lab = Lab(place, "a", "b")
    assert lab.begins("a", Rule.read(rule), "page me") == 1
    assert lab["a"].pending() is None  # nobody has to agree
    lab.clusters["b"].job_hub = True
    lab["b"].begin(Rule.read(rule), "page me", {"past": {}})
    lab.wait(TTL_SECONDS, "b")
    assert lab["b"].begin(Rule.read(rule), "page me", {"past": {}}) == (0, "another node has done it")
    assert lab.begins("b", Rule.read(rule), "page me of another hang") == 2


def test_order_after_another_gets_a_number_of_its_own(place: Path | Server) -> None:
    lab = Lab(place, "a", "b")
    assert [lab.begins("a", Rule.read("hang=notify"), str(one)) for one in range(3)] == [1, 2, 3]
    assert lab.begins("a") == 4


def test_order_that_nobody_concludes_is_over_and_the_node_goes_on_looking(place: Path | Server) -> None:
    lab = Lab(place, "a", "b")
    lab.begins("a")
    lab.agree("b")
    lab.wait(READY_SECONDS + 2 * BEAT_SECONDS, "b")
    assert lab["b"].pending() is not None
    lab.wait(1.0, "b")
    assert lab["b"].pending() is None


def test_order_by_a_rule_that_is_not_of_this_command_line_is_none(place: Path | Server) -> None:
    lab = Lab(place, "a", "b")
    lab.begins("a")
    lab.nodes["b"].rules = read_rules(["hang=notify"])
    assert lab["b"].pending() is None


def test_nodes_of_a_healthy_job_leave_no_number_and_go_without_a_trace(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "a", "b")
    lab.wait(600.0)
    assert lab.acting() == []
    for node in lab.nodes.values():
        node.close()
    assert list(lab["a"]._lease.folder.iterdir()) == []  # type: ignore[union-attr]


def test_next_attempt_begins_where_every_part_has_ended_and_does_nothing_of_the_last(
    place: Path | Server,
) -> None:
    lab = Lab(place, "a", "b")
    lab.begins("a", Rule.read("hang=restart"))
    lab.agree("a", "b")
    order = lab.pending("a")
    lab["a"].conclude(order, still=True)
    assert lab.acting() == ["a", "b"]

    lab["a"].has_ended(order)
    assert not lab["a"].all_ended(order)
    lab["b"].has_ended(order)
    assert lab["a"].all_ended(order) and lab["b"].all_ended(order)

    # the first to begin is not waited for, and the old order is not of its attempt
    again = lab["a"]
    again.attempt, again._passed, again._ready, again._ended = 2, 0, 0, 0
    lab.wait(BEAT_SECONDS)
    assert lab["b"].all_ended(order) and again.pending() is None
    assert again.closed(END) == "host-b is at attempt 1, not 2"


def test_part_that_does_not_end_is_waited_for(place: Path | Server) -> None:
    lab = Lab(place, "a", "b")
    lab.begins("a", Rule.read("hang=restart"))
    lab.agree("a", "b")
    order = lab.pending("a")
    lab["a"].has_ended(order)
    lab.wait(60.0)
    assert not lab["a"].all_ended(order)
    lab.wait(60.0, "a")  # b is gone
    assert not lab["a"].all_ended(order)
