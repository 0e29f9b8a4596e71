"""A node falls silent: is it gone, is only its hub gone, or is this node cut off; and nothing while the job
goes on."""

from __future__ import annotations

import pytest

from tests.cluster_unit.facts import Reports


def job_of(nodes: int) -> Reports:
    reports = Reports()
    for number in range(nodes):
        reports.hear(number, nodes=nodes)
    return reports


def silence_of(
    reports: Reports, silent: set[int], nodes: int, seconds: float = 30.0, *, moves: bool = False
) -> None:
    """The other nodes go on to report."""
    stood = reports.now
    for _ in range(int(seconds / 5.0)):
        reports.wait(5.0)
        for number in range(nodes):
            if number not in silent:
                reports.hear(number, nodes=nodes, moved=reports.now if moves else stood)


@pytest.mark.parametrize("answer", ["timeout", "unreachable", "unresolved"])
def test_node_without_any_answer_is_gone(answer: str) -> None:
    reports = job_of(3)
    silence_of(reports, {2}, 3)
    reports.probe(2, answer)
    reports.wait(2.0)

    found = reports.the("node-failure")

    assert (found.cause, found.subject, found.ranks, found.waiting_ranks) == (
        "node_unreachable",
        "gpu-2",
        (2,),
        (0, 1),
    )
    assert found.severity.value == "critical"
    assert "gpu-2 (node 2) with rank 2" in found.summary and "last heard" in found.evidence[0].excerpt


def test_ranks_of_a_node_that_nobody_told_of_are_those_that_are_left() -> None:
    """The hub that took over knew the node from before its ranks were found."""
    reports = Reports()
    reports.hear(0, nodes=3, ranks=(), world_size=3)
    reports.hear(1, nodes=3, world_size=3)
    reports.hear(2, nodes=3, world_size=3)
    silence_of(reports, {0}, 3)
    reports.probe(0, "timeout")
    reports.wait(2.0)

    found = reports.the("node-failure")

    assert (found.cause, found.ranks, found.waiting_ranks) == ("node_unreachable", (0,), (1, 2))


def test_ranks_are_not_guessed_where_two_nodes_told_none() -> None:
    reports = Reports()
    for number in range(4):
        reports.hear(number, nodes=4, world_size=4, ranks=() if number < 2 else None)
    silence_of(reports, {0, 1}, 4)
    reports.probe(0, "timeout")
    reports.wait(2.0)

    found = reports.the("node-failure")

    assert (found.cause, found.ranks, found.waiting_ranks) == ("node_unreachable", (), (2, 3))


@pytest.mark.parametrize("answer", ["refused", "connected"])
def test_node_whose_host_answers_has_lost_only_its_hub(answer: str) -> None:
    reports = job_of(3)
    silence_of(reports, {2}, 3)
    reports.probe(2, answer)
    reports.wait(2.0)

    found = reports.the("node-failure")

    assert (found.cause, found.severity.value) == ("hub_unreachable", "warning")
    assert "diag watch --pid" in found.advice


def test_one_node_that_hears_nobody_is_the_one_that_is_cut_off() -> None:
    reports = job_of(4)
    silence_of(reports, {1, 2, 3}, 4)
    for number in (1, 2, 3):
        reports.probe(number, "timeout")
    reports.wait(2.0)

    found = reports.the("node-failure")

    assert (found.cause, found.subject, found.ranks, found.waiting_ranks) == (
        "this_node_cut_off",
        "gpu-0",
        (0,),
        (1, 2, 3),
    )
    assert "none of the other 3 nodes answers gpu-0" in found.summary


def test_two_of_four_nodes_that_are_gone_are_one_finding() -> None:
    reports = job_of(4)
    silence_of(reports, {2, 3}, 4)
    for number in (2, 3):
        reports.probe(number, "timeout")
    reports.wait(2.0)

    found = reports.the("node-failure")

    assert (found.cause, found.ranks, found.subject) == ("node_unreachable", (2, 3), "job")
    assert "gpu-2 (node 2), gpu-3 (node 3) with ranks 2-3 no longer answer" in found.summary


def test_nothing_is_said_of_a_silent_hub_while_the_job_goes_on() -> None:
    """It is `not checked`: only diag's process is gone, or its port."""
    reports = job_of(3)
    silence_of(reports, {2}, 3, moves=True)
    reports.probe(2, "timeout")
    reports.wait(2.0)

    assert reports.findings() == []
    assert "gpu-2 (node 2) (rank 2): its hub has not been heard for" in reports.notes()


def test_nothing_is_said_before_the_silent_node_was_tried() -> None:
    reports = job_of(3)
    reports.probe(2, "timeout")  # an old answer: it was heard after that
    reports.wait(1.0)
    reports.hear(2, nodes=3)
    silence_of(reports, {2}, 3)

    assert "node-failure" not in reports.ids()


def test_healthy_nodes_and_one_that_said_that_it_leaves_are_no_failure() -> None:
    reports = job_of(3)
    reports.hear(2, nodes=3, leaving=True)
    silence_of(reports, {2}, 3)
    reports.probe(2, "refused")
    reports.wait(2.0)

    assert "node-failure" not in reports.ids()
    assert "gpu-2" not in reports.notes()


def test_node_that_is_heard_again_is_no_failure_any_more() -> None:
    reports = job_of(3)
    silence_of(reports, {2}, 3)
    reports.probe(2, "timeout")
    reports.wait(2.0)
    assert "node-failure" in reports.ids()

    for number in range(3):
        reports.hear(number, nodes=3)
    reports.wait(8.0)

    assert "node-failure" not in reports.ids()


def test_hub_of_a_large_job_that_reports_seldom_is_not_silent_too_soon() -> None:
    reports = Reports()
    for number in range(3):
        reports.hear(number, nodes=3, every_seconds=20.0)
    stood = reports.now
    for _ in range(8):
        reports.wait(5.0)
        for number in (0, 1):
            reports.hear(number, nodes=3, moved=stood, every_seconds=20.0)
    reports.probe(2, "timeout")
    reports.wait(1.0)

    assert "node-failure" not in reports.ids()  # 41 s of 60 s
    reports.wait(25.0)
    reports.probe(2, "timeout")
    for number in (0, 1):
        reports.hear(number, nodes=3, moved=stood, every_seconds=20.0)
    reports.wait(2.0)
    assert "node-failure" in reports.ids()


def test_clock_of_a_node_that_is_minutes_ahead_is_a_note() -> None:
    reports = job_of(2)
    reports.hear(1, skew_seconds=-200.0)

    assert (
        "times in the logs of gpu-1 (node 1): its clock is 3 min 20 s behind that of the job hub"
        in reports.notes()
    )
    reports.hear(1, skew_seconds=2.0)
    assert "times in the logs" not in reports.notes()


def test_job_hub_that_was_not_needed_for_minutes_misses_nobody_when_it_takes_over_again() -> None:
    """Another judged the job meanwhile: all that it knew of the nodes is old."""
    reports = job_of(3)
    reports.wait(300.0)
    reports.hear(0, nodes=3)
    reports.hear(1, nodes=3)

    assert [node.digest.host for node in reports.engine.job.cluster.current()] == ["gpu-0", "gpu-1"]
    assert reports.engine.job.cluster.silent(reports.now) == []
