"""RDMA ports and transfers that fail: ib-port and ib-error, and where they stay silent."""

from __future__ import annotations

import pytest

from diag.model import Severity
from diag.model.observations import RankExited
from tests.detectors.netfacts import (
    access,
    environment,
    nccl,
    port,
    ports,
    told,
    two_nodes,
    warns,
    world,
)
from tests.facts import pid_of

MIB = 1 << 20


# --- ib-port
# ---------------------------------------------------------------------------------------------------


def test_port_that_goes_down_during_the_run_is_named_until_it_is_up_again() -> None:
    story = two_nodes()
    told(story, ports(port("mlx5_0"), port("mlx5_1")))

    down = told(story, ports(port("mlx5_0"), port("mlx5_1", 1)), access(0, held=("uverbs1",)))["ib-port"]
    healed = told(story, ports(port("mlx5_0"), port("mlx5_1")), wait=15)

    assert (down.severity, down.cause, down.subject, down.ranks) == (
        Severity.CRITICAL,
        "went_down",
        "port mlx5_1:1",
        (0,),
    )
    assert (healed["ib-port"].severity, healed["ib-port"].cause) == (Severity.INFO, "link_downed")


def test_nccls_own_event_of_a_port_that_diag_sees_makes_it_sure() -> None:
    story = two_nodes()
    told(story, ports(port("mlx5_0")))
    event = warns(
        pid_of(0),
        "transport/net_ib/init.cc:253",
        "NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)",
    )

    found = told(story, *event, ports(port("mlx5_0", 1)))["ib-port"]

    assert found.confidence.value == "high"


def test_event_of_another_node_is_enough_and_port_active_makes_it_a_flap() -> None:
    story = two_nodes()
    where = "transport/net_ib.cc:199"
    down = told(
        story, *warns(91, where, "NET/IB : mlx5_3:1 Got async error event: port error", host="gpu-node-1")
    )["ib-port"]
    healed = told(
        story,
        *warns(91, where, "NET/IB : mlx5_3:1 Got async error event: port active", host="gpu-node-1"),
        wait=15,
    )

    assert ("mlx5_3:1" in down.summary, down.severity) == (True, Severity.CRITICAL)
    assert (healed["ib-port"].severity, healed["ib-port"].cause) == (Severity.INFO, "link_downed")


def test_port_that_goes_down_again_and_again_flaps() -> None:
    story = two_nodes()
    for _ in range(3):
        told(story, ports(port("mlx5_0")))
        told(story, ports(port("mlx5_0", 1)))

    found = told(story, ports(port("mlx5_0")), wait=15)["ib-port"]

    assert (found.cause, found.severity) == ("flaps", Severity.WARNING)


def test_short_downs_between_two_looks_are_told_by_the_counter() -> None:
    story = two_nodes()
    told(story, ports(port("mlx5_0", link_downed=7)))

    assert told(story, ports(port("mlx5_0", link_downed=11)))["ib-port"].cause == "flaps"


def test_down_port_that_the_filter_names_is_told() -> None:
    wanted = environment(0, NCCL_IB_HCA="=mlx5_0,mlx5_1")

    found = told(two_nodes(), wanted, ports(port("mlx5_0"), port("mlx5_1", 2)))["ib-port"]

    assert (found.cause, found.subject) == ("down", "port mlx5_1:1")
    assert "no subnet manager" in found.summary


@pytest.mark.parametrize("value", ["mlx5", "=mlx5_0", "^mlx5_1", ""])
def test_port_without_a_cable_is_no_finding(value: str) -> None:
    assert (
        told(two_nodes(), environment(0, NCCL_IB_HCA=value), ports(port("mlx5_0"), port("mlx5_1", 1))) == {}
    )


def test_slower_port_is_info_only_where_the_filter_selects_it() -> None:
    slow = ports(port("mlx5_0", rate=50e9), port("mlx5_1", rate=12.5e9))

    assert told(two_nodes(), slow) == {}
    found = told(two_nodes(), environment(0, NCCL_IB_HCA="mlx5"), slow)["ib-port"]
    assert (found.cause, found.severity) == ("slow_rate", Severity.INFO)


# --- ib-error
# --------------------------------------------------------------------------------------------------

