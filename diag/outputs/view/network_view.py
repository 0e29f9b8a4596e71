"""The node's networks and what each rank has of RDMA, as the JSON and the lines of a dump. The caller holds
the engine's lock."""

from __future__ import annotations

from typing import Any

from diag.engine.engine import Engine
from diag.model.observations import InterfacesSeen, RdmaAccess, RdmaPortsSeen
from diag.state.traffic import recent
from diag.text.units import format_link_rate, format_ranks, format_rate, format_seconds

_RECENT_SECONDS = 60.0
_MOST_NAMES = 4


def network_json(engine: Engine) -> dict[str, Any]:
    """{"ports", "interfaces", "traffic", "text"}; null for what was not read. `text` is for people, a line
    each."""
    network = engine.job.network
    ports = network.ports.last[1] if network.ports.last else None
    interfaces = network.interfaces.last[1] if network.interfaces.last else None
    traffic = recent(network, engine.now - _RECENT_SECONDS)
    rates = (
        None
        if traffic is None
        else {
            "seconds": round(traffic.seconds, 3),
            "rdma_sent": traffic.rdma_sent,
            "rdma_received": traffic.rdma_received,
            "socket_sent": traffic.socket_sent,
            "socket_received": traffic.socket_received,
        }
    )
    return {
        "ports": None if ports is None else _ports_json(ports),
        "interfaces": None if interfaces is None else _interfaces_json(interfaces),
        "traffic": rates,
        "text": [*_node_lines(ports, rates), *_rank_lines(engine)],
    }


def rdma_json(access: RdmaAccess | None) -> dict[str, Any] | None:
    """What a rank has of RDMA; null for what may not be looked at."""
    if access is None:
        return None
    return {
        "device_nodes": _list(access.device_nodes),
        "open_nodes": _list(access.open_nodes),
        "libraries": _list(access.mapped),
        "verbs_library": access.verbs_library,
        "providers": _list(access.providers),
        "ipc_lock": access.ipc_lock,
        "container": access.container,
    }


def _list(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def _ports_json(seen: RdmaPortsSeen) -> list[dict[str, Any]]:
    return [
        {
            "device": port.device,
            "port": port.port,
            "active": port.active,
            "state": port.state,
            "physical_state": port.physical_state,
            "link_layer": port.link_layer,
            "rate_bytes_per_second": port.rate_bytes_per_second,
        }
        for port in seen.ports
    ]


def _interfaces_json(seen: InterfacesSeen) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name,
            "up": one.up,
            "kind": one.kind,
            "addresses": list(one.addresses),
            "speed_bytes_per_second": one.speed_bytes_per_second,
        }
        for one in seen.interfaces
    ]


def _node_lines(ports: RdmaPortsSeen | None, rates: dict[str, Any] | None) -> list[str]:
    if ports is None:
        return []
    if not ports.ports:
        said = "no RDMA device on this node"
    else:
        active = [port for port in ports.ports if port.active]
        fastest = max((port.rate_bytes_per_second or 0.0 for port in active), default=0.0)
        down = [f"{port.device}:{port.port}" for port in ports.ports if not port.active]
        said = f"{len(active)} of {len(ports.ports)} RDMA ports active"
        said += f" (up to {format_link_rate(fastest)})" if fastest else ""
        said += f", not {_few(down)}" if down and active else ""
    moved = [
        f"{word} {format_rate(rates[f'{key}_sent'])} sent, {format_rate(rates[f'{key}_received'])} received"
        for word, key in (("RDMA", "rdma"), ("sockets", "socket"))
        if rates is not None
        and rates[f"{key}_sent"] is not None
        and rates[f"{key}_received"] is not None
        and (ports.ports or key == "socket")
    ]
    return [
        f"network: {said}"
        + (
            f"; last {format_seconds(rates['seconds'])}: {'; '.join(moved)}"
            if rates is not None and moved
            else ""
        )
    ]


def _rank_lines(engine: Engine) -> list[str]:
    """One line for all ranks that are alike; none where nobody has anything of RDMA."""
    alike: dict[str, list[int]] = {}
    for rank in engine.job.alive_ranks():
        words = _format_access(rank.rdma) if rank.rdma is not None else ""
        if words:
            alike.setdefault(words, []).append(rank.rank)
    return [f"network of {format_ranks(ranks)}: {words}" for words, ranks in alike.items()]


def _format_access(access: RdmaAccess) -> str:
    ports = [node for node in access.device_nodes or () if node.startswith("uverbs")]
    held = [node for node in access.open_nodes or () if node.startswith("uverbs")]
    if not ports and not held:
        return ""
    if access.open_nodes is None:
        return "what it holds open may not be looked at"
    return f"holds {_few(held)} open" if held else f"holds none of {_few(ports)} open"


def _few(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (
        f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    )
