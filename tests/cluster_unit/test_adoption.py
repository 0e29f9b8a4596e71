"""An engine that is told digests says of a job what one says that is told everything: real runs, split into
two nodes."""

from __future__ import annotations

import heapq
import json
from pathlib import Path

import pytest

from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay_records
from diag.model import Change, Record
from tests.cluster_unit.nodes import JobOfNodes, NodeEngine, split

CAPTURES = Path(__file__).parents[1] / "captures"
ONE_HOST = sorted(path.parent for path in (CAPTURES / "h200-live").glob("*/expected.json"))
TWO_HOSTS = sorted(path.parent for path in (CAPTURES / "h200-net").glob("*-node0/expected.json"))


def records_of(run: Path) -> list[Record]:
    return list(JournalReader(segments(run)))


def as_two_nodes(records: list[Record], log_node: int) -> JobOfNodes:
    job = JobOfNodes([NodeEngine(0), NodeEngine(1)])
    for numbers, record in split(records, log_node):
        for number in numbers:
            job.feed(job.nodes[number], record)
    job.finish(records[-1].at)
    return job


def of_two_hosts(run: Path) -> JobOfNodes:
    job = JobOfNodes([NodeEngine(0), NodeEngine(1)])
    each = [records_of(run), records_of(run.with_name(run.name.replace("node0", "node1")))]
    for at, number, place in heapq.merge(
        *([(r.at, n, i) for i, r in enumerate(records)] for n, records in enumerate(each))
    ):
        assert at > 0
        job.feed(job.nodes[number], each[number][place])
    job.finish(max(records[-1].at for records in each))
    return job


def verdicts(engine: Engine) -> list[tuple[object, ...]]:
    return sorted((one.id, one.klass, one.cause, one.ranks, one.waiting_ranks, one.confidence.value)
                  for one in engine.active() if one.id in PRECEDENCE.whole_job)  # fmt: skip


def opened(changes: list[Change]) -> list[float]:
    return [
        change.at
        for change in changes
        if change.finding.id in ("hang", "held-up", "rank-died") and change.kind.value == "opened"
    ]


@pytest.mark.parametrize("log_node", [0, 1], ids=["log-on-node-0", "log-on-node-1"])
@pytest.mark.parametrize("run", ONE_HOST, ids=lambda run: run.name)
def test_digests_of_two_nodes_lead_to_the_verdict_of_all_records(run: Path, log_node: int) -> None:
    records = records_of(run)
    told_all, changes = replay_records(records)

    job = as_two_nodes(records, log_node)

    assert verdicts(job.engine) == verdicts(told_all)
    late = [mine - theirs for mine, theirs in zip(opened(job.changes), opened(changes), strict=True)]
    assert all(-0.01 <= seconds <= 6.0 for seconds in late), late  # a digest and a check later at most
    assert job.engine.job.sources.unparsed_total == 0
    assert job.engine.job.world_size == told_all.job.world_size
    if run.name.startswith("healthy"):
        assert job.changes == [] and job.nodes[0].changes == job.nodes[1].changes == []


@pytest.mark.parametrize("name", ["loop-skip-collective", "loop-data-hang", "data-hang-ras"])
def test_evidence_that_needs_both_nodes_is_joined(name: str) -> None:
    """Each node's Flight Recorder says only what its own rank came to."""
    job = as_two_nodes(records_of(CAPTURES / "h200-live" / name), 0)

    hang = job.hang()

    assert {item.kind for item in hang.evidence} >= {"remote_stack", "flight_recorder", "nccl_ras"}
    assert "rank 1 has not entered it" in " ".join(item.excerpt for item in hang.evidence)


def test_the_words_of_a_hang_are_those_of_one_who_saw_the_stacks() -> None:
    records = records_of(CAPTURES / "h200-live" / "loop-data-hang")
    told_all, _ = replay_records(records)

    said = as_two_nodes(records, 0).hang()

    seen = next(finding for finding in told_all.active() if finding.id in ("hang", "held-up"))
    assert said.advice == seen.advice
    # subject, line of code, worker's pid
    assert said.summary.split(" for ")[0] == seen.summary.split(" for ")[0]
    assert "DataLoader worker pid" in said.summary


@pytest.mark.parametrize(
    "run", [run for run in ONE_HOST if "hang" in run.name or "killed" in run.name], ids=lambda run: run.name
)
def test_what_one_node_would_say_of_the_job_is_withheld_while_the_job_hub_is_heard(run: Path) -> None:
    job = as_two_nodes(records_of(run), 0)

    for node in job.nodes:
        own = [
            change.finding
            for change in node.changes
            if change.finding.id in PRECEDENCE.whole_job and not change.finding.reported_by
        ]
        assert own == []
        assert verdicts(node.engine) == verdicts(job.engine)


@pytest.mark.parametrize("run", TWO_HOSTS, ids=lambda run: run.name.removesuffix("-node0"))
def test_network_findings_of_two_real_hosts_are_one_each(run: Path) -> None:
    expected: dict[tuple[str, str], set[int]] = {}
    for number in (0, 1):
        path = run.with_name(run.name.replace("node0", f"node{number}")) / "expected.json"
        for kind, cause, ranks in json.loads(path.read_text())["findings"]:
            expected.setdefault((kind, cause), set()).update(ranks)

    job = of_two_hosts(run)

    found = {(one.id, one.cause): set(one.ranks) for one in job.findings()}
    if run.name.startswith("mixed"):
        # given what each node says by itself: the other's network differs, or its own variable is to blame
        assert expected.pop(("transport-mismatch", "networks_differ")) == set()
        assert found["transport-mismatch", "ib_disabled"] == {1}
        assert job.the("transport-mismatch").waiting_ranks == (0,)
    for key, ranks in expected.items():
        if key[0] != "rank-died":
            assert found[key] == ranks, key
    assert len([one for one in job.findings() if one.id == "rank-died"]) == any(
        kind == "rank-died" for kind, _ in expected
    )
    assert all(one.id in {kind for kind, _ in expected} for one in job.findings())


def test_whom_the_other_nodes_death_is_told_of() -> None:
    """Rank 0 has the wrong interface; rank 1 only reports that its peer is gone."""
    job = of_two_hosts(CAPTURES / "h200-net" / "ifname-missing-node0")

    died = job.the("rank-died")

    assert (died.ranks, died.waiting_ranks) == ((0,), (1,))
    assert "rank 0 on node-0" in died.summary


@pytest.mark.parametrize(("run", "calm", "most"), [("healthy", 4_000, 50_000), ("sigstop", 4_000, 150_000)])
def test_digests_are_small(run: str, calm: int, most: int) -> None:
    """Of one rank: calm ones carry no stacks and no facts that were told; the largest has NCCL's facts or the
    recorder."""
    job = as_two_nodes(records_of(CAPTURES / "h200-live" / run), 0)

    for node in job.nodes:
        sizes = sorted(node.sizes)
        assert sizes[len(sizes) // 4] < calm
        assert sizes[-1] < most
