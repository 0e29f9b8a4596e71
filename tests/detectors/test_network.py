"""transport-mismatch, nccl-no-interface, duplicate-gpu, nccl-init-error, memlock-limit: named and silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diag.model import Severity
from diag.model.observations import Iteration, LimitsSeen, Observation
from diag.sources.logs.line_facts import read_text
from tests.detectors.netfacts import (
    INFINIBAND,
    SOCKETS,
    access,
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
