"""Which interfaces NCCL and gloo will take, and whether the other nodes can be behind them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence

from diag.launch.launchers.command.shell_script import is_computed
from diag.preflight.container import has_own_network, network_lines
from diag.preflight.line import Line
from diag.preflight.nccl_interfaces import Address, Choice, choose
from diag.preflight.plan import LaunchPlan, route_to
from diag.preflight.rendezvous_probe import resolve

_RESOLVE_SECONDS = 3.0
# Bridges and tunnels of containers and virtual machines: each host has its own, with nobody else's nodes
# behind it.
_LOCAL_ONLY = ("docker", "br-", "virbr", "podman", "cni", "lxcbr", "lxdbr", "veth", "cali", "lxc")
# The networks that a container gets where nobody says otherwise: docker's default-address-pools, podman's
# default.
_POOLS = {"docker": ipaddress.ip_network("172.16.0.0/12"), "podman": ipaddress.ip_network("10.88.0.0/16")}
_OF_HOST = "docker run --network=host (podman too), with MASTER_ADDR the address of node 0's host"
_OVERLAYS = ("flannel", "cilium", "weave", "vxlan", "kube-")  # between hosts, but slow, and not for this


def towards(plan: LaunchPlan) -> str:
    """The interface over which this machine talks to MASTER_ADDR, or that has it; "" where that cannot be
    told."""
    if plan.meeting.address is None or is_computed(plan.meeting.address):
        return ""
    for address in resolve(plan.meeting.address, plan.meeting.port, _RESOLVE_SECONDS)[0]:
        source = route_to(address)
        name = next(
            (one.name for one in plan.interfaces for place in one.addresses if place.ip == source), ""
        )
        if name and not ipaddress.ip_address(source).is_loopback:
            return name
    return ""


def check_nccl_interface(plan: LaunchPlan, way: Callable[[LaunchPlan], str] = towards) -> Iterator[Line]:
    if plan.starts is not None and has_own_network(plan.starts):
        yield from network_lines(plan.starts, plan.nodes, plan.unsure)
        return
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
            said, remedy = (
                f"no interface that is up has an address (there are: {here})",
                "`ip link set dev lo up`, and a network",
            )
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
    if plan.nodes is None:
        unknown = f"whether other nodes have to be behind it is not known: {plan.unsure}"
        yield Line("NCCL interface", "not checked", f"{said}; {unknown}")
    elif plan.nodes < 2:
        yield Line("NCCL interface", "ok", said)
    else:
        yield from _between_nodes(plan, choice, said, way(plan))


def _between_nodes(plan: LaunchPlan, choice: Choice, said: str, way: str) -> Iterator[Line]:
    """`way`: the interface towards MASTER_ADDR, "" where it is not known."""
    name, address = choice.interfaces[0]
    over = f"; the way to {plan.meeting.address} is over {way}"
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
    bridged = _bridged(plan, address)
    if bridged:
        yield Line(
            "NCCL interface", "problem", f"{said}: {bridged}", _OF_HOST, "nccl-no-interface", "critical"
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
    subnets = {
        ipaddress.ip_network(f"{place.ip}/{place.prefix}", strict=False) for _, place in choice.interfaces
    }
    if len(subnets) > 1 and choice.how == "others":
        yield Line(
            "NCCL interface",
            "note",
            f"{said}: they are in different networks, and all nodes must choose the same{over if way not in ('', name) else ''}",
            "where it does not connect: NCCL_SOCKET_IFNAME= the interface that the nodes share, the same for GLOO_SOCKET_IFNAME",
        )
        return
    if way in choice.names:
        yield Line("NCCL interface", "ok", said)
        return
    yield Line(
        "NCCL interface",
        "not checked",
        f"{said}; whether the other nodes are behind it is not known{over if way else ': the way to node 0 is not'}",
        "all nodes must choose interfaces of one network: NCCL_SOCKET_IFNAME, where they do not",
    )


def _bridged(plan: LaunchPlan, address: Address) -> str:
    """Why other hosts do not reach this address: the bridge network that docker and podman give a container
    by default."""
    pool = _POOLS.get(plan.container)
    if (
        pool is None
        or address.prefix != 16
        or address.version != 4
        or ipaddress.ip_address(address.ip) not in pool
    ):
        return ""
    return (
        f"it is {plan.container}'s own bridge network, in which the container's address is known on this host alone; -p passes "
        "on single ports, and NCCL and gloo choose others"
    )


def _some(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _shared(plan: LaunchPlan, choice: Choice) -> str:
    others = [
        one.name
        for one in plan.interfaces
        if one.running and one.addresses and one.name not in choice.names and one.name != "lo"
    ]
    return f" ({', '.join(others)})" if others else ""


def _described(plan: LaunchPlan) -> Iterator[str]:
    for one in plan.interfaces:
        places = " ".join(f"{place.ip}/{place.prefix}" for place in one.addresses) or "no address"
        yield f"{one.name} {places}" + (
            "" if one.up and one.running else " (down)" if not one.up else " (no carrier)"
        )


def check_gloo_interface(plan: LaunchPlan, way: Callable[[LaunchPlan], str] = towards) -> Iterator[Line]:
    """gloo carries torch's and Megatron's groups of CPU tensors: it takes GLOO_SOCKET_IFNAME, or what the
    host's name resolves to.

    torch 2.13, ProcessGroupGloo.cpp (createDefaultDevice): without a usable address of the name it falls back
    to loopback.
    """
    if has_own_network(plan.starts):
        return  # NCCL's line says what is to be done
    wanted = plan.environment.get("GLOO_SOCKET_IFNAME", "")
    if wanted:
        yield from _gloo_named(plan, wanted, way)
    elif plan.nodes is not None and plan.nodes >= 2:
        yield from _gloo_by_host_name(plan, way)


def _gloo_named(plan: LaunchPlan, wanted: str, way: Callable[[LaunchPlan], str]) -> Iterator[Line]:
    first = wanted.partition(",")[0]
    there = {one.name: one for one in plan.interfaces}
    missing = [
        name
        for name in wanted.split(",")
        if name not in there or not there[name].addresses or not there[name].up
    ]
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
    elif plan.nodes is None:
        said = f"{plan.said_of('GLOO_SOCKET_IFNAME')}, which is here; whether other nodes have to be behind it is not known"
        yield Line("gloo interface", "not checked", f"{said}: {plan.unsure}")
    elif plan.nodes > 1 and first == "lo":
        yield Line(
            "gloo interface",
            "problem",
            f"{plan.said_of('GLOO_SOCKET_IFNAME')}: no other of the {plan.nodes} nodes can be reached over loopback",
            "unset it, or name the interface that the nodes share",
            "nccl-no-interface",
            "critical",
        )
    elif plan.nodes > 1:
        yield _gloo_between(
            plan, plan.said_of("GLOO_SOCKET_IFNAME"), first, there[first].addresses[0], way(plan)
        )
    else:
        yield Line("gloo interface", "ok", plan.said_of("GLOO_SOCKET_IFNAME"))


def _gloo_by_host_name(plan: LaunchPlan, way: Callable[[LaunchPlan], str]) -> Iterator[Line]:
    name = socket.gethostname()
    addresses, why = resolve(name, 0, _RESOLVE_SECONDS)
    first = next(iter(addresses), "")
    if first and not ipaddress.ip_address(first.partition("%")[0]).is_loopback:
        said = f"gloo will use {first}, the address of this host's name {name}"
        ip = first.partition("%")[0]
        found = ((one.name, place) for one in plan.interfaces for place in one.addresses if place.ip == ip)
        yield _gloo_between(plan, said, *next(found, ("", Address(ip, 128 if ":" in ip else 32))), way(plan))
        return
    what = f"{name} resolves to {first} here" if first else f"{name} does not resolve here ({why})"
    share = next(
        (one.name for one in plan.interfaces if one.name != "lo" and one.running and one.addresses), "IFACE"
    )
    yield Line(
        "gloo interface",
        "problem" if _uses_gloo(plan) else "note",
        f"this host's name {what}: gloo (groups of CPU tensors, Megatron's among them) would bind "
        "to loopback, and the other nodes could not connect to it",
        f"GLOO_SOCKET_IFNAME={share}, or correct the line of {name} in /etc/hosts",
        "hostname-resolution",
    )


def _gloo_between(plan: LaunchPlan, said: str, name: str, address: Address, way: str) -> Line:
    bridged = _bridged(plan, address)
    if bridged:
        return Line(
            "gloo interface", "problem", f"{said}: {bridged}", _OF_HOST, "nccl-no-interface", "critical"
        )
    if name and name == way:
        return Line("gloo interface", "ok", said)
    over = f"; the way to {plan.meeting.address} is over {way}" if way else ": the way to node 0 is not"
    return Line(
        "gloo interface", "not checked", f"{said}; whether the other nodes are behind it is not known{over}"
    )


def _uses_gloo(plan: LaunchPlan) -> bool:
    """Megatron makes groups of gloo beside those of NCCL; a script of one's own need not."""
    return any(word in part.lower() for part in plan.command for word in ("megatron", "gloo"))
