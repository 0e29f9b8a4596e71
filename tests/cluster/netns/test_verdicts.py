"""What the hubs of four nodes say together when something breaks, and that a dump from a node that lives
tells of every rank."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.cluster.netns.job import TOKEN, ClusterJob, dump_on, run_job
from tests.netlab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

VERDICT_SECONDS = 120.0  # from the fault; some 30-40 s on a machine that does nothing else
DUMP_SECONDS = 15.0  # "complete or explained within 10 s", and Python's start on a busy core


def told(job: ClusterJob, node: int, identity: str, **wanted: Any) -> dict[str, Any] | None:
    """The last state of that finding in this node's run directory, if it is so."""
    for finding in job[node].findings(warnings=False):
        if finding["id"] == identity and all(
            finding[name.rstrip("_")] == value for name, value in wanted.items()
        ):
            return finding
    return None


def await_told(job: ClusterJob, nodes: tuple[int, ...], identity: str, **wanted: Any) -> list[dict[str, Any]]:
    job.until(lambda: all(told(job, node, identity, **wanted) for node in nodes), VERDICT_SECONDS,
              f"{identity} {wanted} on nodes {nodes}")  # fmt: skip
    return [finding for node in nodes if (finding := told(job, node, identity, **wanted)) is not None]


def dumps_from(job: ClusterJob, here: int, there: int) -> list[dict[str, Any]]:
    """By `diag dump` on the one node, and from there by the other's URL and token, as from outside."""
    url = f"http://{job[there].node.address}:{job[there].port}"
    return [job[here].dump(seconds=DUMP_SECONDS),
            dump_on(job[here].node, "--endpoint", url, "--token", TOKEN, seconds=DUMP_SECONDS)]  # fmt: skip


def check_ranks(document: dict[str, Any], seen: list[int], missing: list[int]) -> None:
    """Ranks whose stack was read; and ranks that are told as missing, each with a reason."""
    dump = document["dump"]
    reasons = dump["missing"]
    assert [rank["rank"] for rank in dump["ranks"] if rank["where"]] == seen, reasons
    assert sorted(map(int, reasons)) == missing and all(words and all(words) for words in reasons.values()), (
        reasons
    )


def verdicts(document: dict[str, Any]) -> list[tuple[str, str, list[int]]]:
    return [(f["id"], f["class"], f["ranks"]) for f in document["findings"] if f["severity"] != "info"]


@pytest.mark.parametrize(
    ("fault", "klass", "claim", "severity"),
    [
        ("data-hang:rank=2,step=6", "data_loading", "hang", "critical"),  # a FIFO that nobody else has opened
        (
            "lock-deadlock:rank=2,step=6",
            "lock_deadlock",
            "held-up",
            "warning",
        ),  # Python's locks name no owner
    ],
)
def test_hang_of_a_rank_is_told_alike_on_every_node(
    lab: Lab, fault: str, klass: str, claim: str, severity: str
) -> None:
    with run_job(lab, "--iters=400", fault=fault) as job:
        job.until(job.struck, 240, "the fault")

        hangs = await_told(job, (0, 1, 2, 3), claim, class_=klass, ranks=[2])
        documents = dumps_from(job, 1, 3)

        assert all(hang["waiting_ranks"] == [0, 1, 3] and hang["severity"] == severity for hang in hangs)
        for document in documents:
            assert verdicts(document) == [(claim, klass, [2])]
            check_ranks(document, [0, 1, 2, 3], [])
        assert {f["id"] for run in job.runs.values() for f in run.findings()} <= {"hang", "held-up"}


def test_stopped_rank_of_another_node(lab: Lab) -> None:
    with run_job(lab, "--iters=400", "--tp=2", "--ep=2") as job:
        job.await_step(5)

        job.kill_rank(3, signal.SIGSTOP)

        await_told(job, (0, 1, 2, 3), "hang", class_="stopped", ranks=[3])
        check_ranks(job[1].dump(seconds=DUMP_SECONDS), [0, 1, 2, 3], [])


def test_killed_rank_is_named_everywhere_and_its_peers_are_not(lab: Lab) -> None:
    """Its peers' connections close, and gloo ends them one after the other."""
    with run_job(lab, "--iters=400") as job:
        job.await_step(5)

        job.kill_rank(1)
        job.await_end(seconds=120)

        for rank, run in job.runs.items():
            said = [(finding["id"], finding["ranks"], finding["cause"]) for finding in run.findings()]
            assert said == [("rank-died", [1], "signal_9")], f"node {rank}\n{job.text}"


