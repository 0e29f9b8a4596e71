"""torchrun's agents that wait for each other and never start a rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diag.agent.samplers.agents import Launchers
from diag.model import Record
from diag.model.observations import Agent, AgentsSeen, RankFound
from diag.sources.host import run as run_source
from diag.sources.host.process_tree import Tree
from tests.core.test_finder_trees import write
from tests.facts import Story, found, pid_of

PLACE = "10.0.0.1:29400"


def story_of(*agents: Agent, seconds: float = 70.0, lone: bool = False) -> Story:
    story = Story(world=0)
    if lone:  # the one process that is watched for want of ranks: one of the agents
        place = replace(found(0, 1).placement, pid=agents[0].pid, launcher="local")
        story.tell(RankFound(0, place, "python -m torch.distributed.run", distributed=False))
    story.tell(AgentsSeen(None, agents))
    story.wait(seconds)
    return story


def agents(count: int, nodes: int = 2, run_id: str = "", where: str = PLACE, first: int = 0) -> list[Agent]:
    return [Agent(pid_of(first + number), nodes, where, run_id) for number in range(count)]


@pytest.mark.parametrize("lone", [False, True])
def test_agents_that_wait_for_a_node_that_nobody_started_are_counted(lone: bool) -> None:
    held = story_of(*agents(2, 3), seconds=100, lone=lone).hang()

    assert (held.id, held.klass, held.cause, held.ranks) == ("held-up", "rendezvous", "nodes_missing", ())
    assert held.summary == (
        "no rank was started for 1 min 40 s: 2 torchrun agents wait on this machine (pids 1000, 1001) in the rendezvous "
        "at 10.0.0.1:29400 for 3 nodes"
    )


def test_whoever_has_come_to_the_store_from_elsewhere_and_is_no_node_is_named() -> None:
    held = story_of(Agent(9, 2, PLACE, "a", hosts=("10.0.0.7",)), seconds=100).hang()

    assert held.summary.endswith(
        "1 torchrun agent waits on this machine (pid 9) in the rendezvous at 10.0.0.1:29400 for 2 nodes (id a); connected to "
        "it from elsewhere, and not counted as nodes: 10.0.0.7"
    )


def test_address_that_means_another_machine_on_each_is_said_to_be_one() -> None:
    held = story_of(Agent(9, 2, "localhost:29400"), seconds=100).hang()

    assert "at localhost:29400 for 2 nodes, an address that no other machine reaches" in held.summary


def test_agents_with_ids_of_their_own_never_meet() -> None:
    held = story_of(*agents(1, run_id="a"), *agents(1, run_id="b", first=1)).hang()

    assert (held.id, held.cause) == ("held-up", "rendezvous_ids_differ")
    assert "for 2 nodes, and with ids that differ: id a (pid 1000), id b (pid 1001)" in held.summary


def test_agents_at_ports_of_their_own_never_meet() -> None:
    held = story_of(*agents(1, run_id="a"), *agents(1, run_id="a", where="10.0.0.1:29500", first=1)).hang()

    assert held.cause == "rendezvous_places_differ"
    assert "at places that differ: 10.0.0.1:29400 (pid 1000), 10.0.0.1:29500 (pid 1001)" in held.summary


def test_no_rank_for_long_is_a_hang() -> None:
    hang = story_of(*agents(1, run_id="a"), *agents(1, run_id="b", first=1), seconds=310).hang()

    assert (hang.id, [ground.kind for ground in hang.grounds]) == ("hang", ["overdue"])


@pytest.mark.parametrize(
    ("there", "seconds"),
    [
        (agents(3, 3), 400),
        (agents(2, 3), 80),
        ([*agents(2, run_id="a"), *agents(1, run_id="b", first=2)], 400),
        ([replace(one, waits=False) for one in agents(1)], 400),
        (agents(1, 1), 400),
    ],
    ids=["all are there", "soon", "one of two jobs may start", "starts, or runs", "of one node"],
)
def test_agents_that_are_all_there_or_may_come_are_not_missed(there: list[Agent], seconds: int) -> None:
    assert story_of(*there, seconds=seconds).findings() == []


def test_agent_that_has_ranks_again_waits_no_more() -> None:
    story = story_of(*agents(2, 3), seconds=100)
    story.tell(found(0, 1))
    story.still(10, {0: ("<module> /app/train.py:1",)})

    assert story.findings() == []


def test_agents_come_through_the_journal_as_they_were_seen() -> None:
    seen = (Agent(10, 2, "cn-1:29400", "a", False, ("10.0.0.7",)), Agent(11, 3))

    assert [*run_source.parse(run_source.agents_seen(seen, "node-0"))] == [AgentsSeen(None, seen)]


def test_agents_of_earlier_records_were_seen_to_wait() -> None:
    record = Record(run_source.SOURCE, {"event": "agents", "agents": [[10, 2, "cn-1:29400"]]})

    assert [*run_source.parse(record)] == [AgentsSeen(None, (Agent(10, 2, "cn-1:29400"),))]


def test_agents_of_torchrun_say_how_many_nodes_they_wait_for_and_where(tmp_path: Path) -> None:
    """Two started by one shell, before either has a rank; a launcher of one node beside them waits for nobody."""
    torchrun = "python3 -m torch.distributed.run --nproc_per_node 1"
    rows = [
        (1, 0, 1, "S", "bash submit.sh"),
        (11, 1, 17, "S", f"{torchrun} --nnodes 3 --rdzv_backend c10d --rdzv_endpoint cn-1:29400 train.py"),
        (
            10,
            1,
            17,
            "S",
            f"{torchrun} --nnodes 2:4 --rdzv_backend c10d --rdzv_endpoint cn-1:29400 --rdzv-id a train.py",
        ),
        (12, 1, 17, "S", f"{torchrun} --standalone train.py"),
        (13, 1, 17, "S", "python3 -u train.py --nnodes 9"),
    ]
    proc = tmp_path / "proc"
    write(proc, rows, [], {})

    found = [one.as_agent(proc) for one in Launchers(proc).among(sorted(Tree(1, proc).scan()))]
    assert found == [
        Agent(10, 2, "cn-1:29400", "a", waits=False),
        Agent(11, 3, "cn-1:29400", waits=False),
        Agent(12, 1, found[2].where, waits=False),
    ]
