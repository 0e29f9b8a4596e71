from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import Interface, InterfacesSeen, Unparsed
from diag.sources.host.job_files import Files
from diag.sources.network.interfaces import InterfacesReader, _addresses, parse
from diag.text.errors import SourceUnavailable

HEAD = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
"""
REST = "   0    0    0     0       0          0"


def line(name: str, received: int, sent: int) -> str:
    return f"{name:>6}: {received} 157395    0    0    0     0          0         0  {sent}  107108 {REST}\n"


def read(payload: Any) -> dict[str, Interface]:
    (found,) = parse(Record("interfaces", payload, at=5.0, emitted=4.5))
    assert isinstance(found, InterfacesSeen)
    assert found.emitted == 4.5
    return {one.name: one for one in found.interfaces}


def facts(**changed: Any) -> dict[str, Any]:
    return {"operstate": "up", "type": "1", "flags": "0x1003", "speed": None, "device": False, "bridge": False, "lower": False,
            "port": None, **changed}  # fmt: skip


def test_this_machine_is_read_as_psutil_sees_it() -> None:
    before = psutil.net_io_counters(pernic=True)
    told = read(InterfacesReader().sample())
    after = psutil.net_io_counters(pernic=True)

    assert set(told) == set(before)
    for name, one in told.items():
        assert before[name].bytes_recv <= one.received_bytes <= after[name].bytes_recv
        assert before[name].bytes_sent <= one.sent_bytes <= after[name].bytes_sent
        assert not one.up or psutil.net_if_stats()[name].isup
    assert told["lo"].kind == "loopback" and told["lo"].up and not told["lo"].carries
    assert "127.0.0.1" in told["lo"].addresses


def test_ranks_interfaces_are_ours_in_the_same_namespace() -> None:
    told, ours = read(InterfacesReader().sample(os.getpid())), read(InterfacesReader().sample())

    assert {name: (one.addresses, one.kind) for name, one in told.items()} == {
        name: (one.addresses, one.kind) for name, one in ours.items()
    }


@pytest.fixture
def elsewhere() -> Iterator[subprocess.Popen[str]]:
    """A process with a network namespace of its own."""
    code = (
        "import ctypes, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.unshare(0x40000000):\n    sys.exit('CLONE_NEWNET')\nprint('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        child.wait()
        pytest.skip("no right to make a network namespace here")
    yield child
    child.kill()
    child.wait()


def test_rank_in_a_namespace_of_its_own_is_not_given_our_addresses(elsewhere: subprocess.Popen[str]) -> None:
    told = read(InterfacesReader().sample(elsewhere.pid))

    assert "eth0" not in told and told["lo"].addresses == ()
    assert told["lo"].received_bytes == 0


@pytest.fixture
def pod() -> Iterator[int]:
    """A process in a network namespace with a /sys of its own, whose eth0 is a veth with an address and the
    way out."""
    words = ["unshare", "--net", "--mount", "sh", "-c", "mount -t sysfs sysfs /sys && echo ready && exec cat"]
    child = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert child.stdout is not None
    ready = child.stdout.readline() == "ready\n"
    inside = f"nsenter -t {child.pid} -n ip"
    for command in (
        f"ip link add dv{child.pid} type veth peer name eth0 netns {child.pid}", f"ip link set dv{child.pid} up",
        f"{inside} addr add 10.199.7.2/24 dev eth0", f"{inside} link set eth0 up", f"{inside} link set lo up",
        f"{inside} route add default via 10.199.7.1",
    ):  # fmt: skip
        ready = ready and subprocess.run(command.split(), check=False, capture_output=True).returncode == 0
    if ready:
        yield child.pid
    child.kill()  # and the namespace with both ends of the veth
    child.wait()
    if not ready:
        pytest.skip("no right to make a network namespace here, or no ip(8) and nsenter(1)")


def test_interfaces_of_a_pod_are_its_own_with_address_and_bytes(pod: int) -> None:
    told = read(InterfacesReader().sample(pod))

    assert set(told) == {"lo", "eth0"}
    assert "10.199.7.2" in told["eth0"].addresses
    assert (told["eth0"].kind, told["eth0"].up, told["eth0"].carries) == ("ethernet", True, True)
    assert told["eth0"].speed_bytes_per_second == 1.25e9  # what a veth says: 10 Gb/s


def test_ends_of_pods_do_not_carry_what_the_hardware_of_the_node_carries(pod: int) -> None:
    told = read(InterfacesReader().sample())

    assert told[f"dv{pod}"].carries is not any(
        one.carries for name, one in told.items() if not name.startswith("dv")
    )


def test_addresses_of_another_namespace_are_those_that_its_tables_name() -> None:
    # given our own tables, read as another namespace's are
    names = list(psutil.net_if_addrs())

    found = _addresses("/proc/self/net", names)

    for name, entries in psutil.net_if_addrs().items():
        expected = {
            entry.address.partition("%")[0]
            for entry in entries
            if entry.family in (socket.AF_INET, socket.AF_INET6)
        }
        assert set(found[name]) <= expected  # one that no route leads to stays away
        if name == "lo" or any(entry.family == socket.AF_INET for entry in entries):
            assert found[name], name


def test_process_that_is_gone_says_so() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    with pytest.raises(SourceUnavailable):
        InterfacesReader().sample(child.pid)


def test_speed_of_a_link_is_in_bytes_and_none_where_the_driver_does_not_know() -> None:
    net = {"eth0": facts(device=True, speed="100000"), "eth1": facts(device=True, speed="-1"),
           "eth2": facts(device=True, operstate="down")}  # fmt: skip

    told = read({"dev": HEAD + "".join(line(name, 1, 2) for name in net), "net": net})

    assert [told[name].speed_bytes_per_second for name in net] == [12.5e9, None, None]
    assert [told[name].up for name in net] == [True, True, False]


def test_bytes_on_hardware_are_not_counted_again_on_what_lies_over_it() -> None:
    # given a Kubernetes node: two ports in a bond, a VLAN on it, docker's bridge and a pod's end
    net = {
        "lo": facts(type="772", operstate="unknown", flags="0x9"),
        "eth0": facts(device=True),
        "eth1": facts(device=True),
        "bond0": facts(lower=True),
        "bond0.7": facts(lower=True),
        "docker0": facts(bridge=True),
        "veth1a2b": facts(),
        "ib0": facts(type="32", device=True),
        "pf0vf3": facts(device=True, port="pf0vf3"),
    }

    told = read({"dev": HEAD + "".join(line(name, 1, 2) for name in net), "net": net})

    assert {name for name, one in told.items() if one.carries} == {"eth0", "eth1", "ib0"}
    assert told["ib0"].kind == "infiniband"


def test_pod_that_sees_no_hardware_counts_its_own_end() -> None:
    net = {"lo": facts(type="772"), "eth0": facts(operstate="up", speed="10000")}

    told = read(
        {
            "dev": HEAD + line("lo", 1, 1) + line("eth0", 7, 8),
            "net": net,
            "addresses": {"eth0": ["10.244.1.7"]},
        }
    )

    assert told["eth0"] == Interface("eth0", True, "ethernet", ("10.244.1.7",), 7, 8, 1.25e9, carries=True)
    assert not told["lo"].carries


def test_pod_with_a_port_of_its_own_beside_its_end_counts_both() -> None:
    # given Multus: eth0 is the cluster's veth, net1 an SR-IOV function for RDMA; NCCL's sockets would take
    # eth0
    net = {"lo": facts(type="772"), "eth0": facts(), "net1": facts(device=True)}
    dev = HEAD + "".join(line(name, 1, 2) for name in net)

    told = read({"dev": dev, "net": net, "default": ["eth0"]})

    assert {name for name, one in told.items() if one.carries} == {"eth0", "net1"}


@pytest.mark.parametrize("way", ["eth0", "bond0", "br0"])
def test_node_whose_way_out_lies_on_hardware_counts_the_hardware(way: str) -> None:
    net = {
        "eth0": facts(device=True),
        "bond0": facts(lower=True),
        "br0": facts(bridge=True),
        "veth1a2b": facts(),
    }
    dev = HEAD + "".join(line(name, 1, 2) for name in net)

    told = read({"dev": dev, "net": net, "default": [way, "gone0"]})

    assert {name for name, one in told.items() if one.carries} == {"eth0"}


def test_way_out_of_this_machine_is_that_of_its_routing_table() -> None:
    done = subprocess.run(
        ["ip", "-o", "route", "show", "default"], check=False, capture_output=True, text=True
    )
    if done.returncode or not done.stdout:
        pytest.skip("no ip(8) or no default route here")

    assert done.stdout.split(" dev ")[1].split()[0] in InterfacesReader().sample()["default"]


def test_namespace_whose_sys_is_closed_gives_bytes_and_addresses_all_the_same() -> None:
    payload = {
        "dev": HEAD + line("lo", 1, 1) + line("eth0", 7, 8),
        "net": {},
        "addresses": {"eth0": ["10.0.0.9"]},
    }

    told = read(payload)

    assert (told["eth0"].up, told["eth0"].kind, told["eth0"].sent_bytes, told["eth0"].carries) == (
        True,
        "other",
        8,
        True,
    )
    assert told["lo"].kind == "loopback"


def test_counters_without_a_space_behind_the_colon_are_read() -> None:
    told = read({"dev": HEAD + line("eth0", 7502053086, 8184880).replace(": ", ":")})

    assert (told["eth0"].received_bytes, told["eth0"].sent_bytes) == (7502053086, 8184880)


def test_link_that_changes_is_described_anew(tmp_path: Path) -> None:
    base = tmp_path / "eth9"
    base.mkdir()
    for name, text in (("operstate", "down"), ("type", "1"), ("flags", "0x1003"), ("speed", "100000")):
        (base / name).write_text(text + "\n")
    reader = InterfacesReader(net=tmp_path)
    assert reader._describe(Files(), ["eth9"])["eth9"]["speed"] is None

    (base / "operstate").write_text("up\n")

    assert reader._describe(Files(), ["eth9"])["eth9"]["speed"] == "100000"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
ENTRY = st.dictionaries(st.sampled_from(list(facts())), JSON)


@settings(deadline=None, max_examples=100)
@given(JSON | st.fixed_dictionaries({"dev": JSON | st.just(HEAD + line("eth0", 1, 2))}, optional={
    "net": JSON | st.dictionaries(st.just("eth0"), ENTRY | JSON), "default": JSON | st.lists(st.just("eth0") | JSON),
    "addresses": JSON | st.dictionaries(st.just("eth0"), JSON),
}))  # fmt: skip
def test_parse_raises_for_nothing(payload: Any) -> None:
    (found,) = parse(Record("interfaces", payload))

    assert isinstance(found, (InterfacesSeen, Unparsed))
