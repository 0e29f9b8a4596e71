"""Hubs that join, in one process and over real sockets: who judges, who takes over, who is sent away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from diag.agent.cluster import jobhub as jobhub_module
from diag.agent.cluster.post import Refused, Sender
from diag.launch.launchers.nodes import JobNodes
from diag.model import Record
from tests.cluster_unit.hubs import TOKEN, OneNode, judged, ranks_at, until


def test_hub_at_the_rendezvous_judges_and_the_next_takes_over_until_it_is_back(
    make: Callable[..., list[OneNode]],
) -> None:
    nodes = make(3)
    until(judged(nodes, 0), *nodes)
    until(lambda: ranks_at(nodes[0]) == [0, 1, 2], *nodes)
    until(
        lambda: all([len(entry["ranks"]) for entry in node.member.roster] == [1, 1, 1] for node in nodes[1:]),
        *nodes,
    )
    assert [node.member.is_job_hub for node in nodes] == [True, False, False]

    # when the first dies
    port = nodes[0].port
    nodes[0].die()
    until(judged(nodes[1:], 1), *nodes[1:])

    # then the second knows all ranks, those of the lost node too, and says so
    until(lambda: ranks_at(nodes[1]) == [0, 1, 2], *nodes[1:])
    assert "diag: node-1 now judges the whole job" in nodes[2].said
    assert [row["state"] for row in nodes[1].hub.cluster.nodes()][1:] == ["heard", "heard"]

    # and a hub that is started anew at the rendezvous is reported to again
    again = OneNode(0, nodes[0].hub.settings.run_root or Path())
    again.hub.run_id, again.port = "run-0-again", port
    again.start()
    try:
        again.join(again, 3)
        until(judged([again, *nodes[1:]], 0), again, *nodes[1:])
        assert not nodes[1].member.is_job_hub
    finally:
        again.die()


def test_hub_is_found_at_the_port_that_the_list_of_nodes_gives_it(tmp_path: Path) -> None:
    """DIAG_NODES=gpu1:9100,gpu2:9200: this node's own port is not node 0's."""
    nodes = [OneNode(number, tmp_path).start() for number in range(2)]
    hosts, ports = ("127.0.0.1", "127.0.0.1"), (nodes[0].port, nodes[1].port)
    try:
        for node in nodes:
            given = JobNodes(2, node.number, "127.0.0.1", 29500, hosts=hosts, hub_ports=ports)
            node.join_as(given, peer_port=node.port)

        until(lambda: [node.judged_by() for node in nodes] == ["node-0", "node-0"], *nodes)
        assert nodes[1].member.job_hub is None  # it never took itself for node 0
    finally:
        for node in nodes:
            node.die()


def test_dump_of_one_node_has_all_nodes_and_says_why_one_is_missing(
    make: Callable[..., list[OneNode]],
) -> None:
    nodes = make(3)
    until(lambda: judged(nodes, 0)() and len(nodes[1].member.roster) == 3, *nodes)

    whole = nodes[1].hub._dumps.take(8.0)
    nodes[2].stop_serving()
    part = nodes[1].hub._dumps.take(8.0)

    assert [row["rank"] for row in whole["ranks"]] == [0, 1, 2]
    assert [node["reason"] for node in whole["nodes"]] == ["", "", ""]
    assert [row["rank"] for row in part["ranks"]] == [0, 1]
    assert "refused the connection" in part["missing"]["2"][0] and part["missing"]["2"][0].startswith(
        "node-2"
    )


def test_hub_with_another_token_is_sent_away_once_and_the_job_hub_names_its_address(
    make: Callable[..., list[OneNode]], tmp_path: Path
) -> None:
    nodes = make(2)
    until(judged(nodes, 0), *nodes)
    stranger = OneNode(2, tmp_path, token="another").start()
    try:
        stranger.join(nodes[0], 3)
        until(lambda: stranger.member.digests["sent", "failed"] > 2, stranger)

        assert (
            len(
                [
                    line
                    for line in stranger.said
                    if "rejects the digests of this node: this needs the run's token" in line
                ]
            )
            == 1
        )
        assert stranger.judged_by() == ""
        job_hub = nodes[0].member.job_hub
        assert job_hub is not None and job_hub.refused["127.0.0.1"][0] == "another token"
        assert ranks_at(nodes[0]) == [0, 1]
    finally:
        stranger.die()


def test_address_that_was_refused_is_not_named_for_ever(
    make: Callable[..., list[OneNode]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [node] = make(1)
    until(lambda: node.member.job_hub is not None)
    job_hub = node.member.job_hub
    assert job_hub is not None

    node.hub.cluster.refuse_digest("10.0.0.7")
    with job_hub.lock:
        named = str(job_hub.verdict(job_hub.own_id))
        monkeypatch.setattr(jobhub_module, "_REFUSED_SECONDS", 0.0)
        later = str(job_hub.verdict(job_hub.own_id))

    assert "10.0.0.7" in named
    assert "10.0.0.7" not in later


@pytest.mark.parametrize(
    ("job_id", "port", "status"),
    [("812", 29501, 403), ("812", 29500, 200), ("811", 29501, 200), ("", 29501, 200)],
    ids=["another job", "a part with an id of its own", "a port that differs", "no name"],
)
def test_job_with_the_same_token_on_the_same_nodes_is_not_mixed_into_this_one(
    make: Callable[..., list[OneNode]], job_id: str, port: int, status: int
) -> None:
    # Given the job hub of job 811, which meets at port 29500
    [node] = make(1)
    node.hub.job_id = "811"
    document = {**node.member.digest(0), "job_id": job_id}
    document["node"] = {**document["node"], "run_id": "run-other", "rendezvous": f"127.0.0.1:{port}"}

    # When a node of this or of another job reports to it
    try:
        Sender(TOKEN).send(f"http://127.0.0.1:{node.port}", "/digests", document, 5.0)
        answered = 200
    except Refused as error:
        answered = error.status
        assert "another job (811, not 812)" in str(error)

    # Then only what has both another name and another port is sent away
    assert answered == status


def test_what_is_no_digest_is_refused_with_the_reason(make: Callable[..., list[OneNode]]) -> None:
    nodes = make(2)
    until(judged(nodes, 0), *nodes)

    for junk in ({}, [], "x", {"schema": "diag.digest/9"}, {"schema": "diag.digest/1", "node": 5}):
        with pytest.raises(Refused, match="not a digest") as refused:
            Sender(TOKEN).send(f"http://127.0.0.1:{nodes[0].port}", "/digests", junk, 5.0)
        assert refused.value.status == 422


def test_death_of_a_rank_is_told_on_every_node_at_the_end(make: Callable[..., list[OneNode]]) -> None:
    """Also when the launcher ends within the second: its hub waits for the check that tells of it."""
    nodes = make(2)
    until(lambda: judged(nodes, 0)() and ranks_at(nodes[0]) == [0, 1], *nodes)

    # when rank 1 is killed, and both commands end at once
    nodes[1].hub.put(Record("exits", {"pid": 1001, "status": 9, "how": "pidfd"}, rank=1, host="node-1"))
    for node in nodes:
        node._ended.set()
        node._loop.join(10.0)
    ends = [threading.Thread(target=node.hub.finish, args=(1,)) for node in nodes]
    for end in ends:
        end.start()
    for end in ends:
        end.join(30.0)

    # On a crowded machine node 1 may give up waiting for the job hub's word, and says then what it knows by
    # itself.
    for node, by in zip(nodes, ({"node-0"}, {"node-0", ""}), strict=True):
        found = [(one.id, one.ranks) for one in node.hub.engine.active()]
        assert found == [("rank-died", (1,))], (node.number, found)
        assert {one.reported_by for one in node.hub.engine.active()} <= by