# One shape a version; the parser's own tests have all of them.
COMPLETION = (
    "NET/IB: Got completion from peer 192.0.2.3<4242> with status=IBV_WC_RETRY_EXC_ERR({}) opcode=IBV_WC_SEND(0) "
    "reqSize=0 vendor_err=129 req_type=Send hca mlx5_0"
)
MODIFY = (
    "Call to ibv_modify_qp failed with {}, on dev mlx5_2:1, curr state INIT, next state RTR, local GID index 3, local GID "
    "::ffff:192.0.2.2, remote GID ::ffff:192.0.2.3"
)
ERRORS = [
    (COMPLETION.format(12), "retry_exceeded", "NCCL_IB_TIMEOUT"),
    (COMPLETION.format(4), "local_protection", "ACS"),
    (COMPLETION.format(10), "remote_access", "ACS"),
    (COMPLETION.format(5), "flushed", "first error"),
    (COMPLETION.format(21), "completion_error", "ibv_poll_cq"),
    (MODIFY.format("110 Connection timed out"), "no_route", "NCCL_CROSS_NIC=0"),
    (MODIFY.format("22 Invalid argument"), "wrong_gid_index", "NCCL_IB_GID_INDEX"),
    (MODIFY.format("101 Network is unreachable"), "no_route", "ip route get"),
    (MODIFY.format("19 No such device"), "gid_vanished", "address"),
]


@pytest.mark.parametrize(("line", "cause", "words"), ERRORS)
def test_error_of_rdma_is_named_by_its_status_with_what_to_do(line: str, cause: str, words: str) -> None:
    found = told(
        two_nodes(), *nccl(pid_of(1), *world(1)), *warns(pid_of(1), "transport/net_ib/p2p.cc:688", line)
    )["ib-error"]

    assert (found.cause, found.ranks, found.severity) == (cause, (1,), Severity.CRITICAL)
    assert words in found.advice


def test_first_error_counts_and_flushed_queues_follow_from_it() -> None:
    story = two_nodes()
    story.tell(*warns(pid_of(1), "p2p.cc:1", COMPLETION.format(5)))
    story.wait(1)

    found = told(story, *warns(pid_of(0), "p2p.cc:1", COMPLETION.format(12)))["ib-error"]

    assert (found.cause, found.ranks) == ("retry_exceeded", (0,))


def test_error_beside_a_dead_rank_is_its_consequence() -> None:
    story = two_nodes()
    story.tell(RankExited(1, pid_of(1), None, 9, "pidfd"))

    found = told(story, *warns(pid_of(0), "p2p.cc:1", COMPLETION.format(12)))["ib-error"]

    assert (found.severity, found.confidence.value) == (Severity.WARNING, "low")
    assert (found.ranks, found.waiting_ranks) == ((1,), (0,))  # the dead one, not who lost it


def test_port_that_loses_packets_for_a_minute_is_named_and_a_few_losses_are_not() -> None:
    story = two_nodes()
    for second in range(0, 130, 10):
        story.tell(
            ports(
                port("mlx5_0", packet_seq_err=5 * second),
                port("mlx5_1", packet_seq_err=second // 50),
                at=story.now,
            )
        )
        story.wait(10)

    found = [finding for finding in story.findings() if finding.id == "ib-error"]

    assert [(one.subject, one.cause) for one in found] == [("port mlx5_0:1", "packet_loss")]


def test_retried_connection_is_no_error() -> None:
    # 2.24 and later, at INFO
    line = MODIFY.format("110 Connection timed out") + ", retrying 1/35 after 100 msec of sleep"

    assert told(two_nodes(), *nccl(pid_of(0), line)) == {}


def test_port_that_the_jobs_filter_leaves_out_is_only_info() -> None:
    story = two_nodes()
    story.tell(environment(0, NCCL_IB_HCA="=mlx5_0"), environment(1, NCCL_IB_HCA="=mlx5_0"))
    told(story, ports(port("mlx5_0"), port("mlx5_9")))

    found = told(story, ports(port("mlx5_0"), port("mlx5_9", 1)))["ib-port"]

    assert found.severity is Severity.INFO


def test_flap_that_eight_ranks_saw_is_one() -> None:
    where = "transport/net_ib.cc:199"
    facts = [
        fact
        for pid in range(8)
        for event in ("error", "active")
        for fact in warns(pid, where, f"NET/IB : mlx5_3:1 Got async error event: port {event}")
    ]

    found = told(two_nodes(), *facts)["ib-port"]

    assert (found.severity, "went down 1 time and" in found.summary) == (Severity.INFO, True)


def test_advice_leaves_out_exactly_the_port_that_failed() -> None:
    story = two_nodes()
    told(story, ports(port("mlx5_1"), port("mlx5_10")))

    found = told(story, ports(port("mlx5_1", 1), port("mlx5_10")))["ib-port"]

    assert "NCCL_IB_HCA=^=mlx5_1," in found.advice
