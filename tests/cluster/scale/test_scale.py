"""A real job hub and 64 played nodes over real HTTP: asserted are verdicts and ratios, which a busy machine
does not change."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cluster.scale.lab import Lab
from tests.cluster.scale.nodes import CULPRIT, RANKS

NODES = 64

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("scale"), NODES, spread=2.0)
    try:
        made.wait(lambda: made.joined(2), 60.0, "the second hub joins")
        made.play()
        yield made
    finally:
        made.close()


def test_one_rank_of_512_that_hangs_is_named_from_digests_and_in_a_dump_of_all_nodes(lab: Lab) -> None:
    culprit = NODES // 2 * RANKS + CULPRIT

    # when all nodes report at once, and then go on
    lab.wait(lambda: lab.say("stats")["reached"] == NODES, 60.0, "every node was answered")
    lab.begin()
    time.sleep(6.0)  # some rounds of a healthy job: the cost of time passing is what is measured
    healthy = lab.phase("healthy")
    before = lab.say("stats")["hang"]

    # then nothing is said, no report is lost, and a rank costs some bytes a second
    assert before is None
    assert healthy.failed == 0 and healthy.posts >= NODES
    assert healthy.up < 2000 and healthy.down < 2000  # with the first digests and rosters, which are long
    nodes, _ = lab.get("/nodes")
    assert sum(len(row["ranks"]) for row in nodes["nodes"]) == NODES * RANKS

    # when one rank stands still and the others wait for it
    lab.say("hang")
    lab.wait(lambda: lab.say("stats")["hang"], 120.0, "the hang is told")
    said = lab.say("stats")["hang"]
    hang = lab.phase("hang")

    # then that rank is named on all nodes, and stacks cost no multiple of their number: equal ones travel
    # once
    assert (said["ranks"], said["waiting_ranks"]) == (
        str(culprit),
        f"0-{culprit - 1},{culprit + 1}-{NODES * RANKS - 1}",
    )
    assert (said["klass"], said["severity"]) == ("data_loading", "critical")
    assert hang.up < 40 * healthy.up

    # and a dump has every rank: those of the node that does not answer as missing, with the reason
    document, _ = lab.get("/dump?deadline=8", 60.0)
    mute = {str(rank) for rank in range((NODES - 1) * RANKS, NODES * RANKS)}
    assert len(document["ranks"]) == (NODES - 1) * RANKS
    assert set(document["missing"]) == mute
    assert "did not answer in time" in document["missing"][min(mute)][0]
    assert {"hang", "held-up"} & {finding["id"] for finding in document["report"]["findings"]}
    assert next(row for row in document["ranks"] if row["rank"] == culprit)["state"] == "hung"


def test_another_hub_has_all_nodes_once_the_job_hub_is_killed(lab: Lab) -> None:
    lab.wait(lambda: lab.say("stats")["reached"] == NODES, 60.0, "every node was answered")
    first = set(lab.say("stats")["heard_from"])

    lab.hubs[0].end()

    def taken() -> bool:
        heard = lab.say("stats")["heard_from"]
        return not first & set(heard) and sum(heard.values()) == NODES

    lab.wait(taken, 120.0, "the second hub has all nodes")
