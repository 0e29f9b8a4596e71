"""One node's network answers late beside the others'; nothing where all do, or for a moment; less where RDMA
carries the load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model.observations import NcclCommunicator, NcclLine, NcclNetChosen, StackSampleSummary
from tests.cluster_unit.facts import Reports, rank

LINE = NcclLine(2, "gpu-2", 31, 31, 0, "INFO", "Using network IB")
# seconds: 40 us and, through a full token bucket of 5 Mbit/s, 12 ms (network namespaces)
QUICK, LATE = (0.00004, 0.012)


def told(trips: list[list[float]], *, waits: bool = True) -> Reports:
    """What nodes 1, 2, ... measured to the job hub on node 0, digest by digest; ranks that are found waiting
    for each other."""
    reports = Reports()
    for row in trips:
        reports.hear(0, nodes=4)
        for number, seconds in enumerate(row, start=1):
            reports.hear(number, nodes=4, connect_seconds=seconds)
            looks = tuple(
                StackSampleSummary(reports.now, waits, "collective", "all_reduce") for _ in range(4)
            )
            reports.tell(replace(rank(number, reports.now, of=number, moved=reports.now), looks=looks))
        reports.wait(5.0)
    return reports


def test_node_whose_link_is_late_is_named_with_its_ranks() -> None:
    reports = told([[QUICK, LATE, QUICK]] * 6)

    found = reports.the("straggler")

    assert (found.cause, found.subject, found.ranks, found.severity.value) == (
        "slow_link",
        "gpu-2",
        (2,),
        "warning",
    )
    assert found.waiting_ranks == (0, 1, 3)
    assert "12 ms there, 40 µs on the other nodes" in found.summary and "100 % of samples" in found.summary


@pytest.mark.parametrize(
    "trips",
    [
        [[QUICK, QUICK, QUICK]] * 6,
        [[LATE, LATE, LATE]] * 6,  # all alike: a routed network, or the job hub's own link
        [[QUICK, LATE, QUICK]] * 4,  # not often enough yet
        [[QUICK, LATE, QUICK], [QUICK, QUICK, QUICK]] * 4,  # now and then
        [[QUICK, 0.003, QUICK]] * 6,  # many times the others', and still short
    ],
)
def test_no_link_is_slow(trips: list[list[float]]) -> None:
    assert "straggler" not in told(trips).ids()


def test_link_that_the_ranks_do_not_wait_for_is_information() -> None:
    assert told([[QUICK, LATE, QUICK]] * 6, waits=False).the("straggler").severity.value == "info"


def test_link_beside_rdma_is_information() -> None:
    reports = told([[QUICK, LATE, QUICK]] * 6)
    assert reports.the("straggler").severity.value == "warning"

    reports.tell(
        NcclNetChosen(2, LINE, "IB"), NcclCommunicator(2, LINE, "start", "0x1", 2, 4, comm_id="0xabc")
    )
    reports.wait(2.0)

    assert reports.the("straggler").severity.value == "info"
