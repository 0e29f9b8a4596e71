"""Hangs of jobs over several nodes of one rank each, told by their digests: whose rank, whose node, and who
is only waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diag.engine.engine import Engine
from diag.model.observations import FramesSeen, NodeProbed, RankFound, ThreadSeen
from tests.cluster_unit.facts import Reports, finding, node, rank
from tests.cluster_unit.nodes import JobOfNodes, NodeEngine
from tests.facts import ALL_REDUCE, DATA, SLEEP, found, pid_of, process, stack, tree

START = 1000.0


class Nodes:
    """`stands`: the stack of each node's rank; None for a rank that moves."""

    def __init__(self, count: int) -> None:
        self.job = JobOfNodes([NodeEngine(number, count) for number in range(count)])
        self.now = START
        for number, one in enumerate(self.job.nodes):
            one.tell(self.now, found(number, count, 1))

    def still(self, seconds: float, stands: Sequence[Sequence[str] | None]) -> None:
        end = self.now + seconds
        while self.now < end:
            for number, lines in enumerate(stands):
                home = self.job.nodes[number]
                if home.host in self.job.silent:
                    continue
                moving = lines is None
                worked = tree(number, self.now, cpu=self.now if moving else 0.0)
                home.tell(
                    self.now, worked, stack(number, self.now, lines or (f"step_{self.now} /app/train.py:7",))
                )
            self.now += 2.0
            self.job.advance(self.now)

    def probe(self, number: int, answer: str) -> None:
        self.job.engine._dispatch(NodeProbed(None, f"run-node-{number}", f"node-{number}", answer, 3.0))


def hangs(engine: Engine) -> list[tuple[object, ...]]:
    return [
        (one.klass, one.cause, one.ranks, one.waiting_ranks)
        for one in engine.active()
        if one.id in ("hang", "held-up")
    ]


def test_rank_of_another_node_that_does_not_join_is_named_on_every_node() -> None:
    nodes = Nodes(4)
    nodes.still(60.0, [ALL_REDUCE, ALL_REDUCE, ALL_REDUCE, SLEEP])

    verdict = [("peer_not_joined", "not_in_collective", (3,), (0, 1, 2))]
    assert hangs(nodes.job.engine) == verdict
    assert [hangs(node.engine) for node in nodes.job.nodes] == [verdict] * 4
    assert {
        one.reported_by
        for node in nodes.job.nodes
        for one in node.engine.active()
        if one.id in ("hang", "held-up")
    } == {"node-0"}


@pytest.mark.parametrize("moving", [0, 3])
def test_job_of_which_one_node_moves_is_not_hung(moving: int) -> None:
    """A node by itself would call it so: its own ranks stand."""
    nodes = Nodes(4)
    stands: list[Sequence[str] | None] = [ALL_REDUCE] * 4
    stands[moving] = None
    nodes.still(120.0, stands)

    assert hangs(nodes.job.engine) == []
    assert [hangs(node.engine) for node in nodes.job.nodes] == [[]] * 4


def test_node_that_fell_silent_is_to_blame_where_all_others_wait() -> None:
    nodes = Nodes(4)
    nodes.still(20.0, [ALL_REDUCE] * 4)
    nodes.job.silent.add("node-2")
    nodes.still(60.0, [ALL_REDUCE] * 4)

    assert hangs(nodes.job.engine) == [("peer_lost", "node_silent", (2,), (0, 1, 3))]
    nodes.probe(2, "timeout")
    nodes.still(4.0, [ALL_REDUCE] * 4)
    causes = [(one.id, one.cause) for one in nodes.job.findings()]
    assert causes == [("node-failure", "node_unreachable"), ("held-up", "node_silent")]


def test_blocked_rank_that_is_seen_explains_more_than_a_node_that_is_not() -> None:
    nodes = Nodes(4)
    nodes.still(20.0, [ALL_REDUCE, DATA, ALL_REDUCE, ALL_REDUCE])
    nodes.job.silent.add("node-2")
    nodes.still(60.0, [ALL_REDUCE, DATA, ALL_REDUCE, ALL_REDUCE])

    ((klass, _, ranks, _),) = hangs(nodes.job.engine)
    assert (klass, ranks) == ("data_loading", (1,))


def test_only_node_that_is_left_is_more_likely_the_one_that_is_cut_off() -> None:
    nodes = Nodes(4)
    nodes.still(20.0, [ALL_REDUCE] * 4)
    nodes.job.silent |= {"node-1", "node-2", "node-3"}
    nodes.still(60.0, [ALL_REDUCE] * 4)

    assert hangs(nodes.job.engine) == [("peer_lost", "this_node_cut_off", (0,), (1, 2, 3))]


def test_stopped_rank_of_another_node_is_named() -> None:
    nodes = Nodes(3)
    nodes.still(20.0, [ALL_REDUCE] * 3)
    for _ in range(40):
        for number, home in enumerate(nodes.job.nodes):
            home.tell(
                nodes.now,
                tree(number, nodes.now, state="T" if number == 2 else "S"),
                stack(number, nodes.now, ALL_REDUCE),
            )
        nodes.now += 2.0
        nodes.job.advance(nodes.now)

    assert hangs(nodes.job.engine) == [("stopped", "sigstop", (2,), (0, 1))]


def test_worker_of_another_node_is_blamed_by_its_pid() -> None:
    nodes = Nodes(2)
    reader = ("_worker_loop torch/utils/data/_utils/worker.py:349", "read_record /app/reader.py:12")
    for _ in range(40):
        worker = process(4711, ppid=pid_of(1))
        nodes.job.nodes[0].tell(nodes.now, tree(0, nodes.now), stack(0, nodes.now, ALL_REDUCE))
        nodes.job.nodes[1].tell(
            nodes.now,
            tree(1, nodes.now, worker),
            stack(1, nodes.now, DATA),
            stack(1, nodes.now, reader, pid=4711),
        )
        nodes.now += 2.0
        nodes.job.advance(nodes.now)

    found_hang = nodes.job.hang()
    assert (found_hang.cause, found_hang.ranks) == ("dataloader_worker_blocked", (1,))
    assert "worker pid 4711" in found_hang.summary and "read_record (/app/reader.py:12)" in found_hang.summary


def test_words_of_a_gpu_or_a_network_that_only_its_node_sees_reach_the_verdict() -> None:
    reports = Reports()
    said = finding("hang", klass="network_transport", cause="transport_error", ranks=(1,), since=START)
    frames = tuple(stack(0, 0.0, ALL_REDUCE).threads[0].frames)
    began = reports.now
    for step in range(20):
        for number in (0, 1, 2):
            reports.tell(
                FramesSeen(None, "k", frames),
                node(number, seq=step + 2, nodes=3, log_moved_at=began, hangs=(said,) if number == 1 else ()),
            )
            one = rank(
                number,
                reports.now,
                moved=began,
                stack_since=began,
                stack_samples=step + 1,
                world=3,
                standing="joined",
                threads=(ThreadSeen("k", 1, "MainThread"),),
            )
            place = replace(one.placement, world_size=3)
            reports.tell(RankFound(number, place, "python train.py"), replace(one, placement=place))
        reports.wait(5.0)

    found_hang = reports.hang()
    assert (found_hang.klass, found_hang.cause, found_hang.ranks) == (
        "network_transport",
        "transport_error",
        (1,),
    )
