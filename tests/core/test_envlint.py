"""The environment lint: each advice once where it is due, and once where it must stay silent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.knowledge import table
from diag.knowledge.env_lint import Advice, lint, nccl_variables, number, removed_from_nccl, torch_variables
from diag.model import Severity

HARMFUL, USELESS = "env-harmful", "env-no-effect"
Known = dict[str, Any]


def advice(env: dict[str, str], **known: Any) -> list[Advice]:
    return list(lint(env, **{"nodes": 2, "nccl_version": None, "rdma": True, **known}))


@pytest.mark.parametrize(
    ("env", "known", "variable", "identity", "words"),
    [
        ({"NCCL_IB_DISABLE": "1"}, {}, "NCCL_IB_DISABLE", HARMFUL, "TCP sockets"),
        ({"NCCL_NET": "Socket"}, {}, "NCCL_NET", HARMFUL, "TCP sockets"),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, {}, "NCCL_NET", HARMFUL, "fails to start"),
        ({"NCCL_NET_GDR_LEVEL": "LOC"}, {}, "NCCL_NET_GDR_LEVEL", HARMFUL, "host memory"),
        ({"NCCL_NET_GDR_LEVEL": "0"}, {}, "NCCL_NET_GDR_LEVEL", HARMFUL, "host memory"),
        ({"NCCL_P2P_DISABLE": "1"}, {"nodes": 1, "rdma": False}, "NCCL_P2P_DISABLE", HARMFUL, "NVLink"),
        ({"NCCL_P2P_LEVEL": "LOC"}, {}, "NCCL_P2P_LEVEL", HARMFUL, "NVLink"),
        ({"NCCL_SHM_DISABLE": "1"}, {"nodes": 1}, "NCCL_SHM_DISABLE", HARMFUL, "use the network"),
        ({"NCCL_SOCKET_IFNAME": "lo"}, {}, "NCCL_SOCKET_IFNAME", HARMFUL, "never meet"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, {}, "GLOO_SOCKET_IFNAME", HARMFUL, "never meet"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, {}, "CUDA_LAUNCH_BLOCKING", HARMFUL, "each kernel"),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, {}, "TORCH_NCCL_BLOCKING_WAIT", HARMFUL, "no longer overlap"),
        ({"NCCL_BLOCKING_WAIT": "1"}, {}, "NCCL_BLOCKING_WAIT", HARMFUL, "no longer overlap"),
        (
            {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
            {},
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            HARMFUL,
            "hangs forever",
        ),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, {}, "TORCH_DISTRIBUTED_DEBUG", HARMFUL, "over gloo"),
        (
            {
                "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
                "CUDA_COREDUMP_GENERATION_FLAGS": "skip_global_memory,skip_abort",
            },
            {},
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP",
            HARMFUL,
            "reported as success",
        ),
        ({"NCCL_ALGO": "Ring"}, {}, "NCCL_ALGO", HARMFUL, "pins"),
        ({"NCCL_PROTO": "LL128"}, {}, "NCCL_PROTO", HARMFUL, "pins"),
        ({"NCCL_BUFFSIZE": "8"}, {}, "NCCL_BUFFSIZE", HARMFUL, "8 bytes"),
        ({"NCCL_MAX_NCHANNELS": "1"}, {}, "NCCL_MAX_NCHANNELS", HARMFUL, "1 channels"),
        ({"NCCL_IB_TIMEOUT": "24"}, {}, "NCCL_IB_TIMEOUT", HARMFUL, "1 min 9 s"),
        ({"NCCL_IB_TIMEOUT": "5"}, {}, "NCCL_IB_TIMEOUT", HARMFUL, "131 µs"),
        ({"NCCL_DEBUG": "TRACE"}, {}, "NCCL_DEBUG", HARMFUL, "TRACE=1"),
        ({"NCCL_TIMEOUT": "3600"}, {}, "NCCL_TIMEOUT", USELESS, "training script reads it itself"),
        ({"NCCL_SOCKET_TIMEOUT": "60"}, {}, "NCCL_SOCKET_TIMEOUT", USELESS, "neither NCCL nor torch"),
        ({"NCCL_TREE_THRESHOLD": "0"}, {}, "NCCL_TREE_THRESHOLD", USELESS, "2.5 and later"),
        ({"NCCL_RINGS": "0 1"}, {}, "NCCL_RINGS", USELESS, "2.5 and later"),
        ({"NCCL_LL_THRESHOLD": "0"}, {}, "NCCL_LL_THRESHOLD", USELESS, "2.5 and later"),
        (
            {"NCCL_WORK_FIFO_DEPTH": "9"},
            {"nccl_version": (2, 27, 5)},
            "NCCL_WORK_FIFO_DEPTH",
            USELESS,
            "this is 2.27.5",
        ),
        ({"NCCL_RAS_ENABLE": "1"}, {"nccl_version": (2, 21, 5)}, "NCCL_RAS_ENABLE", USELESS, "from 2.24 on"),
        (
            {"NCCL_ASYNC_ERROR_HANDLING": "1"},
            {},
            "NCCL_ASYNC_ERROR_HANDLING",
            USELESS,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        ),
        (
            {"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"},
            {},
            "TORCH_NCCL_TRACE_BUFFER_SIZE",
            USELESS,
            "TORCH_FR_BUFFER_SIZE",
        ),
        (
            {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1"},
            {},
            "TORCH_NCCL_AVOID_RECORD_STREAMS",
            USELESS,
            "always does this",
        ),
        (
            {"NCCL_SOCKET_IFNAMES": "eth0"},
            {},
            "NCCL_SOCKET_IFNAMES",
            USELESS,
            "did you mean NCCL_SOCKET_IFNAME?",
        ),
        (
            {"NCCL_NSOCKS_PER_THREAD": "4"},
            {},
            "NCCL_NSOCKS_PER_THREAD",
            USELESS,
            "did you mean NCCL_NSOCKS_PERTHREAD?",
        ),
        ({"NCCL_P2P_DISABLE": "true"}, {}, "NCCL_P2P_DISABLE", USELESS, "'true' as 0"),
        (
            {"NCCL_IB_HCA": "mlx5_0", "NCCL_IB_DISABLE": "1"},
            {"rdma": False},
            "NCCL_IB_HCA",
            USELESS,
            "NCCL_IB_DISABLE=1",
        ),
        ({"NCCL_DEBUG": "VERBOSE"}, {}, "NCCL_DEBUG", USELESS, "prints nothing"),
        ({"NCCL_DEBUG_SUBSYS": "NET"}, {}, "NCCL_DEBUG_SUBSYS", USELESS, "without NCCL_DEBUG=INFO"),
        (
            {"NCCL_DEBUG_SUBSYS": "NET", "NCCL_DEBUG": "WARN"},
            {},
            "NCCL_DEBUG_SUBSYS",
            USELESS,
            "without NCCL_DEBUG=INFO",
        ),
        ({"NCCL_DEBUG_FILE": "/x"}, {}, "NCCL_DEBUG_FILE", USELESS, "only with NCCL_DEBUG"),
        ({"NCCL_SOCKET_FAMILY": "ipv4"}, {}, "NCCL_SOCKET_FAMILY", USELESS, "AF_INET"),
        ({"NCCL_SOCKET_IFNAME": "e"}, {}, "NCCL_SOCKET_IFNAME", USELESS, "one character"),
    ],
)
def test_what_harms_or_does_nothing_is_told(
    env: dict[str, str], known: Known, variable: str, identity: str, words: str
) -> None:
    (told,) = [one for one in advice(env, **known) if one.variable == variable]

    assert told.id == identity and words in told.does and told.instead and told.value == env[variable]


@pytest.mark.parametrize(
    ("env", "known"),
    [
        ({}, {}),
        (
            {
                "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
                "CUDA_COREDUMP_GENERATION_FLAGS": "skip_global_memory",
            },
            {},
        ),
        ({"CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "0", "CUDA_COREDUMP_GENERATION_FLAGS": "skip_abort"}, {}),
        ({"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1", "CUDA_COREDUMP_FILE": "/data/core.%p"}, {}),
        ({"NCCL_IB_DISABLE": "1"}, {"rdma": False}),  # on machines without RDMA it only saves a search
        ({"NCCL_IB_DISABLE": "1"}, {"nodes": 1}),
        ({"NCCL_IB_DISABLE": "0"}, {}),
        ({"NCCL_NET": "Socket"}, {"rdma": False}),
        ({"NCCL_NET": "IB"}, {}),
        ({"NCCL_NET": "AWS Libfabric"}, {}),
        ({"NCCL_NET_GDR_LEVEL": "PHB"}, {}),
        ({"NCCL_NET_GDR_LEVEL": "LOC"}, {"rdma": False}),
        ({"NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "0"}, {}),
        ({"NCCL_P2P_LEVEL": "NVL"}, {}),
        ({"NCCL_SOCKET_IFNAME": "lo"}, {"nodes": 1}),
        ({"NCCL_SOCKET_IFNAME": "lo"}, {"nodes": None}),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, {}),
        ({"NCCL_SOCKET_IFNAME": "bond0", "GLOO_SOCKET_IFNAME": "bond0"}, {}),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, {}),
        (
            {"TORCH_NCCL_BLOCKING_WAIT": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
            {},
        ),  # torchrun sets the second
        ({"TORCH_DISTRIBUTED_DEBUG": "INFO"}, {}),
        ({"NCCL_BUFFSIZE": "8388608", "NCCL_MAX_NCHANNELS": "16"}, {}),
        ({"NCCL_IB_TIMEOUT": "22"}, {}),  # in many clusters' own guides
        ({"NCCL_IB_TIMEOUT": "31"}, {"rdma": False}),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}, {}),
        ({"NCCL_DEBUG": "info"}, {}),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/x"}, {}),
        ({"NCCL_WORK_FIFO_DEPTH": "9"}, {"nccl_version": (2, 21, 5)}),
        ({"NCCL_WORK_FIFO_DEPTH": "9"}, {}),  # which NCCL it is is not known
        ({"NCCL_RAS_ENABLE": "0"}, {"nccl_version": (2, 27, 3)}),
        (
            {
                "TORCH_NCCL_ENABLE_MONITORING": "0",
                "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1800",
                "TORCH_FR_BUFFER_SIZE": "9",
            },
            {},
        ),
        (
            {
                "NCCL_IB_HCA": "mlx5",
                "NCCL_IB_GID_INDEX": "3",
                "NCCL_IB_QPS_PER_CONNECTION": "4",
                "NCCL_IB_TC": "106",
            },
            {},
        ),
        (
            {
                "NCCL_CUMEM_ENABLE": "0",
                "NCCL_NVLS_ENABLE": "0",
                "NCCL_CROSS_NIC": "1",
                "NCCL_PXN_DISABLE": "0",
            },
            {},
        ),
        # plugins', forks', images' and builds' own
        (
            {
                "NCCL_IBEXT_DISABLE": "1",
                "NCCL_OFI_DISABLE": "1",
                "NCCL_FASTRAK_IFNAME": "eth1",
                "NCCL_UCX_TLS": "x",
            },
            {},
        ),
        (
            {
                "NCCL_VERSION": "2.28.9-1",
                "NCCL_HOME": "/x",
                "NCCL_TUNER_CONFIG_FILE": "/x",
                "NCCL_MSCCL_ENABLE": "1",
            },
            {},
        ),
        ({"NCCL_SOMETHING_ELSE_ENTIRELY": "1", "TORCH_NCCL_UNHEARD_OF": "1"}, {}),
        ({"NCCL_TIMEOUT": ""}, {}),
        ({"OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NVTE_FLASH_ATTN": "0"}, {}),
    ],
)
def test_what_is_right_or_not_ours_to_judge_is_left_alone(env: dict[str, str], known: Known) -> None:
    assert advice(env, **known) == []


def test_what_is_not_known_is_said_softly() -> None:
    (unknown,) = advice({"NCCL_IB_DISABLE": "1"}, rdma=None)
    (known,) = advice({"NCCL_IB_DISABLE": "1"}, rdma=True)

    assert (unknown.severity, known.severity) == (Severity.INFO, Severity.WARNING)
    assert "this node has RDMA devices" in known.does and "this node has" not in unknown.does


def test_each_variable_is_told_once_and_harm_first() -> None:
    told = advice(
        {"NCCL_BLOCKING_WAIT": "1", "NCCL_TIMEOUT": "9", "NCCL_DEBUG_SUBSYS": "NET", "NCCL_SHM_DISABLE": "1"}
    )

    assert [one.variable for one in told] == [
        "NCCL_SHM_DISABLE",
        "NCCL_BLOCKING_WAIT",
        "NCCL_DEBUG_SUBSYS",
        "NCCL_TIMEOUT",
    ]


def test_no_name_that_nccl_reads_is_called_unread() -> None:
    """Every real variable with a harmless value; NCCL_DEBUG and the like have words."""
    words = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_FAMILY": "AF_INET"}
    env = {name: words.get(name, "0") for name in [*nccl_variables(), *torch_variables()]}
    gone = {name for name, (since, _) in removed_from_nccl().items() if since > (2, 5)}
    renamed = {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_TRACE_CPP_STACK", "NCCL_SOCKET_IFNAME"}

    told = {one.variable for one in advice(env) if one.id == USELESS} - renamed - gone

    assert told == set()
    assert {"NCCL_IB_HCA", "NCCL_SOCKET_NTHREADS", "NCCL_CONF_FILE", "NCCL_ALGO"} <= set(nccl_variables())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (" 2", 2),
        ("-2", -2),
        ("0x1F", 31),
        ("010", 8),
        ("08", 0),
        ("yes", 0),
        ("", 0),
        ("4M", 4),
        ("+3", 3),
        ("1.5", 1),
    ],
)
def test_numbers_are_read_as_nccl_does(text: str, value: int) -> None:
    assert number(text) == value


@given(
    st.dictionaries(
        st.sampled_from([*nccl_variables(), "NCCL_TIMEOUT", "NCCL_", "NCCL_X"]),
        st.text(max_size=40),
        max_size=8,
    )
)
def test_any_value_is_taken(env: dict[str, str]) -> None:
    for one in advice(env):
        assert one.variable in env and one.does and one.instead


# --- the table


@pytest.mark.parametrize("kind", ["harmful", "no_effect"])
def test_rows_of_the_table_have_only_what_the_lint_knows(kind: str) -> None:
    conditions = {"is", "not", "not_exactly", "number", "has", "length"}
    rows = table("env_lint")[kind]

    assert len(rows) > 5
    for row in rows:
        assert {"variables", "does", "instead"} <= set(row)
        assert set(row) <= {"variables", "does", "instead", "when", "also", "nodes", "severity"}
        assert {
            key for part in (row.get("when", {}), *row.get("also", {}).values()) for key in part
        } <= conditions
        assert row.get("nodes", "several") in ("several", "maybe_rdma")
        assert row.get("severity", "info") in ("info", "by_rdma")


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", "forever"), ("23", "34 s"), ("31", ""), ("13", "33.6 ms"), ("-1", "")]
)
def test_every_odd_timeout_of_rdma_is_explained(value: str, seconds: str) -> None:
    (one,) = advice({"NCCL_IB_TIMEOUT": value})

    assert seconds in one.does and "{" not in one.does
