"""What is said of the interfaces that NCCL would take, between nodes and on one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diag.launch.launchers.command import read_command
from diag.preflight.interfaces import check_gloo_interface, check_nccl_interface
from diag.preflight.line import Line
from diag.preflight.nccl_interfaces import Address, NetworkInterface
from diag.preflight.plan import LaunchPlan, container_here


def card(name: str, *addresses: str) -> NetworkInterface:
    places = [place.split("/") for place in addresses]
    return NetworkInterface(name, True, True, tuple(Address(ip, int(prefix)) for ip, prefix in places))


LO, ETH0, ETH1 = card("lo", "127.0.0.1/8"), card("eth0", "10.0.0.1/24"), card("eth1", "10.1.0.1/24")
BRIDGES = [card("cni0", "10.42.0.1/24"), card("flannel.1", "10.42.0.0/32")]
PODS = [card(f"cali{number}", "fe80::1/64") for number in range(9)]


def plan(*cards: NetworkInterface, nodes: int = 2, rdma: bool = False, **env: str) -> LaunchPlan:
    words = ("torchrun", "--nnodes", str(nodes), "--master_addr", "127.0.0.1", "t.py")
    return LaunchPlan(read_command(words, env), env, nccl_environment=env, interfaces=cards, rdma=rdma)


def nccl(*cards: NetworkInterface, nodes: int = 2, rdma: bool = False, **env: str) -> Line:
    (line,) = check_nccl_interface(plan(*cards, nodes=nodes, rdma=rdma, **env), lambda plan: "eth0")
    return line


@pytest.mark.parametrize(
    ("cards", "env", "status", "words"),
    [
        ([LO, ETH0], {}, "ok", "NCCL will use eth0 10.0.0.1/24 (the first in the kernel's order)"),
        ([LO, ETH0, ETH1], {}, "note", "different networks"),
        ([LO, ETH0, ETH1], {"NCCL_SOCKET_IFNAME": "eth"}, "ok", "also eth1"),  # somebody chose
        ([LO, ETH0, *BRIDGES], {}, "problem", "cni0, flannel.1 belong to containers"),
        ([LO, ETH0, *PODS], {}, "problem", "cali5 and 3 more belong to containers"),
        ([LO, *BRIDGES], {}, "problem", "NCCL will use cni0 10.42.0.1/24 (the first in the kernel's order)"),
        ([LO, card("docker0", "172.17.0.1/16")], {}, "problem", "a bridge local to this machine"),
        ([LO, ETH0], {"NCCL_SOCKET_IFNAME": "^docker"}, "problem", "NCCL will use lo"),
        ([LO], {}, "problem", "(there is no other)"),
        ([LO, ETH0], {"NCCL_SOCKET_IFNAME": "ib"}, "problem", "matches no interface that is up"),
        ([], {}, "problem", "no interface that is up has an address"),
    ],
)
def test_between_nodes(cards: list[NetworkInterface], env: dict[str, str], status: str, words: str) -> None:
    line = nccl(*cards, **env)

    assert line.status == status and words in line.said
    assert line.id == ("nccl-no-interface" if status == "problem" else "")


@pytest.mark.parametrize("cards", [[LO], [LO, ETH0, *BRIDGES], [LO, card("docker0", "172.17.0.1/16")]])
def test_on_one_node_any_will_do(cards: list[NetworkInterface]) -> None:
    assert nccl(*cards, nodes=1).status == "ok"


def test_on_one_node_a_variable_that_matches_nothing_still_fails() -> None:
    assert nccl(LO, ETH0, nodes=1, NCCL_SOCKET_IFNAME="ib").id == "nccl-no-interface"


def test_with_rdma_the_bridges_behind_the_first_carry_nothing() -> None:
    assert nccl(LO, ETH0, *BRIDGES, rdma=True).status == "note"


def test_remedy_names_the_interfaces_that_are_left() -> None:
    assert nccl(LO, ETH0, *BRIDGES).remedy == "NCCL_SOCKET_IFNAME=eth0"
    assert "(eth0)" in nccl(LO, ETH0, card("docker0", "172.17.0.1/16"), NCCL_SOCKET_IFNAME="docker").remedy


@pytest.mark.parametrize(
    ("value", "status"),
    [("eth0", "ok"), ("eth0,eth1", "ok"), ("eth", "problem"), ("eth0,eth7", "problem"), ("lo", "problem")],
)
def test_variable_of_gloo_is_whole_names(value: str, status: str) -> None:
    (line,) = check_gloo_interface(plan(LO, ETH0, ETH1, GLOO_SOCKET_IFNAME=value), lambda plan: "eth0")

    assert line.status == status


@pytest.mark.parametrize(
    ("way", "words"), [("", "the route to node 0 is not"), ("eth1", "the route to 127.0.0.1 is over eth1")]
)
def test_interface_that_does_not_lead_to_node_0_is_not_called_ok(way: str, words: str) -> None:
    (nccl_line,) = check_nccl_interface(plan(LO, ETH0), lambda plan: way)
    (gloo_line,) = check_gloo_interface(plan(LO, ETH0, GLOO_SOCKET_IFNAME="eth0"), lambda plan: way)

    for line in (nccl_line, gloo_line):
        assert line.status == "not checked" and words in line.said


def test_number_of_nodes_that_is_not_known_leaves_the_interface_not_checked() -> None:
    known = plan(LO, ETH0, nodes=1, GLOO_SOCKET_IFNAME="eth0")
    unsure = replace(known, command=replace(known.command, opaque="CMD could not be read: x.sh"))

    lines = [*check_nccl_interface(unsure), *check_gloo_interface(unsure)]

    assert [line.status for line in lines] == ["not checked", "not checked"]
    assert all("CMD could not be read: x.sh" in line.said for line in lines)


@pytest.mark.parametrize(
    ("container", "address"),
    [("docker", "172.17.0.2/16"), ("docker", "172.20.0.3/16"), ("podman", "10.88.0.5/16")],
)
def test_bridge_of_a_container_engine_does_not_reach_other_hosts(container: str, address: str) -> None:
    inside = replace(plan(LO, card("eth0", address), GLOO_SOCKET_IFNAME="eth0"), within=container)

    lines = [
        *check_nccl_interface(inside, lambda plan: "eth0"),
        *check_gloo_interface(inside, lambda plan: "eth0"),
    ]

    assert [line.status for line in lines] == ["problem", "problem"]
    assert all(
        f"{container}'s own bridge network" in line.said and "--network=host" in line.remedy for line in lines
    )


@pytest.mark.parametrize(
    ("container", "address", "nodes"),
    [
        ("docker", "172.17.0.2/16", 1),
        ("", "172.17.0.2/16", 2),
        ("kubernetes", "172.17.0.2/16", 2),
        ("docker", "10.0.0.1/24", 2),
    ],
)
def test_address_that_others_may_reach_is_no_bridge(container: str, address: str, nodes: int) -> None:
    inside = replace(plan(LO, card("eth0", address), nodes=nodes), within=container)

    assert [line.status for line in check_nccl_interface(inside, lambda plan: "eth0")] == ["ok"]


@pytest.mark.parametrize(
    ("mark", "engine"), [(".dockerenv", "docker"), ("run/.containerenv", "podman"), ("", "")]
)
def test_engine_of_a_container_is_known_by_its_mark(mark: str, engine: str, tmp_path: Path) -> None:
    if mark:
        (tmp_path / mark).parent.mkdir(exist_ok=True)
        (tmp_path / mark).touch()

    assert container_here({}, tmp_path) == engine
    assert container_here({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) == "kubernetes"
