"""Two hosts, a container in docker's default bridge on each, and a forward of the rendezvous port alone."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.netlab import Lab, Namespace, Node, make_lab, why_not

PORT = 29517
LAN = ("10.77.0.1", "10.77.0.2")
CMD = ("torchrun", "--nnodes=2", "--nproc_per_node=1", f"--master_addr={LAN[0]}", f"--master_port={PORT}")


class Inside:
    """A container in docker's default bridge of a node: the network alone, with host name and files of its own."""

    def __init__(self, node: Node) -> None:
        self.node, self.space = node, Namespace("container")
        pid = str(self.space.init.pid)
        for words in (
            ("ip", "link", "add", "docker0", "type", "bridge", "forward_delay", "0"),
            ("ip", "address", "add", "172.17.0.1/16", "dev", "docker0"),
            ("ip", "link", "set", "docker0", "up"),
            ("ip", "link", "add", "veth0", "type", "veth", "peer", "name", "eth0", "netns", pid),
            ("ip", "link", "set", "veth0", "master", "docker0", "up"),
            ("sysctl", "-qw", "net.ipv4.ip_forward=1"),
            ("nft", "add table ip docker; add chain ip docker out { type nat hook postrouting priority 100; }; "
                    'add rule ip docker out ip saddr 172.17.0.0/16 oifname != "docker0" masquerade'),
        ):  # fmt: skip
            node.network(*words)
        for words in (
            ("ip", "link", "set", "lo", "up"),
            ("ip", "address", "add", "172.17.0.2/16", "dev", "eth0"),
            ("ip", "link", "set", "eth0", "up"),
            ("ip", "route", "add", "default", "via", "172.17.0.1"),
        ):
            self.space.network(*words)
        self.space.call("hostname", f"c{node.rank}")

    def publish(self, port: int) -> None:
        """docker's -p."""
        self.node.network(
            "nft",
            "add chain ip docker in { type nat hook prerouting priority -100; }; "
            f"add rule ip docker in iifname eth0 tcp dport {port} dnat to 172.17.0.2",
        )

    def doctor(self, *options: str) -> subprocess.Popen[str]:
        words = (
            "-m",
            "diag",
            "doctor",
            "--json",
            "--no-load",
            *options,
            "--",
            *CMD,
            f"--node_rank={self.node.rank}",
            "t.py",
        )
        return subprocess.Popen(
            self.space.words(sys.executable, *words),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.node.environment(),
        )  # fmt: skip


@pytest.fixture(scope="module")
def containers() -> Iterator[tuple[Inside, Inside]]:
    if reason := why_not("nft", "sysctl"):
        pytest.skip(reason)
    with make_lab(2) as lab, contextlib.ExitStack() as stack:
        made = tuple(_inside(lab, rank, stack) for rank in (0, 1))
        made[0].publish(PORT)
        yield made[0], made[1]


def _inside(lab: Lab, rank: int, stack: contextlib.ExitStack) -> Inside:
    made = Inside(lab[rank])
    stack.callback(made.space.close)
    return made


def report(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=90)
    assert process.returncode in (0, 10), err
    found: dict[str, Any] = json.loads(out)
    return found


def test_two_containers_behind_one_published_port_are_told_on_both_sides(
    containers: tuple[Inside, Inside],
) -> None:
    waiting = [one.doctor("--wait", "40") for one in containers]

    first, second = (report(process) for process in waiting)

    for document, who in ((first, "node 1"), (second, "node 0")):
        (line,) = [line for line in document["checks"] if line["what"] == "other ports"]
        assert line["status"] == "problem" and who in line["said"]
        assert "172.17.0.2" in line["said"] and "address translation" in line["said"]
        assert f"docker run --network=host -e MASTER_ADDR={LAN[0]} -e MASTER_PORT={PORT}" in line["remedy"]
        assert not [
            line for line in document["checks"] if line["what"] == "other ports" and line["status"] == "ok"
        ]
