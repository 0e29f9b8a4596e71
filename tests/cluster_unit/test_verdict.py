"""A node's own engine beside the job hub's word: what it withholds, what it says again when that is gone."""

from __future__ import annotations

import pytest

from diag.engine.engine import Engine
from diag.model import ChangeKind, Finding
from diag.model.observations import JobVerdict, VerdictLost
from diag.outputs.report import job_status
from tests.cluster_unit.facts import death, finding
from tests.facts import ALL_REDUCE, SLEEP, Story

STANDS = {0: ALL_REDUCE, 1: SLEEP}


def verdict(*findings: Finding) -> JobVerdict:
    return JobVerdict(None, "gpu-0", 2, 2, findings)


def hung_alone() -> Story:
    """All ranks of this node stand; of the other node's nothing is known here."""
    story = Story(world=4, nodes=2)
    return story


def said(engine: Engine) -> list[tuple[str, str]]:
    return [(one.id, one.reported_by) for one in engine.active()]


def test_hang_of_one_node_is_withheld_while_the_job_hub_is_heard() -> None:
    story = hung_alone()
    for _ in range(10):
        story.still(6.0, STANDS)
        story.tell(verdict())

    assert story.findings() == []
    assert [one.id for one in story.engine.withheld.values()] == ["held-up"]  # for the digest


def test_hang_is_said_again_when_the_job_hub_is_lost() -> None:
    story = hung_alone()
    story.tell(verdict())
    story.still(40.0, STANDS)
    assert story.findings() == []

    story.tell(VerdictLost(None, "no hub of another node answers any more"))
    story.still(4.0, STANDS)

    assert said(story.engine) == [("held-up", "")]
    assert any(line.what == "the other nodes" for line in story.engine.not_checked())


def test_verdict_that_is_not_renewed_stops_counting() -> None:
    story = hung_alone()
    story.tell(verdict(finding("node-failure")))
    story.still(44.0, STANDS)
    assert said(story.engine) == [("node-failure", "gpu-0")]

    story.still(20.0, STANDS)

    assert said(story.engine) == [("held-up", "")]


def test_job_hubs_verdict_is_said_on_every_node_and_ends_when_it_ends() -> None:
    story = hung_alone()
    story.tell(verdict(finding("hang", ranks=(3,), waiting_ranks=(0, 1, 2))))
    story.wait(1.0)
    assert [(one.id, one.ranks, one.reported_by) for one in story.findings()] == [("hang", (3,), "gpu-0")]

    story.tell(verdict())
    story.wait(1.0)

    assert story.findings() == []


@pytest.mark.parametrize("final", [True, False])
def test_told_finding_that_the_job_hub_says_no_more_is_closed_even_if_final(final: bool) -> None:
    """The job hub first named one death, and learnt better."""
    story = hung_alone()
    story.exit(0, code=1)
    story.tell(verdict(finding("rank-died", subject="rank 0", final=final)))
    story.wait(1.0)
    story.tell(verdict(death(3, story.now)))
    story.wait(1.0)

    assert [(one.id, one.subject) for one in story.findings()] == [("rank-died", "rank 3")]


def test_own_final_finding_of_the_job_is_closed_when_the_hub_joins_and_says_otherwise() -> None:
    story = hung_alone()
    story.exit(0, code=1)
    story.wait(5.0)
    assert [(one.id, one.subject) for one in story.findings()] == [("rank-died", "rank 0")]

    story.tell(verdict(death(3, story.now)))
    changes = story.engine.advance(story.now + 1.0)

    assert [(change.kind, change.finding.subject) for change in changes] == [
        (ChangeKind.RESOLVED, "rank 0"), (ChangeKind.OPENED, "rank 3"),
    ]  # fmt: skip


def test_own_finding_that_the_job_hub_says_of_more_nodes_is_still_told_to_it() -> None:
    """Or the job hub would close it, and open it again, for ever."""
    story = Story(world=2)
    story.exit(0, code=1)
    own = finding("rank-died", subject="rank 0")
    story.tell(verdict(own))
    story.wait(5.0)

    assert said(story.engine) == [("rank-died", "gpu-0")]
    assert ("rank-died", "rank 0") in story.engine.withheld


def test_word_for_a_job_whose_hub_tells_of_a_hang_is_hung() -> None:
    story = hung_alone()
    story.tell(verdict(finding("hang")))
    story.wait(1.0)

    assert job_status(story.engine) == "hung"
