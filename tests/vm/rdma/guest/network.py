"""The machine's network: two interfaces joined by a cable (a veth pair), with an RDMA device of soft-RoCE on
each.

Packets between their addresses would take the short way through the kernel: rules send them over the cable,
so that the interfaces count what RDMA sends.
"""

from __future__ import annotations

from pathlib import Path

from tests.vm.guest.shell import sh, until

DEVICES = ("rxe0", "rxe1")
INTERFACES = ("d0", "d1")
ADDRESSES = ("192.0.2.1", "192.0.2.2")
SYS = Path("/sys/class/infiniband")


def make() -> None:
    """Raises RuntimeError or TimeoutError."""
    sh("""
    ip link add d0 address 02:00:00:00:00:01 type veth peer name d1 address 02:00:00:00:00:02
    for name in d0 d1; do
      ip link set $name up
      echo 0 >/proc/sys/net/ipv4/conf/$name/rp_filter
      echo 1 >/proc/sys/net/ipv4/conf/$name/accept_local
      ip rule add pref 10 iif $name lookup local
    done
    ip addr add 192.0.2.1/24 dev d0
    ip addr add 192.0.2.2/24 dev d1
    ip rule add pref 20 from 192.0.2.1 to 192.0.2.2 lookup 101
    ip rule add pref 20 from 192.0.2.2 to 192.0.2.1 lookup 102
    ip rule add pref 30 lookup local
    ip rule del pref 0
    modprobe crc32_generic
    modprobe rdma_rxe
    modprobe overlay
    """)
    lay_cable()
    for number in (0, 1):
        add_device(number)


def add_device(number: int) -> None:
    sh(f"rdma link add {DEVICES[number]} type rxe netdev {INTERFACES[number]}")
    node = Path("/dev/infiniband", f"uverbs{number}")
    until(node.exists, 10, str(node))
    node.chmod(0o666)  # as the udev rules of rdma-core do
    wait_for_port(DEVICES[number], "4: ACTIVE")


def remove_device(number: int) -> None:
    """Nobody may have it open: it would wait for them."""
    sh(f"rdma link delete {DEVICES[number]}")


def lay_cable() -> None:
    """What an interface loses when it goes down: the ways over the cable, and the other end's hardware
    address."""
    sh("""
    ip route replace 192.0.2.2 dev d0 table 101
    ip route replace 192.0.2.1 dev d1 table 102
    ip neigh replace 192.0.2.2 lladdr 02:00:00:00:00:02 dev d0
    ip neigh replace 192.0.2.1 lladdr 02:00:00:00:00:01 dev d1
    """)


def set_link(number: int, up: bool) -> None:
    sh(f"ip link set {INTERFACES[number]} {'up' if up else 'down'}")
    wait_for_port(DEVICES[number], "4: ACTIVE" if up else "1: DOWN")
    if up:
        lay_cable()


def wait_for_port(device: str, state: str) -> None:
    file = SYS / device / "ports/1/state"
    until(lambda: file.read_text().strip() == state, 10, f"{device} {state}")
