"""env-harmful and env-no-effect: told once a variable with the ranks that have it, silent for what diag and
launchers set."""

from __future__ import annotations

import pytest

from diag.model.observations import GpuSample
from tests.detectors.netfacts import access, environment, nccl, port, ports, told, two_nodes, world
from tests.facts import Story, pid_of


def test_copied_switch_is_told_with_its_ranks_and_what_it_does() -> None:
    found = told(
        two_nodes(),
        environment(0, NCCL_IB_DISABLE="1"),
        environment(1, NCCL_IB_DISABLE="1"),
        ports(port("mlx5_0")),
    )

    harmful = found["env-harmful"]
    assert (harmful.subject, harmful.ranks, harmful.severity.value) == ("NCCL_IB_DISABLE", (0, 1), "warning")
    assert "TCP sockets" in harmful.summary


def test_variable_that_nothing_reads_is_told() -> None:
    found = told(Story(), environment(1, NCCL_TIMEOUT="3600"))["env-no-effect"]

    assert (found.subject, found.ranks) == ("NCCL_TIMEOUT", (1,))
    assert "init_process_group(timeout" in found.advice


def test_nccl_conf_is_told_as_the_origin() -> None:
    facts = [
        environment(0, NCCL_DEBUG="INFO"),
        access(0, conf=(("/etc/nccl.conf", "NCCL_P2P_DISABLE", "1"),)),
    ]

    found = told(Story(), *facts)["env-harmful"]

    assert "set in /etc/nccl.conf" in found.summary
    assert found.evidence[0].kind == "nccl.conf"


def test_environment_overrules_nccl_conf() -> None:
    facts = [
        environment(0, NCCL_P2P_DISABLE="0"),
        access(0, conf=(("/etc/nccl.conf", "NCCL_P2P_DISABLE", "1"),)),
    ]

    assert told(Story(), *facts) == {}


def test_switch_of_rdma_does_not_matter_to_another_plugins_network() -> None:
    libfabric = nccl(pid_of(0), "Using network AWS Libfabric", *world(0))

    assert told(two_nodes(), environment(0, NCCL_IB_DISABLE="1"), ports(port("rdmap16s27")), *libfabric) == {}


@pytest.mark.parametrize(
    ("card", "severity"), [("NVIDIA GeForce RTX 4090", "info"), ("NVIDIA H200", "warning")]
)
def test_switch_of_p2p_is_right_on_desktop_cards(card: str, severity: str) -> None:
    gpu = GpuSample(None, 0, "GPU-0", "0000:00:06.0", card, 1.0, 1 << 30, 24 << 30, 120.0, 450.0, None, None)

    found = told(Story(), gpu, environment(0, NCCL_P2P_DISABLE="1"))["env-harmful"]

    assert found.severity.value == severity


def test_switch_costs_nothing_on_one_node() -> None:
    assert (
        told(Story(), environment(0, NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="lo"), ports(port("mlx5_0")))
        == {}
    )


@pytest.mark.parametrize(
    "variables",
    [
        # what `diag run` itself sets, and ms-swift 4.6.0, torchrun 2.11 and Slurm 22.05
        {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_FILE": "/tmp/run/nccl/%h.%p.log",
            "NCCL_RAS_ADDR": "localhost:41923",
        },
        {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
        },
        {
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
            "CUDA_VISIBLE_DEVICES": "0,1",
        },
        {
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_CUMEM_HOST_ENABLE": "0",
            "NCCL_IB_HCA": "mlx5",
            "NCCL_SOCKET_IFNAME": "eth0",
        },
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_OFI_ANYTHING": "1"},
    ],
)
def test_ordinary_environment_raises_nothing(variables: dict[str, str]) -> None:
    found = told(two_nodes(), environment(0, **variables), ports(port("mlx5_0")))

    assert {name: finding.summary for name, finding in found.items() if finding.severity.counts} == {}
