"""Hubs that do not reach each other, or should not be there: the job is unharmed, and what is said of it is a
note."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.netns.clock import ahead
from tests.cluster.netns.job import PORT, ClusterJob, run_job
from tests.netlab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def rows(job: ClusterJob, node: int = 0) -> list[dict[str, Any]]:
    """Of what this hub knows; nothing while it does not listen yet, on all addresses anew once it joins."""
    try:
        found: list[dict[str, Any]] = job[node].ask("/nodes")["nodes"]
    except OSError:
        return []
    return found


def await_heard(job: ClusterJob, hosts: set[str], node: int = 0, seconds: float = 120.0) -> None:
    job.until(
        lambda: {row["host"] for row in rows(job, node) if row["state"] == "heard"} == hosts,
        seconds,
        f"{hosts} heard",
    )


def said(job: ClusterJob) -> dict[int, list[tuple[str, str]]]:
    return {rank: [(f["id"], f["cause"]) for f in run.findings()] for rank, run in job.runs.items()}


def notes(job: ClusterJob, node: int) -> str:
    lines = job[node].ask("/findings")["not_checked"]
    return "\n".join(f"{line['what']}: {line['reason']}" for line in lines)


NOTHING: dict[int, list[tuple[str, str]]] = {0: [], 1: [], 2: [], 3: []}
ALL = {"node0", "node1", "node2", "node3"}


def test_healthy_job_of_four_nodes(lab: Lab) -> None:
    with run_job(lab, "--iters=60", "--tp=2", "--ep=2") as job:
        job.await_step(2)
        await_heard(job, ALL)
        table = rows(job)
        seen = [one["rank"] for one in job[0].ask("/ranks")["ranks"]]
        codes = job.await_end()

        assert codes == {0: 0, 1: 0, 2: 0, 3: 0}, job.text
        assert [(row["node_rank"], row["ranks"]) for row in table] == [(n, [n]) for n in range(4)]
        assert all(row["skew_seconds"] is None and row["url"].endswith(f":{PORT}") for row in table)
        assert seen == [0, 1, 2, 3]
        assert said(job) == NOTHING, job.text


def test_hubs_cut_off_from_each_other_harm_nothing(lab: Lab) -> None:
    """The training's own connections go on; only diag's port is filtered, on all nodes."""
    with run_job(lab, "--iters=250") as job:
        job.await_step(3)
        await_heard(job, ALL)

        for node in lab.nodes:
            node.drop_port(PORT)
        job.until(
            lambda: {row["state"] for row in rows(job) if row["host"] != "node0"} == {"silent"}, 60, "silence"
        )
        dump = job[0].dump(seconds=20)["dump"]
        codes = job.await_end()

        assert codes == {0: 0, 1: 0, 2: 0, 3: 0}, job.text
        assert said(job) == NOTHING, job.text
        assert [rank["rank"] for rank in dump["ranks"] if rank["where"]] == [0] and sorted(
            dump["missing"]
        ) == ["1", "2", "3"]


def test_node_with_another_token_is_noted_and_watched_alone(lab: Lab) -> None:
    with run_job(lab, "--iters=100", of_node={2: {"DIAG_TOKEN": "not-the-same"}}) as job:
        job.await_step(3)
        await_heard(job, {"node0", "node1", "node3"})
        job.until(lambda: lab[2].address in notes(job, 0), 60, "a note of the refusal")
        codes = job.await_end()

        assert codes == {0: 0, 1: 0, 2: 0, 3: 0}, job.text
        assert said(job) == NOTHING, job.text
        assert "rejects the digests of this node" in job[2].text, job[2].text


def test_node_whose_clock_is_an_hour_ahead(lab: Lab) -> None:
    """It is judged by when its digests come, not by what its clock says."""
    with run_job(
        lab, "--iters=400", fault="lock-deadlock:rank=2,step=20", of_node={3: ahead(lab.folder, 3600)}
    ) as job:
        job.await_step(3)
        await_heard(job, ALL)
        skews = {row["host"]: row["skew_seconds"] for row in rows(job)}
        job.until(
            lambda: all(("held-up", "threads_wait_for_each_other") in found for found in said(job).values()),
            180,
            "the hang",
        )

        assert abs(skews.pop("node3") - 3600) < 10 and set(skews.values()) == {None}
        assert all(f["ranks"] == [2] for run in job.runs.values() for f in run.findings()), job.text


def test_node_that_never_starts_is_named(lab: Lab) -> None:
    """torchrun itself waits for minutes and says nothing."""
    with run_job(lab, "--iters=10", nodes=(0, 1, 3)) as job:
        await_heard(job, ALL - {"node2"})

        missing = ("rendezvous-failure", "nodes_missing")
        job.until(lambda: all(missing in found for found in said(job).values()), 200, "who is missing")

        (failure,) = [f for f in job[3].findings() if f["id"] == "rendezvous-failure"]
        assert (
            failure["cause"] == "nodes_missing"
            and "node 2" in failure["summary"]
            and "3 of 4" in failure["summary"]
        )
        assert not any(name in ("hang", "held-up") for found in said(job).values() for name, _ in found), (
            job.text
        )

        # and once it comes, all is well
        job.start(2)
        codes = job.await_end(seconds=400)
        assert codes == {0: 0, 1: 0, 2: 0, 3: 0}, job.text


def test_two_nodes_with_one_number(lab: Lab) -> None:
    with run_job(lab, "--iters=10", numbers={3: 2}) as job:
        job.until(lambda: ("launch-mismatch", "duplicate_node_rank") in said(job)[0], 200, "the mismatch")

        (mismatch,) = [f for f in job[0].findings() if f["id"] == "launch-mismatch"]
        assert (
            "node2" in mismatch["summary"]
            and "node3" in mismatch["summary"]
            and "node 2" in mismatch["summary"]
        )
