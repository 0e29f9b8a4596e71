"""`diag doctor` on two machines that do or do not reach each other: two nodes of tests/netlab.py."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.netlab import Lab, Node, make_lab, why_not

PORT = 29517
ADDRESSES = ("10.77.0.1", "10.77.0.2")
CMD = (
    "torchrun",
    "--nnodes",
    "2",
    "--nproc_per_node",
    "1",
    "--master_addr",
    "node0",
    "--master_port",
    str(PORT),
)


def doctor(node: Node, *options: str, command: Sequence[str], **env: str) -> subprocess.Popen[str]:
    return node.start(
        sys.executable, "-m", "diag", "doctor", "--json", "--no-load", *options, "--", *command, env=env
    )


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := why_not("nft"):
        pytest.skip(reason)
    with make_lab(2) as lab:
        yield lab


@pytest.fixture
def nodes(lab: Lab) -> Iterator[tuple[Node, Node]]:
    """Both as they should be: the name of node 0 and each one's own name resolve, nothing is filtered, the
    link runs."""
    for node in lab.nodes:
        node.knows(f"{ADDRESSES[0]} node0", f"{node.address} {node.name}")
        node.raise_link()
    yield lab[0], lab[1]
    for node in lab.nodes:
        node.filter_nothing()


def report(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=60)
    assert process.returncode in (0, 10), err
    document: dict[str, Any] = json.loads(out)
    return document


def check(document: dict[str, Any], what: str) -> dict[str, str]:
    """The worst line of that name."""
    order = ("problem", "not checked", "note", "ok")
    lines = [line for line in document["checks"] if line["what"] == what]
    return min(lines, key=lambda line: order.index(line["status"]))


def finding(document: dict[str, Any], identity: str) -> dict[str, Any]:
    (found,) = [found for found in document["findings"] if found["id"] == identity]
    return dict(found)


def ranked(rank: int, command: Sequence[str] = CMD) -> list[str]:
    return [*command, "--node_rank", str(rank), "train.py"]


_OF_THE_MACHINE = (
    "fd-limit",
    "shm-too-small",
    "disk-full",
    "missing-module",
    "pids-limit",
    "leftover-process",
)


def network_findings(document: dict[str, Any]) -> list[str]:
    """Those of the machine under the test (its limits, its disk, its PATH) are not the subject here."""
    return [one["summary"] for one in document["findings"] if one["id"] not in _OF_THE_MACHINE]


def test_nodes_that_reach_each_other_say_so(nodes: tuple[Node, Node]) -> None:
    first = doctor(nodes[0], "--wait", "40", command=ranked(0))
    second = doctor(nodes[1], "--wait", "40", command=ranked(1))

    there, here = report(second), report(first)

    assert check(there, "rendezvous")["status"] == "ok" and "is reached" in check(there, "rendezvous")["said"]
    assert check(here, "other nodes")["status"] == "ok" and ADDRESSES[1] in check(here, "other nodes")["said"]
    assert [check(one, "other ports")["status"] for one in (there, here)] == ["ok", "ok"]
    assert "in both directions" in check(here, "other ports")["said"]
    assert network_findings(there) == [] and network_findings(here) == []


def test_without_wait_nobody_listens_and_nothing_is_called_broken(nodes: tuple[Node, Node]) -> None:
    here, there = report(doctor(nodes[0], command=ranked(0))), report(doctor(nodes[1], command=ranked(1)))

    assert (
        check(here, "rendezvous")["status"] == "ok" and check(here, "other nodes")["status"] == "not checked"
    )
    assert (
        check(there, "rendezvous")["status"] == "not checked"
        and "refused" in check(there, "rendezvous")["said"]
    )
    assert network_findings(here) == [] and network_findings(there) == []


def test_node_0_that_does_not_listen_refuses(nodes: tuple[Node, Node]) -> None:
    there = report(doctor(nodes[1], "--wait", "1", command=ranked(1)))

    found = finding(there, "rendezvous-failure")
    assert (
        "node0:29517 (10.77.0.1) refused the connection" in found["summary"]
        and found["severity"] == "critical"
    )


def test_firewall_that_drops_is_silence_on_one_side_and_absence_on_the_other(
    nodes: tuple[Node, Node],
) -> None:
    # given
    nodes[0].call(
        "nft",
        "add table inet t; add chain inet t in { type filter hook input priority 0; }; "
        f"add rule inet t in tcp dport {PORT} drop",
    )

    # when
    first = doctor(nodes[0], "--wait", "6", command=ranked(0))
    there, here = report(doctor(nodes[1], "--wait", "3", command=ranked(1))), report(first)

    # then
    assert "did not answer at all" in finding(there, "rendezvous-failure")["summary"]
    assert "NetworkPolicy" in finding(there, "rendezvous-failure")["advice"]
    assert "1 of 1 did not connect within 6 s" in finding(here, "rendezvous-failure")["summary"]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [("reject with icmp type host-prohibited", "a firewall blocks it"), ("reject", "a firewall rejects it"),
     ("reject with tcp reset", "a firewall rejects it")],
)  # fmt: skip
def test_firewall_that_rejects_is_named_as_a_possibility(
    nodes: tuple[Node, Node], verdict: str, words: str
) -> None:
    nodes[0].call(
        "nft",
        "add table ip t; add chain ip t in { type filter hook input priority 0; }; "
        f"add rule ip t in tcp dport {PORT} {verdict}",
    )

    there = report(doctor(nodes[1], "--wait", "1", command=ranked(1)))

    assert words in finding(there, "rendezvous-failure")["summary"]


def test_address_translation_through_which_other_ports_are_reached_too_is_a_note(
    nodes: tuple[Node, Node],
) -> None:
    # given: node 1's connections to the rendezvous alone come with another address
    nodes[1].call("ip", "address", "replace", "10.77.0.22/24", "dev", "eth0")
    nodes[1].call(
        "nft",
        "add table ip t; add chain ip t out { type nat hook postrouting priority 100; }; "
        f"add rule ip t out tcp dport {PORT} snat to 10.77.0.22",
    )

    # when
    first = doctor(nodes[0], "--wait", "40", command=ranked(0))
    there, here = report(doctor(nodes[1], "--wait", "40", command=ranked(1))), report(first)
    nodes[1].call("ip", "address", "delete", "10.77.0.22/24", "dev", "eth0")

    # then
    seen = check(here, "other ports")
    assert seen["status"] == "note" and "seen as 10.77.0.22 and has 10.77.0.2 itself" in seen["said"]
    assert check(there, "other ports")["status"] == "ok"
    assert network_findings(there) == [] == network_findings(here)


def test_ports_that_only_one_of_two_nodes_gets_through_to_are_a_problem_on_both(
    nodes: tuple[Node, Node],
) -> None:
    # given: node 0 lets in the rendezvous port alone
    nodes[0].call(
        "nft",
        "add table ip t; add chain ip t in { type filter hook input priority 0; policy accept; }; "
        f"add rule ip t in ct state established accept; add rule ip t in tcp dport != {PORT} drop",
    )

    # when
    first = doctor(nodes[0], "--wait", "40", command=ranked(0))
    there, here = report(doctor(nodes[1], "--wait", "40", command=ranked(1))), report(first)

    # then
    found, mirrored = (finding(one, "rendezvous-failure") for one in (there, here))
    assert "in one of the two directions: from here to there, NCCL and gloo 10.77.0.1:" in found["summary"]
    assert "did not answer" in found["summary"] and "allow all TCP between the nodes" in found["advice"]
    assert "from there to here, NCCL and gloo 10.77.0.1:" in mirrored["summary"]
    assert check(there, "rendezvous")["status"] == "ok" == check(here, "rendezvous")["status"]


def test_address_without_a_route(nodes: tuple[Node, Node]) -> None:
    command = ("torchrun", "--nnodes=2", "--master_addr=10.99.0.1", "--node_rank=1", "train.py")

    found = finding(report(doctor(nodes[1], command=command)), "rendezvous-failure")

    assert "10.99.0.1:29500: Network is unreachable" in found["summary"]


def test_name_that_does_not_resolve(nodes: tuple[Node, Node]) -> None:
    nodes[1].knows(f"{ADDRESSES[1]} {nodes[1].name}")

    plain = finding(report(doctor(nodes[1], command=ranked(1))), "hostname-resolution")
    pod = finding(
        report(doctor(nodes[1], command=ranked(1), KUBERNETES_SERVICE_HOST="10.96.0.1")),
        "hostname-resolution",
    )

    assert "node0 (--master_addr) does not resolve here" in plain["summary"]
    assert "headless Service" in pod["advice"] and "headless Service" not in plain["advice"]


def test_name_that_etc_hosts_turns_into_this_machine(nodes: tuple[Node, Node]) -> None:
    nodes[1].knows("127.0.1.1 node0 node0.cluster", f"{ADDRESSES[1]} {nodes[1].name}")

    found = finding(report(doctor(nodes[1], command=ranked(1))), "hostname-resolution")

    assert "node0 resolves to 127.0.1.1 here" in found["summary"]
    assert "`127.0.1.1 node0 node0.cluster` in /etc/hosts" in found["summary"]


def test_name_of_this_machine_that_is_loopback_breaks_gloo(nodes: tuple[Node, Node]) -> None:
    nodes[1].knows(f"{ADDRESSES[0]} node0", f"127.0.1.1 {nodes[1].name}")

    env = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": str(PORT)}
    megatron = ["megatron", "rlhf", "--rlhf_type", "dpo"]

    found = finding(report(doctor(nodes[1], command=megatron, **env)), "hostname-resolution")
    perhaps = finding(report(doctor(nodes[1], command=ranked(1))), "hostname-resolution")
    told = report(doctor(nodes[1], command=megatron, GLOO_SOCKET_IFNAME="eth0", **env))

    assert "gloo" in found["summary"] and "GLOO_SOCKET_IFNAME=eth0" in found["advice"]
    # not every script has groups of gloo
    assert (found["severity"], perhaps["severity"]) == ("warning", "info")
    assert network_findings(told) == []


@pytest.mark.parametrize("env", [{"NCCL_SOCKET_IFNAME": "lo"}, {"NCCL_SOCKET_IFNAME": "=lo"}])
def test_loopback_between_nodes_by_a_variable(nodes: tuple[Node, Node], env: dict[str, str]) -> None:
    found = finding(report(doctor(nodes[0], command=ranked(0), **env)), "nccl-no-interface")

    assert (
        f"NCCL will use lo 127.0.0.1/8 (NCCL_SOCKET_IFNAME={env['NCCL_SOCKET_IFNAME']})" in found["summary"]
    )
    assert found["advice"] == "unset NCCL_SOCKET_IFNAME"


def test_loopback_where_there_is_nothing_else(nodes: tuple[Node, Node]) -> None:
    nodes[1].call("ip", "link", "set", "eth0", "down")

    found = finding(
        report(doctor(nodes[1], command=ranked(1), GLOO_SOCKET_IFNAME="lo,")), "rendezvous-failure"
    )
    lines = report(doctor(nodes[1], command=ranked(1)))

    assert "Network is unreachable" in found["summary"]
    assert "NCCL will use lo 127.0.0.1/8 (there is no other)" in check(lines, "NCCL interface")["said"]


def test_variable_that_matches_no_interface(nodes: tuple[Node, Node]) -> None:
    found = finding(
        report(doctor(nodes[0], command=ranked(0), NCCL_SOCKET_IFNAME="ens")), "nccl-no-interface"
    )

    assert (
        "NCCL_SOCKET_IFNAME=ens matches no interface" in found["summary"]
        and "eth0 10.77.0.1/24" in found["summary"]
    )


def test_bridge_of_docker_is_taken_when_it_is_alone(nodes: tuple[Node, Node]) -> None:
    nodes[0].call("ip", "link", "set", "eth0", "down")
    nodes[0].call("ip", "link", "set", "eth0", "name", "docker0")
    nodes[0].raise_link("docker0")
    try:
        found = finding(report(doctor(nodes[0], command=ranked(0))), "nccl-no-interface")
    finally:
        nodes[0].call("ip", "link", "set", "docker0", "down")
        nodes[0].call("ip", "link", "set", "docker0", "name", "eth0")

    assert (
        "NCCL will use docker0" in found["summary"] and "a bridge local to this machine" in found["summary"]
    )


LISTEN = (
    "import os,socket,sys; s=socket.create_server(('', {port})); print(os.getpid(), flush=True); sys.stdin.read()",
    "import datetime,sys,torch.distributed as d; s=d.TCPStore('0.0.0.0', {port}, None, True, datetime.timedelta(seconds=20)); "
    "print('up', flush=True); sys.stdin.readline(); s.set('a', 'b'); print(s.get('a').decode(), flush=True)",
)


def test_port_that_another_process_holds(nodes: tuple[Node, Node]) -> None:
    with nodes[0].start(sys.executable, "-c", LISTEN[0].format(port=PORT)) as holder:
        try:
            assert holder.stdout is not None
            pid = int(holder.stdout.readline())
            here = report(doctor(nodes[0], "--wait", "5", command=ranked(0)))
            there = report(doctor(nodes[1], "--wait", "5", command=ranked(1)))
        finally:
            nodes[0].kill_all()

    found = finding(here, "port-in-use")
    assert f"pid {pid} listens there" in found["summary"] and "socket.create_server" in found["summary"]
    assert "not `diag doctor` on node 0 (it sent nothing)" in finding(there, "port-in-use")["summary"]


@pytest.mark.live
def test_rendezvous_of_a_running_job_is_not_disturbed(nodes: tuple[Node, Node]) -> None:
    pytest.importorskip("torch")
    with nodes[0].start(sys.executable, "-c", LISTEN[1].format(port=PORT)) as store:
        try:
            assert store.stdout is not None and store.stdin is not None and store.stdout.readline() == "up\n"
            there = report(doctor(nodes[1], "--wait", "5", command=ranked(1)))
            store.stdin.write("\n")
            store.stdin.flush()
            answer = store.stdout.readline()
        finally:
            nodes[0].kill_all()

    assert "or the job already runs" in finding(there, "port-in-use")["summary"]
    assert answer == "b\n"


def test_nodes_that_disagree_about_their_number(nodes: tuple[Node, Node]) -> None:
    three = ["3" if word == "2" else word for word in CMD]

    first = doctor(nodes[0], "--wait", "40", command=ranked(0))
    there, here = report(doctor(nodes[1], "--wait", "40", command=ranked(1, three))), report(first)

    assert "has 3 nodes on its command line, this one 2" in finding(here, "launch-mismatch")["summary"]
    assert "has 2 nodes on its command line, this one 3" in finding(there, "launch-mismatch")["summary"]


C10D = (
    "torchrun",
    "--nnodes",
    "2",
    "--rdzv_backend",
    "c10d",
    "--rdzv_endpoint",
    f"{ADDRESSES[0]}:{PORT}",
    "train.py",
)


def named_doctor(host: Node, name: str, *command: str) -> subprocess.Popen[str]:
    """With a host name of its own."""
    script = f'hostname {name} && exec "$0" -m diag doctor --json --no-load --wait 40 -- "$@"'
    return host.start("unshare", "--uts", "sh", "-c", script, sys.executable, *command)


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is needed")
def test_names_that_torchruns_c10d_rendezvous_will_hand_out(nodes: tuple[Node, Node]) -> None:
    """The endpoint is an address and is reached; the ranks are then given the name of whichever node is the
    first."""
    nodes[0].knows(f"{ADDRESSES[0]} alpha", f"{ADDRESSES[1]} beta")
    nodes[1].knows(f"{ADDRESSES[1]} beta")

    first = named_doctor(nodes[0], "alpha", *C10D)
    there, here = report(named_doctor(nodes[1], "beta", *C10D)), report(first)

    assert (
        "10.77.0.1 calls itself alpha, which does not resolve here"
        in finding(there, "hostname-resolution")["summary"]
    )
    assert "--local_addr" in finding(there, "hostname-resolution")["advice"]
    assert check(here, "other nodes")["status"] == "ok" and network_findings(here) == []

    # and with --local_addr all is well
    first = named_doctor(nodes[0], "alpha", *C10D[:-1], "--local_addr", ADDRESSES[0], "train.py")
    there, here = report(named_doctor(nodes[1], "beta", *C10D)), report(first)

    assert network_findings(there) == [] and network_findings(here) == []


def test_address_of_another_machine_on_node_0(nodes: tuple[Node, Node]) -> None:
    """Every node started with the same words, and none with a rank."""
    found = finding(report(doctor(nodes[1], command=[*CMD, "train.py"])), "rendezvous-failure")

    assert (
        "no node rank is given, and 0 is the default" in found["summary"] and "(10.77.0.2" in found["summary"]
    )
