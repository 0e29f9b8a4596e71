"""Which interfaces NCCL and gloo will take, and whether the other nodes can be behind them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence

from diag.preflight.line import Line
from diag.preflight.nccl_interfaces import Choice, choose
from diag.preflight.plan import Plan, route_to
from diag.preflight.reach import resolve

__all__ = ["check_gloo_interface", "check_nccl_interface"]

_RESOLVE_SECONDS = 3.0
# Bridges and tunnels of containers and virtual machines: each host has its own, with nobody else's nodes behind it.
_LOCAL_ONLY = ("docker", "br-", "virbr", "podman", "cni", "lxcbr", "lxdbr", "veth", "cali", "lxc")
_OVERLAYS = ("flannel", "cilium", "weave", "vxlan", "kube-")  # between hosts, but slow, and not for this


def check_nccl_interface(plan: Plan) -> Iterator[Line]:
    comm_id = plan.environment.get("NCCL_COMM_ID", "")
    host = comm_id.partition("]")[0][1:] if comm_id.startswith("[") else comm_id.rpartition(":")[0]
    comm_id_ip = ""
    if host and not plan.environment.get("NCCL_SOCKET_IFNAME"):
        comm_id_ip = next(iter(resolve(host, 0, _RESOLVE_SECONDS)[0]), "").partition("%")[0]
    choice = choose(plan.interfaces, plan.environment, plan.nccl_version, comm_id_ip)
    here = ", ".join(_described(plan)) or "none"
    if not choice.interfaces:
        if choice.how:
            said = f"{plan.said_of('NCCL_SOCKET_IFNAME')} matches no interface that is up and has an address (there are: {here})"
            remedy = "correct it, or unset it; it is a list of prefixes, `=eth0` is a whole name, `^docker` is all but those"
        else:
            said, remedy = f"no interface that is up has an address (there are: {here})", "`ip link set dev lo up`, and a network"
        yield Line("NCCL interface", "problem", said, remedy, "nccl-no-interface", "critical")
        return
    name, address = choice.interfaces[0]
    why = plan.said_of("NCCL_SOCKET_IFNAME") if choice.how == "NCCL_SOCKET_IFNAME" else {
        "ib": "its name begins with ib", "NCCL_COMM_ID": "in the subnet of NCCL_COMM_ID", "docker": "there is no other",
        "lo": "there is no other", "virbr": "there is no other",
    }.get(choice.how, "the first in the kernel's order")  # fmt: skip
    said = f"NCCL will use {name} {address.ip}/{address.prefix} ({why})"
    if len(choice.interfaces) > 1:
        said += ", and for data without RDMA also " + _some(choice.names[1:])
    if plan.nodes < 2:
        yield Line("NCCL interface", "ok", said)
    else:
        yield from _between_nodes(plan, choice, said)


def _between_nodes(plan: Plan, choice: Choice, said: str) -> Iterator[Line]:
    name, address = choice.interfaces[0]
    if ipaddress.ip_address(address.ip).is_loopback:
        yield Line(
            "NCCL interface",
            "problem",
            f"{said}: no other of the {plan.nodes} nodes can be reached over loopback",
            "unset NCCL_SOCKET_IFNAME"
            if choice.how == "NCCL_SOCKET_IFNAME"
            else "give this machine (container, Pod) a network: docker --network=host, Kubernetes hostNetwork or a Pod network",
            "nccl-no-interface",
            "critical",
        )
        return
    if name.startswith(_LOCAL_ONLY):
        yield Line(
            "NCCL interface",
            "problem",
            f"{said}: it is a bridge of this machine alone, behind which no other node is",
            "NCCL_SOCKET_IFNAME= the interface that the nodes share" + _shared(plan, choice),
            "nccl-no-interface",
        )
        return
    doubtful = [other for other in choice.names if other.startswith(_LOCAL_ONLY + _OVERLAYS)]
    if doubtful:
        good = [other for other in choice.names if other not in doubtful]
        yield Line(
            "NCCL interface",
            "note" if plan.rdma else "problem",  # with RDMA only the first one carries anything
            f"{said}: {_some(doubtful)} belong{'s' * (len(doubtful) == 1)} to containers or "
            "virtual machines of this host, and what NCCL sends there is lost or slow",
            f"NCCL_SOCKET_IFNAME={','.join(good) if good else 'the interface that the nodes share'}",
            "nccl-no-interface",
        )
        return
    subnets = {ipaddress.ip_network(f"{place.ip}/{place.prefix}", strict=False) for _, place in choice.interfaces}
    if len(subnets) > 1 and choice.how == "others":
        yield Line(
            "NCCL interface",
            "note",
            f"{said}: they are in different networks, and all nodes must choose the same{_way(plan, name)}",
            "where it does not connect: NCCL_SOCKET_IFNAME= the interface that the nodes share, the same for GLOO_SOCKET_IFNAME",
        )
        return
    yield Line("NCCL interface", "ok", said)


def _some(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _way(plan: Plan, chosen: str) -> str:
    """Whether MASTER_ADDR is behind the interface that NCCL takes first."""
    if plan.meeting.address is None:
        return ""
    for address in resolve(plan.meeting.address, plan.meeting.port, _RESOLVE_SECONDS)[0]:
        source = route_to(address)
        name = next((one.name for one in plan.interfaces for place in one.addresses if place.ip == source), "")
        if name and name != chosen and not ipaddress.ip_address(source).is_loopback:
            return f"; the way to {plan.meeting.address} is over {name}"
    return ""


def _shared(plan: Plan, choice: Choice) -> str:
    others = [
        one.name for one in plan.interfaces if one.running and one.addresses and one.name not in choice.names and one.name != "lo"
    ]
    return f" ({', '.join(others)})" if others else ""


def _described(plan: Plan) -> Iterator[str]:
    for one in plan.interfaces:
        places = " ".join(f"{place.ip}/{place.prefix}" for place in one.addresses) or "no address"
        yield f"{one.name} {places}" + ("" if one.up and one.running else " (down)" if not one.up else " (no carrier)")


def check_gloo_interface(plan: Plan) -> Iterator[Line]:
    """gloo carries torch's and Megatron's groups of CPU tensors: it takes GLOO_SOCKET_IFNAME, or what the host's name
    resolves to.

    torch 2.13, ProcessGroupGloo.cpp (createDefaultDevice): without a usable address of the name it falls back to loopback.
    """
    wanted = plan.environment.get("GLOO_SOCKET_IFNAME", "")
    if wanted:
        there = {one.name: one for one in plan.interfaces}
        missing = [name for name in wanted.split(",") if name not in there or not there[name].addresses or not there[name].up]
        if missing:
            yield Line(
                "gloo interface",
                "problem",
                f"{plan.said_of('GLOO_SOCKET_IFNAME')}: {', '.join(missing)} is not here, or has no "
                f"address (there are: {', '.join(_described(plan))})",
                "name interfaces in full, separated by commas; gloo knows no prefixes",
                "nccl-no-interface",
                "critical",
            )
        elif plan.nodes > 1 and wanted.split(",")[0] == "lo":
            yield Line(
                "gloo interface",
                "problem",
                f"{plan.said_of('GLOO_SOCKET_IFNAME')}: no other of the {plan.nodes} nodes can be reached over loopback",
                "unset it, or name the interface that the nodes share",
                "nccl-no-interface",
                "critical",
            )
        else:
            yield Line("gloo interface", "ok", plan.said_of("GLOO_SOCKET_IFNAME"))
        return
    if plan.nodes < 2:
        return
    name = socket.gethostname()
    addresses, why = resolve(name, 0, _RESOLVE_SECONDS)
    first = next(iter(addresses), "")
    if first and not ipaddress.ip_address(first.partition("%")[0]).is_loopback:
        yield Line("gloo interface", "ok", f"gloo will use {first}, the address of this host's name {name}")
        return
    what = f"{name} resolves to {first} here" if first else f"{name} does not resolve here ({why})"
    share = next((one.name for one in plan.interfaces if one.name != "lo" and one.running and one.addresses), "IFACE")
    yield Line(
        "gloo interface",
        "problem" if _uses_gloo(plan) else "note",
        f"this host's name {what}: gloo (groups of CPU tensors, Megatron's among them) would bind "
        "to loopback, and the other nodes could not connect to it",
        f"GLOO_SOCKET_IFNAME={share}, or correct the line of {name} in /etc/hosts",
        "hostname-resolution",
    )


def _uses_gloo(plan: Plan) -> bool:
    """Megatron makes groups of gloo beside those of NCCL; a script of one's own need not."""
    return any(word in part.lower() for part in plan.command for word in ("megatron", "gloo"))
