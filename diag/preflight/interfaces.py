"""Which interfaces NCCL and gloo will take, and whether the other nodes can be behind them."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterator, Sequence

from diag.launch.launchers.command.shell_script import is_computed
from diag.preflight.container import has_own_network, network_line
from diag.preflight.line import Line, line
from diag.preflight.nccl_interfaces import Address, Choice, choose
from diag.preflight.plan import LaunchPlan, route_to
from diag.preflight.rendezvous_probe import resolve

_RESOLVE_SECONDS = 3.0
# Bridges and tunnels of containers and virtual machines: each host has its own, with no other
# host's nodes behind it.
_LOCAL_ONLY = ("docker", "br-", "virbr", "podman", "cni", "lxcbr", "lxdbr", "veth", "cali", "lxc")
# The networks that a container gets by default: docker's default-address-pools, podman's
# default.
_POOLS = {"docker": ipaddress.ip_network("172.16.0.0/12"), "podman": ipaddress.ip_network("10.88.0.0/16")}
# Why NCCL chooses an interface, by the step that found it.
_WHY = {
    "ib": "its name begins with ib",
    "NCCL_COMM_ID": "in the subnet of NCCL_COMM_ID",
    **dict.fromkeys(("docker", "lo", "virbr"), "there is no other"),
}
_OVERLAYS = ("flannel", "cilium", "weave", "vxlan", "kube-")  # between hosts, but slow, and not for this


def towards(plan: LaunchPlan) -> str:
    """The interface over which this machine talks to MASTER_ADDR, or that has it; "" where that is
    not known."""
    if plan.meeting.address is None or is_computed(plan.meeting.address):
        return ""
    for address in resolve(plan.meeting.address, plan.meeting.port, _RESOLVE_SECONDS)[0]:
        source = route_to(address)
        own = (one.name for one in plan.interfaces for place in one.addresses if place.ip == source)
        name = next(own, "")
        if name and not ipaddress.ip_address(source).is_loopback:
            return name
    return ""


def check_nccl_interface(plan: LaunchPlan, way: Callable[[LaunchPlan], str] = towards) -> Iterator[Line]:
    if plan.container is not None and has_own_network(plan.container):
        yield network_line(plan.container, plan.nodes, plan.unsure)
        return
    comm_id = plan.environment.get("NCCL_COMM_ID", "")
    host = comm_id.partition("]")[0][1:] if comm_id.startswith("[") else comm_id.rpartition(":")[0]
    comm_id_ip = ""
    if host and not plan.environment.get("NCCL_SOCKET_IFNAME"):
        comm_id_ip = next(iter(resolve(host, 0, _RESOLVE_SECONDS)[0]), "").partition("%")[0]
    choice = choose(plan.interfaces, plan.environment, plan.nccl_version, comm_id_ip)
    if not choice.interfaces:
        named, here = plan.setting_of(choice.how) if choice.how else "", _described(plan) or "none"
        yield line(f"interfaces.{'no-match' if named else 'none'}", named=named, here=here)
        return
    name, address = choice.interfaces[0]
    by_name = choice.how == "NCCL_SOCKET_IFNAME"
    why = plan.setting_of(choice.how) if by_name else _WHY.get(choice.how, "the first in the kernel's order")
    said = f"NCCL will use {name} {address.ip}/{address.prefix} ({why})"
    if len(choice.interfaces) > 1:
        said += ", and for data without RDMA also " + _some(choice.names[1:])
    if plan.nodes is None:
        yield line("interfaces.nodes-unknown", said=said, plan=plan)
    elif plan.nodes < 2:
        yield line("interfaces.fits", said=said)
    else:
        yield _between_nodes(plan, choice, said, way(plan))


def _between_nodes(plan: LaunchPlan, choice: Choice, said: str, way: str) -> Line:
    """`way`: the interface towards MASTER_ADDR, "" where it is not known."""
    name, address = choice.interfaces[0]
    over = f"; the route to {plan.meeting.address} is over {way}"
    if ipaddress.ip_address(address.ip).is_loopback:
        named = "-named" if choice.how == "NCCL_SOCKET_IFNAME" else ""
        return line(f"interfaces.loopback{named}", said=said, plan=plan)
    if name.startswith(_LOCAL_ONLY):
        return line("interfaces.local-bridge", said=said, others=_shared(plan, choice))
    if _is_bridged(plan, address):
        return line("interfaces.container-bridge", what="NCCL interface", said=said, plan=plan)
    doubtful = [other for other in choice.names if other.startswith(_LOCAL_ONLY + _OVERLAYS)]
    if doubtful:
        good = [other for other in choice.names if other not in doubtful]
        belong = f"{_some(doubtful)} belong{'s' * (len(doubtful) == 1)}"
        share = ",".join(good) or "the interface that the nodes share"
        key = f"interfaces.doubtful{'-with-rdma' if plan.rdma else ''}"
        return line(key, said=said, doubtful=belong, good=share)
    places = (place for _, place in choice.interfaces)
    subnets = {ipaddress.ip_network(f"{place.ip}/{place.prefix}", strict=False) for place in places}
    if len(subnets) > 1 and choice.how == "others":
        return line("interfaces.several-networks", said=said, over=over if way not in ("", name) else "")
    if way in choice.names:
        return line("interfaces.fits", said=said)
    return line("interfaces.not-towards", said=said, over=over if way else ": the route to node 0 is not")


def _is_bridged(plan: LaunchPlan, address: Address) -> bool:
    """Whether it is of the bridge network that docker and podman give a container by default, in which other
    hosts do not reach it."""
    pool = _POOLS.get(plan.within)
    is_16 = address.prefix == 16 and address.version == 4
    return pool is not None and is_16 and ipaddress.ip_address(address.ip) in pool


# Bridges that docker and podman make for containers of this host, as they name them; docker's default one is
# 172.17.0.0/16.
_BRIDGES = re.compile(r"docker\d+|docker_gwbridge|br-[0-9a-f]{12}|podman\d+|cni-podman\d+")
_DEFAULT_BRIDGE = ipaddress.ip_network("172.17.0.0/16")


def bridge_of(plan: LaunchPlan, addresses: Sequence[str]) -> str:
    """Which bridge of containers an address of `addresses` lies in, as far as that is seen from here; "" for none."""
    ips = [one.partition("%")[0] for one in addresses]
    for card in plan.interfaces:
        own = _BRIDGES.fullmatch(card.name) is not None or any(
            _is_bridged(plan, each) for each in card.addresses
        )
        for place in card.addresses if own else ():
            if place.version == 4 and any(place.holds(ip) for ip in ips):
                return f"{card.name} ({ipaddress.ip_network(f'{place.ip}/{place.prefix}', strict=False)})"
    by_docker = plan.container is not None and plan.container.engine == "docker"
    if by_docker and any(ipaddress.ip_address(ip) in _DEFAULT_BRIDGE for ip in ips):
        return f"docker's default bridge ({_DEFAULT_BRIDGE})"
    return ""


def addresses_to_use(plan: LaunchPlan) -> dict[str, str]:
    """What will listen ("NCCL", "gloo", "NCCL and gloo"), and at which address of this machine; nothing at loopback."""
    nccl = choose(plan.interfaces, plan.environment, plan.nccl_version).interfaces
    named = plan.environment.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if named:
        places = (place.ip for card in plan.interfaces if card.name == named for place in card.addresses)
    else:
        places = (ip.partition("%")[0] for ip in resolve(socket.gethostname(), 0, _RESOLVE_SECONDS)[0])
    found = {"NCCL": nccl[0][1].ip if nccl else "", "gloo": next(places, "")}
    if found["NCCL"] == found["gloo"]:
        found = {"NCCL and gloo": found["NCCL"]}
    return {use: ip for use, ip in found.items() if ip and not ipaddress.ip_address(ip).is_loopback}


def own_address(plan: LaunchPlan) -> str:
    """The address that other hosts may know this machine by: of the first interface that NCCL would take, and that is
    no bridge of containers; "" for none."""
    choice = choose(plan.interfaces, {}, plan.nccl_version)
    usable = (
        place.ip
        for name, place in choice.interfaces
        if not name.startswith(_LOCAL_ONLY + _OVERLAYS) and not _is_bridged(plan, place)
    )
    return next((ip for ip in usable if not ipaddress.ip_address(ip).is_loopback), "")


def _some(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _shared(plan: LaunchPlan, choice: Choice) -> str:
    usable = (one.name for one in plan.interfaces if one.running and one.addresses and one.name != "lo")
    others = [name for name in usable if name not in choice.names]
    return f" ({', '.join(others)})" if others else ""


def _described(plan: LaunchPlan) -> str:
    found = []
    for one in plan.interfaces:
        places = " ".join(f"{place.ip}/{place.prefix}" for place in one.addresses) or "no address"
        down = "" if one.up and one.running else " (no carrier)" if one.up else " (down)"
        found.append(f"{one.name} {places}{down}")
    return ", ".join(found)


def check_gloo_interface(plan: LaunchPlan, way: Callable[[LaunchPlan], str] = towards) -> Iterator[Line]:
    """gloo carries torch's and Megatron's groups of CPU tensors: it takes GLOO_SOCKET_IFNAME, or what the
    host's name resolves to.

    torch 2.13, ProcessGroupGloo.cpp (createDefaultDevice): without a usable address of the name it falls back
    to loopback.
    """
    if has_own_network(plan.container):
        return  # NCCL's line says what is to be done
    wanted = plan.environment.get("GLOO_SOCKET_IFNAME", "")
    if wanted:
        yield _gloo_named(plan, wanted.split(","), way)
    elif plan.nodes is not None and plan.nodes >= 2:
        yield _gloo_by_host_name(plan, way)


def _gloo_named(plan: LaunchPlan, wanted: Sequence[str], way: Callable[[LaunchPlan], str]) -> Line:
    first, said = wanted[0], plan.setting_of("GLOO_SOCKET_IFNAME")
    there = {one.name: one for one in plan.interfaces if one.addresses and one.up}
    missing = ", ".join(name for name in wanted if name not in there)
    if missing:
        return line("interfaces.gloo-missing", said=said, missing=missing, here=_described(plan))
    if plan.nodes is None:
        return line("interfaces.gloo-nodes-unknown", said=said, plan=plan)
    if plan.nodes < 2:
        return line("interfaces.gloo-fits", said=said)
    if first == "lo":
        return line("interfaces.gloo-loopback", said=said, plan=plan)
    return _gloo_between(plan, said, first, there[first].addresses[0], way(plan))


def _gloo_by_host_name(plan: LaunchPlan, way: Callable[[LaunchPlan], str]) -> Line:
    host = socket.gethostname()
    addresses, why = resolve(host, 0, _RESOLVE_SECONDS)
    ip = next(iter(addresses), "").partition("%")[0]
    if ip and not ipaddress.ip_address(ip).is_loopback:
        said = f"gloo will use {addresses[0]}, the address of this host's name {host}"
        found = ((one.name, place) for one in plan.interfaces for place in one.addresses if place.ip == ip)
        return _gloo_between(plan, said, *next(found, ("", Address(ip, 128 if ":" in ip else 32))), way(plan))
    name = f"{host} resolves to {addresses[0]} here" if ip else f"{host} does not resolve here ({why})"
    usable = (one.name for one in plan.interfaces if one.name != "lo" and one.running and one.addresses)
    # Megatron makes groups of gloo in addition to those of NCCL; a script of one's own need not.
    uses = any(word in part.lower() for part in plan.command.line for word in ("megatron", "gloo"))
    unused = "" if uses else "-unused"
    return line(f"interfaces.gloo-by-name{unused}", name=name, host=host, share=next(usable, "IFACE"))


def _gloo_between(plan: LaunchPlan, said: str, name: str, address: Address, way: str) -> Line:
    if _is_bridged(plan, address):
        return line("interfaces.container-bridge", what="gloo interface", said=said, plan=plan)
    if name and name == way:
        return line("interfaces.gloo-fits", said=said)
    over = f"; the route to {plan.meeting.address} is over {way}" if way else ": the route to node 0 is not"
    return line("interfaces.gloo-not-towards", said=said, over=over)