def test_node_whose_cable_is_pulled_is_named_by_the_others_and_says_so_itself(lab: Lab) -> None:
    with run_job(lab, "--iters=4000") as job:
        job.await_step(5)
        job.until(lambda: len(heard(job, 0)) == 4, 60, "all nodes heard")

        lab[3].pull_cable()

        failures = await_told(job, (0, 1, 2), "node-failure")
        (own,) = await_told(job, (3,), "node-failure", cause="this_node_cut_off")
        documents = dumps_from(job, 1, 2)

        for failure in failures:
            assert (failure["cause"], failure["ranks"]) == ("node_unreachable", [3]) and "node3" in failure[
                "summary"
            ], failure
            assert failure["waiting_ranks"] == [0, 1, 2]
        assert "this node" in own["summary"].lower(), own["summary"]
        for document in documents:
            check_ranks(document, [0, 1, 2], [3])
            assert all("blame" not in f for f in document["findings"])
            assert {rank for f in document["findings"] for rank in f["ranks"]} == {3}, document["findings"]
        check_ranks(job[3].dump(seconds=DUMP_SECONDS), [3], [0, 1, 2])

        # and when the cable is back, so is the job
        lab[3].plug_cable()
        job.await_step(job.iteration + 3, 180)
        # not: what the machine under it runs out of
        broken = {"hang", "held-up", "node-failure", "rank-died", "straggler"}
        job.until(
            lambda: not any(name in broken for node in range(4) for name, _ in active(job, node)),
            120,
            "all resolved",
        )


def heard(job: ClusterJob, node: int) -> list[str]:
    return [row["host"] for row in job[node].ask("/nodes")["nodes"] if row["state"] == "heard"]


def active(job: ClusterJob, node: int) -> list[tuple[str, str]]:
    return [(f["id"], f["cause"]) for f in job[node].ask("/findings")["findings"] if f["severity"] != "info"]


def is_job_hub(job: ClusterJob, node: int) -> bool:
    text = job[node].ask("/metrics")
    return any(line.startswith("diag_job_hub") and line.endswith(" 1.0") for line in text.splitlines())


def test_next_node_judges_when_node_0_loses_power(lab: Lab) -> None:
    with run_job(lab, "--iters=4000") as job:
        job.await_step(5)
        job.until(lambda: len(heard(job, 0)) == 4, 60, "all nodes heard")

        lab[0].power_off()

        failures = await_told(job, (1, 2, 3), "node-failure")
        documents = dumps_from(job, 2, 3)

        assert is_job_hub(job, 1) and not is_job_hub(job, 2) and not is_job_hub(job, 3)
        for failure in failures:
            assert (failure["cause"], failure["ranks"]) == ("node_unreachable", [0]) and "node0" in failure[
                "summary"
            ]
            assert failure["waiting_ranks"] == [1, 2, 3]
        for document in documents:
            check_ranks(document, [1, 2, 3], [0])
            assert {rank for f in document["findings"] for rank in f["ranks"]} == {0}, document["findings"]


def test_processes_of_node_0_killed_with_its_diag(lab: Lab) -> None:
    """Its host lives and closes the connections: the peers fail of that, and nobody can say how rank 0 ended."""
    with run_job(lab, "--iters=4000") as job:
        job.await_step(5)
        job.until(lambda: len(heard(job, 0)) == 4, 60, "all nodes heard")

        lab[0].kill_all()
        job.await_end(1, 2, 3, seconds=120)

        for rank in (1, 2, 3):
            named = {(f["id"], tuple(f["ranks"])) for f in job[rank].findings()}
            assert all(0 in ranks or not ranks for _, ranks in named) and named, (
                f"node {rank}: {named}\n{job.text}"
            )


def test_node_whose_link_is_slow_is_named_on_every_node(lab: Lab) -> None:
    """A token bucket of 5 Mbit/s at its port: each step takes some seconds, and nobody stands still."""
    with run_job(lab, "--iters=4000") as job:
        job.await_step(5)

        lab[2].limit_rate("5mbit")

        job.until(
            lambda: all(told(job, node, "straggler", cause="slow_link") for node in range(4)),
            240,
            "the slow link",
        )
        said = [told(job, node, "straggler", cause="slow_link") for node in range(4)]
        assert all(one and one["ranks"] == [2] and "node2" in one["summary"] for one in said)
        assert not any(
            f["id"] in ("hang", "held-up", "node-failure")
            for run in job.runs.values()
            for f in run.findings()
        ), job.text
