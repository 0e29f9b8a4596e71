"""Nodes that never came, and nodes that were started unlike each other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster_unit.facts import Reports

EARLY: dict[str, Any] = {
    "phase": "rendezvous",
    "marked_phase": "launch",
    "iteration": None,
    "log_moved_at": None,
}


def waiting(reports: Reports, numbers: tuple[int, ...], seconds: float, **changes: Any) -> None:
    end = reports.now + seconds
    while reports.now < end:
        for number in numbers:
            reports.hear(number, ranks=(), **{**EARLY, **changes})
        reports.wait(5.0)


def test_nodes_that_never_came_are_named_after_ninety_seconds() -> None:
    reports = Reports()
    names = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")

    waiting(reports, (0, 2), 85.0, nodes=4, host_names=names)
    patient = reports.ids()
    waiting(reports, (0, 2), 10.0, nodes=4, host_names=names)

    found = reports.the("rendezvous-failure")
    assert patient == []
    assert found.cause == "nodes_missing"
    assert (
        "2 of 4 nodes have been waiting for each other" in found.summary
        and "at 10.0.0.0:29500" in found.summary
    )
    assert "2 never joined: node 1 (gpu-1), node 3 (gpu-3)" in found.summary


def test_nodes_without_names_or_numbers_are_counted() -> None:
    numbered, unnumbered = Reports(), Reports()
    waiting(numbered, (1,), 100.0, nodes=4)
    waiting(unnumbered, (1,), 100.0, nodes=4, node_rank=None)

    assert "3 never joined: nodes 0, 2-3" in numbered.the("rendezvous-failure").summary
    assert unnumbered.the("rendezvous-failure").summary.endswith("3 never joined")


def test_node_whose_ranks_torchrun_has_started_does_not_wait_for_one_without_diag() -> None:
    # Given two nodes of which one has no diag, and a model that is loaded without a word for two minutes
    reports = Reports()
    for _ in range(24):
        reports.hear(0, **EARLY)
        reports.wait(5.0)

    assert reports.findings() == []


def test_torchrun_nodes_of_unlike_counts_that_have_met_are_no_mismatch() -> None:
    reports = Reports()
    for _ in range(4):
        reports.hear(0, **EARLY)
        reports.hear(1, **{**EARLY, "local_world_size": 4})
        reports.wait(2.0)

    assert reports.findings() == []


def test_last_node_that_comes_ends_the_wait() -> None:
    reports = Reports()
    waiting(reports, (0,), 100.0)
    assert reports.ids() == ["rendezvous-failure"]

    waiting(reports, (0, 1), 10.0)

    assert reports.findings() == []


def test_node_without_diag_is_not_checked_once_the_job_runs() -> None:
    reports = Reports()
    for _ in range(30):
        reports.hear(0, nodes=3)
        reports.hear(1, nodes=3)
        reports.wait(5.0)

    assert reports.findings() == []
    assert "1 of 3 nodes (node 2): no diag reports from there" in reports.notes()


def test_one_number_given_to_two_nodes_is_said_with_both_hosts() -> None:
    reports = Reports()
    waiting(reports, (0, 1), 10.0, node_rank=0)

    found = reports.the("launch-mismatch")

    assert (found.cause, found.severity.value) == ("duplicate_node_rank", "critical")
    assert "gpu-0 and gpu-1 were all started as node 0" in found.summary
    assert "JOB_COMPLETION_INDEX" in found.advice


@pytest.mark.parametrize(
    ("cause", "second", "words"),
    [
        ("nnodes_differ", {"nodes": 3}, "count of nodes"),
        ("nproc_differ", {"local_world_size": 4}, "4 on gpu-1 (node 1)"),
        ("port_differs", {"rendezvous": "10.0.0.0:29501"}, "29501 on gpu-1 (node 1)"),
    ],
)
def test_nodes_that_were_told_different_things_are_named(
    cause: str, second: dict[str, Any], words: str
) -> None:
    reports = Reports()
    for _ in range(2):
        reports.hear(0, ranks=(), **EARLY)
        reports.hear(1, ranks=(), **{**EARLY, **second})
        reports.wait(2.0)

    found = reports.the("launch-mismatch")

    assert found.cause == cause
    assert words in found.summary
    assert any("gpu-" in item.excerpt for item in found.evidence)


@pytest.mark.parametrize("second", [{}, {"local_world_size": 0}, {"rendezvous": ""}, {"node_rank": None}])
def test_nodes_that_were_told_the_same_or_nothing_are_silent(second: dict[str, Any]) -> None:
    reports = Reports()
    for _ in range(3):
        reports.hear(0, ranks=(), **EARLY)
        reports.hear(1, ranks=(), **{**EARLY, **second})
        reports.wait(2.0)

    assert reports.findings() == []


def test_job_that_came_together_with_different_counts_is_left_alone() -> None:
    reports = Reports()
    for _ in range(3):
        reports.hear(0, local_world_size=8)
        reports.hear(1, local_world_size=4)
        reports.wait(2.0)

    assert reports.findings() == []


def test_hub_that_was_started_anew_is_no_second_node_of_its_number() -> None:
    reports = Reports()
    reports.hear(0)
    reports.hear(1)
    reports.wait(3.0)
    for _ in range(6):  # the one before it was killed
        reports.hear(0)
        reports.hear(1, run_id="run-1-again")
        reports.wait(3.0)

    assert "launch-mismatch" not in reports.ids()
