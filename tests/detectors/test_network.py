"""transport-mismatch, ib-port, ib-error, nccl-no-interface, duplicate-gpu, nccl-init-error, memlock-limit:
named and silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diag.model import Severity
from diag.model.observations import Iteration, LimitsSeen, Observation, RankExited
from diag.sources.logs.output import read_text
from tests.detectors.netfacts import (
    INFINIBAND,
    SOCKETS,
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
from tests.facts import Story, pid_of

MIB = 1 << 20


def member(
    rank: int, *lines: str, nodes: int = 2, size: int = 4, made: bool = False
) -> Iterator[Observation]:
    """A rank of a log of all nodes: ranks of the other node have its host name and pids of their own."""
    return nccl(
        pid_of(rank),
        *lines,
        *world(rank, size, nodes=nodes, comm=f"0x{rank + 16}", made=made),
        host=f"gpu-node-{rank * nodes // size}",
    )


# --- transport-mismatch
# ----------------------------------------------------------------------------------------


def test_rank_on_sockets_among_ranks_on_infiniband_is_named_with_the_reason() -> None:
    facts = [
        *member(0, *INFINIBAND),
        *member(1, *INFINIBAND),
        *member(2, *INFINIBAND),
        *member(3, "NCCL_IB_DISABLE set by environment to 1.", "Using network Socket"),
    ]

    found = told(two_nodes(), *facts)["transport-mismatch"]

    assert (found.ranks, found.waiting_ranks, found.severity) == ((3,), (0, 1, 2), Severity.CRITICAL)
    assert "ranks 0-2: IB" in found.summary
    assert "NCCL_IB_DISABLE=1" in found.summary


def test_rank_with_another_plugin_is_named() -> None:
    facts = [
        *member(0, "Using network IBext_v10"),
        *member(1, "Using network IBext_v10"),
        *member(2, *INFINIBAND),
    ]

    found = told(two_nodes(), *facts)["transport-mismatch"]

    assert (found.ranks, found.cause) == ((2,), "networks_differ")


def test_mismatch_is_told_while_the_communicator_is_still_being_made() -> None:
    head = "ncclCommInitRankConfig comm 0x1 rank {} nranks 4 cudaDev 0 nvmlDev 0 busId 60 commId 0xabc - Init START"
    facts = [
        *nccl(pid_of(0), *INFINIBAND, head.format(0)),
        *nccl(77, "Using network Socket", head.format(2), host="gpu-node-1"),
    ]

    assert told(two_nodes(), *facts)["transport-mismatch"].ranks == (2,)


@pytest.mark.parametrize("lines", [INFINIBAND, SOCKETS], ids=["all on InfiniBand", "all on sockets"])
def test_ranks_alike_raise_no_mismatch(lines: tuple[str, ...]) -> None:
    assert "transport-mismatch" not in told(
        two_nodes(), *(fact for rank in range(4) for fact in member(rank, *lines))
    )


def test_different_networks_within_one_node_do_not_matter() -> None:
    facts = [*member(0, *INFINIBAND, nodes=1, size=2), *member(1, "Using network Socket", nodes=1, size=2)]

    assert told(Story(), *facts) == {}


def test_different_networks_of_different_communicators_do_not_matter() -> None:
    other = [line.replace("0x1e3d17e1cf875ee7", "0x99") for line in world(1, 4)]
    facts = [*member(0, "Using network IB"), *nccl(pid_of(1), "Using network AWS Libfabric", *other)]

    assert "transport-mismatch" not in told(two_nodes(), *facts)


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


# --- nccl-no-interface
# -------------------------------------------------------------------------------------------


def test_missing_interface_is_named_with_its_variable() -> None:
    facts = [
        *nccl(pid_of(0), "NCCL_SOCKET_IFNAME set by environment to ib0"),
        *warns(pid_of(0), "bootstrap.cc:114", "Bootstrap : no socket interface found"),
    ]

    found = told(two_nodes(), *facts)["nccl-no-interface"]

    assert (found.ranks, found.cause) == ((0,), "ifname_matches_nothing")
    assert "NCCL_SOCKET_IFNAME=ib0" in found.summary


@pytest.mark.parametrize(
    ("name", "cause", "severity"), [("lo", "loopback", "critical"), ("docker0", "bridge", "warning")]
)
def test_interface_that_other_nodes_cannot_reach_is_named(name: str, cause: str, severity: str) -> None:
    found = told(two_nodes(), *nccl(pid_of(0), f"Bootstrap : Using {name}:127.0.0.1<0>"))["nccl-no-interface"]

    assert (found.cause, found.severity.value) == (cause, severity)


@pytest.mark.parametrize("name", ["lo", "docker0"])
def test_one_node_may_use_loopback(name: str) -> None:
    assert (
        told(Story(), *nccl(pid_of(0), f"Bootstrap : Using {name}:127.0.0.1<0>", *world(0, 2, nodes=1))) == {}
    )


@pytest.mark.parametrize("name", ["eth0", "ib0", "bond0", "ens1f0np0"])
def test_ordinary_interface_is_no_finding(name: str) -> None:
    assert told(two_nodes(), *nccl(pid_of(0), f"Bootstrap : Using {name}:192.0.2.2<0>", *world(0))) == {}


@pytest.mark.parametrize("name", ["lo", "docker0"])
def test_one_machine_whose_ranks_nccl_counts_as_nodes_may_use_loopback(name: str) -> None:
    # P2P and shared memory switched off (2.28.9, captured): nNodes is 2 on one machine
    facts = [
        fact
        for rank in range(2)
        for fact in nccl(pid_of(rank), f"Bootstrap : Using {name}:127.0.0.1<0>", *world(rank, 2))
    ]

    assert told(Story(), *facts) == {}


@pytest.mark.parametrize("name", ["lo", "docker0"])
def test_interface_that_reached_the_others_is_no_finding(name: str) -> None:
    lines = (
        *INFINIBAND,
        f"Bootstrap : Using {name}:10.1.2.3<0>",
        *world(0),
        "Connected all rings, use ring PXN 0 GDR 0",
    )

    assert told(two_nodes(), *nccl(pid_of(0), *lines)) == {}


@pytest.mark.parametrize("name", ["br-ex", "br0", "lo1"])
def test_hosts_own_bridge_is_no_finding(name: str) -> None:
    assert told(two_nodes(), *nccl(pid_of(0), f"Bootstrap : Using {name}:192.0.2.2<0>")) == {}


# --- duplicate-gpu
# -----------------------------------------------------------------------------------------------


def test_two_ranks_on_one_gpu_are_both_named() -> None:
    facts = [
        *nccl(pid_of(1), "NCCL version 2.28.9+cuda13.0"),
        *warns(
            pid_of(1), "init.cc:1000", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60"
        ),
    ]

    found = told(Story(), *facts)

    assert (found["duplicate-gpu"].ranks, "nccl-init-error" in found) == ((0, 1), False)


# --- nccl-init-error
# ---------------------------------------------------------------------------------------------

TORCH = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3135, {} "
    "(run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9"
)


def failing(rank: int, warning: str, code: int) -> Iterator[Observation]:
    yield from warns(pid_of(rank), "misc/socket.cc:484", warning)
    yield from nccl(pid_of(rank), f"bootstrap.cc:70 -> {code}")


def test_rank_with_an_error_of_its_own_is_named_not_the_ones_that_lost_it() -> None:
    facts = [
        *failing(0, "Cuda failure 'invalid device ordinal'", 1),
        *failing(1, "socketProgressOpt: Call to recv from 192.0.2.2<1> failed : Connection reset by peer", 2),
    ]

    found = told(Story(), *facts)["nccl-init-error"]

    assert (found.ranks, found.waiting_ranks, found.cause) == ((0,), (1,), "cuda")


def test_peer_that_cannot_be_reached_is_a_cause_of_low_confidence() -> None:
    facts = failing(1, "socketStartConnect: Connect to 192.0.2.9<4> failed : Connection refused", 2)

    found = told(Story(), *facts)["nccl-init-error"]

    assert (found.cause, found.confidence.value) == ("peer_unreachable", "low")


@pytest.mark.parametrize("warning", ["Error: network IB not found.", "Failed to initialize any NET plugin"])
def test_network_that_was_demanded_and_is_not_there_is_told_with_the_reason(warning: str) -> None:
    facts = [*nccl(pid_of(0), "NET/IB : No device found."), *failing(0, warning, 3)]

    found = told(two_nodes(), ports(port("mlx5_0")), access(0, nodes=()), *facts)["nccl-init-error"]

    assert found.cause == "network_not_found"
    assert "/dev/infiniband is not in the rank's container" in found.summary


def test_pytorchs_error_alone_is_told_when_nccl_was_silent() -> None:
    line = read_text("[rank1]: " + TORCH.format("unhandled system error"), "stderr", None)

    found = told(Story(), *line)["nccl-init-error"]

    assert (found.ranks, found.cause, found.confidence.value) == ((1,), "system", "low")
    assert "NCCL_DEBUG" in found.advice


def test_failure_after_steps_is_not_one_of_the_start() -> None:
    facts = [
        Iteration(None, 5, 0, "iteration 5"),
        *read_text(TORCH.format("remote process exited"), "stderr", 1),
    ]

    assert told(Story(), *facts) == {}


@pytest.mark.parametrize("line", ["init.cc:126 -> 5", "misc/socket.cc:64 -> 3"])
def test_result_without_a_warning_is_no_finding(line: str) -> None:
    assert told(Story(), *nccl(pid_of(0), line)) == {}


def test_warning_that_the_start_came_over_is_no_failure() -> None:
    facts = [
        *failing(0, "Cuda failure 'operation not permitted'", 2),
        *nccl(pid_of(0), *world(0, 2, nodes=1)),
    ]

    assert told(Story(), *facts) == {}


# --- memlock-limit
# -----------------------------------------------------------------------------------------------


def limit(rank: int, size: int | None) -> LimitsSeen:
    return LimitsSeen(rank, pid_of(rank), (("Max locked memory", size),), True)


@pytest.mark.parametrize(
    "line",
    [
        "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "Call to ibv_reg_mr failed with error Operation not permitted",
        "Call to ibv_create_cq failed with error Cannot allocate memory errno 12",
    ],
)
def test_refused_registration_is_the_memlock_limit_and_no_other_finding(line: str) -> None:
    facts = [*nccl(pid_of(0), *INFINIBAND), *failing(0, line, 2)]

    found = told(two_nodes(), limit(0, 8 * MIB), *facts)

    assert list(found) == ["memlock-limit"]
    assert (found["memlock-limit"].cause, found["memlock-limit"].ranks) == ("registration_failed", (0,))
    assert "8 MiB" in found["memlock-limit"].summary


def test_low_limit_is_told_before_it_fails_and_capability_lifts_it() -> None:
    low = told(two_nodes(), limit(0, 8 * MIB), access(0, ipc_lock=False, container="kubernetes"))[
        "memlock-limit"
    ]

    assert (low.severity, "IPC_LOCK" in low.advice) == (Severity.WARNING, True)
    assert told(two_nodes(), limit(0, 8 * MIB), access(0, ipc_lock=True)) == {}


def test_refusal_of_a_rank_that_may_lock_all_memory_has_another_reason() -> None:
    facts = failing(0, "Call to ibv_create_qp failed with error Cannot allocate memory", 2)

    found = told(two_nodes(), limit(0, None), *facts)

    assert ("memlock-limit" in found, found["ib-error"].cause) == (False, "verbs_failed")


@pytest.mark.parametrize("size", [256 << 30, None])
def test_limit_far_above_what_nccl_registers_is_no_finding(size: int | None) -> None:
    assert told(two_nodes(), limit(0, size), access(0, ipc_lock=False)) == {}


def test_limit_that_was_enough_is_no_finding() -> None:
    lines = (*INFINIBAND, *world(0), "Connected all rings, use ring PXN 0 GDR 1")

    assert told(two_nodes(), limit(0, 8 << 30), access(0, ipc_lock=False), *nccl(pid_of(0), *lines)) == {}


def test_low_limit_on_one_node_is_only_info() -> None:
    assert (
        told(Story(), limit(0, 8 * MIB), access(0, ipc_lock=False))["memlock-limit"].severity is Severity.INFO
    )
