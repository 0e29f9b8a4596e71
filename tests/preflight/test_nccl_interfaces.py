"""NCCL's choice of interfaces, as a table: what there is, what is set, what NCCL takes.

The rule was read in NCCL 2.32's sources (src/misc/socket.cc, src/os/linux.cc) and its release notes of
2.28.3.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.knowledge.nccl_filters import matches
from diag.preflight.nccl_interfaces import Address, NetworkInterface, choose


def card(name: str, *addresses: str, up: bool = True, running: bool = True) -> NetworkInterface:
    places = [place.split("/") for place in addresses]
    return NetworkInterface(name, up, running, tuple(Address(ip, int(prefix)) for ip, prefix in places))


LO = card("lo", "127.0.0.1/8", "::1/128")
ETH0 = card("eth0", "10.0.0.1/24", "fe80::1/64")
ETH1 = card("eth1", "10.1.0.1/24")
IB0 = card("ib0", "10.2.0.1/16")
BOND0 = card("bond0", "10.3.0.1/24")
DOCKER0 = card("docker0", "172.17.0.1/16")
VIRBR0 = card("virbr0", "192.168.122.1/24")
UNPLUGGED = card("eno1", "10.4.0.1/24", running=False)
V6ONLY = card("eth6", "fd00::1/64")


@pytest.mark.parametrize(
    ("cards", "env", "names", "how"),
    [
        # nothing is set: ib*, then all but docker*, lo and virbr*, then these one after the other
        ([LO, ETH0, ETH1], {}, ["eth0", "eth1"], "others"),
        ([LO, ETH0, IB0, DOCKER0], {}, ["ib0"], "ib"),
        ([LO, DOCKER0, ETH0, VIRBR0], {}, ["eth0"], "others"),
        ([LO, DOCKER0, VIRBR0], {}, ["docker0"], "docker"),
        ([LO, VIRBR0], {}, ["lo"], "lo"),
        ([LO], {}, ["lo"], "lo"),
        ([card("lo", "::1/128")], {}, [], ""),  # the loopback of IPv6 is passed over
        ([LO, card("eth0")], {}, ["lo"], "lo"),  # without an address
        ([LO, UNPLUGGED, ETH0], {}, ["eth0"], "others"),
        ([LO, V6ONLY, ETH0], {}, ["eth0", "eth6"], "others"),  # all IPv4 addresses come first
        # NCCL_SOCKET_IFNAME: prefixes, `=` whole names, `^` all but those; found or nothing
        ([LO, ETH0, ETH1, BOND0], {"NCCL_SOCKET_IFNAME": "eth"}, ["eth0", "eth1"], "NCCL_SOCKET_IFNAME"),
        ([LO, ETH0, ETH1], {"NCCL_SOCKET_IFNAME": "=eth1"}, ["eth1"], "NCCL_SOCKET_IFNAME"),
        ([LO, ETH0, ETH1], {"NCCL_SOCKET_IFNAME": "=eth"}, [], "NCCL_SOCKET_IFNAME"),
        ([LO, ETH0, BOND0], {"NCCL_SOCKET_IFNAME": "bond,eth"}, ["eth0", "bond0"], "NCCL_SOCKET_IFNAME"),
        (
            [LO, ETH0, DOCKER0],
            {"NCCL_SOCKET_IFNAME": "^docker"},
            ["lo", "eth0"],
            "NCCL_SOCKET_IFNAME",
        ),  # copied advice: takes lo
        ([LO, ETH0, DOCKER0], {"NCCL_SOCKET_IFNAME": "^docker,lo"}, ["eth0"], "NCCL_SOCKET_IFNAME"),
        ([LO, ETH0], {"NCCL_SOCKET_IFNAME": "^=eth0"}, ["lo"], "NCCL_SOCKET_IFNAME"),
        ([LO, ETH0], {"NCCL_SOCKET_IFNAME": "ens"}, [], "NCCL_SOCKET_IFNAME"),
        ([LO, ETH0], {"NCCL_SOCKET_IFNAME": "lo"}, ["lo"], "NCCL_SOCKET_IFNAME"),
        ([LO, ETH0, IB0], {"NCCL_SOCKET_IFNAME": "e"}, ["ib0"], "ib"),  # one character: not taken notice of
        # NCCL_SOCKET_FAMILY
        ([LO, ETH0, V6ONLY], {"NCCL_SOCKET_FAMILY": "AF_INET6"}, ["eth0", "eth6"], "others"),
        ([LO, ETH1, V6ONLY], {"NCCL_SOCKET_FAMILY": "AF_INET6"}, ["eth6"], "others"),
        ([LO, ETH1, V6ONLY], {"NCCL_SOCKET_FAMILY": "AF_INET"}, ["eth1"], "others"),
        ([LO, ETH1, V6ONLY], {"NCCL_SOCKET_FAMILY": "ipv6"}, ["eth1", "eth6"], "others"),
    ],
)
def test_choice(cards: list[NetworkInterface], env: dict[str, str], names: list[str], how: str) -> None:
    choice = choose(cards, env)

    assert (list(choice.names), choice.how) == (names, how)


def test_subnet_of_nccl_comm_id_goes_before_the_others_but_not_before_ib() -> None:
    assert choose([LO, ETH0, ETH1], {}, comm_id_ip="10.1.0.9").names == ("eth1",)
    assert choose([LO, ETH0, ETH1], {}, comm_id_ip="10.9.0.9").names == ("eth0", "eth1")
    assert choose([LO, IB0, ETH1], {}, comm_id_ip="10.1.0.9").names == ("ib0",)


def test_nccl_before_2_28_takes_bridges_of_libvirt_and_cards_without_carrier() -> None:
    assert choose([LO, VIRBR0, ETH0], {}, (2, 27, 5)).names == ("virbr0", "eth0")
    assert choose([LO, UNPLUGGED, ETH0], {}, (2, 27, 5)).names == ("eno1", "eth0")
    assert choose([LO, card("eno1", "10.4.0.1/24", up=False, running=False), ETH0], {}, (2, 27, 5)).names == (
        "eno1",
        "eth0",
    )
    assert choose([LO, UNPLUGGED, VIRBR0, ETH0], {}, (2, 28, 3)).names == ("eth0",)


def test_nccl_takes_sixteen_at_most() -> None:
    assert len(choose([card(f"eth{number}", f"10.0.{number}.1/24") for number in range(20)], {}).names) == 16


@given(st.text(), st.text(alphabet="^=,:eth01 "), st.one_of(st.none(), st.integers(0, 9)))
def test_any_filter_is_taken(name: str, spec: str, port: int | None) -> None:
    assert matches(name, spec, port) in (True, False)
