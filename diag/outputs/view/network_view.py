"""The node's networks and what each rank has of RDMA, as the JSON and the lines of a dump. The caller holds
the engine's lock."""

from __future__ import annotations

from typing import Any

from diag.engine.engine import Engine
from diag.model.observations import RdmaAccess, RdmaPortsSeen
from diag.state.traffic import recent
from diag.text.units import format_link_rate, format_ranks, format_rate, format_seconds

_RECENT_SECONDS = 60.0
_MOST_NAMES = 4
_RATES = ("rdma_sent", "rdma_received", "socket_sent", "socket_received")
_PORT = ("device", "port", "active", "state", "physical_state", "link_layer", "rate_bytes_per_second")
_INTERFACE = ("name", "up", "kind", "addresses", "speed_bytes_per_second")


def network_json(engine: Engine) -> dict[str, Any]:
    """{"ports", "interfaces", "traffic", "text"}; null for what was not read. `text` is for people, a line
    each."""
    network = engine.job.network
    ports = network.ports.last[1] if network.ports.last else None
    interfaces = network.interfaces.last[1] if network.interfaces.last else None
    traffic = recent(network, engine.now - _RECENT_SECONDS)
    rates = None
    if traffic is not None:
        rates = {"seconds": round(traffic.seconds, 3), **picked(traffic, *_RATES)}
    return {
        "ports": None if ports is None else [picked(port, *_PORT) for port in ports.ports],
        "interfaces": None
        if interfaces is None
        else [picked(one, *_INTERFACE) for one in interfaces.interfaces],
        "traffic": rates,
        "text": [*_node_lines(ports, rates), *_rank_lines(engine)],
    }


def rdma_json(access: RdmaAccess | None) -> dict[str, Any] | None:
    """What a rank has of RDMA; null for what cannot be read."""
    if access is None:
        return None
    names = ("device_nodes", "open_nodes", "verbs_library", "providers", "ipc_lock", "container")
    return {**picked(access, *names), "libraries": _plain(access.mapped)}


def picked(of: object, *names: str) -> dict[str, Any]:
    """Some of its attributes, as JSON has them."""
    return {name: _plain(getattr(of, name)) for name in names}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _node_lines(ports: RdmaPortsSeen | None, rates: dict[str, Any] | None) -> list[str]:
    if ports is None:
        return []
    state = "no RDMA device on this node"
    if ports.ports:
        active = [port for port in ports.ports if port.active]
        fastest = max((port.rate_bytes_per_second or 0.0 for port in active), default=0.0)
        down = [f"{port.device}:{port.port}" for port in ports.ports if not port.active]
        state = f"{len(active)} of {len(ports.ports)} RDMA ports active"
        state += f" (up to {format_link_rate(fastest)})" if fastest else ""
        state += f", not {_few(down)}" if down and active else ""
    moved = [
        f"{label} {format_rate(rates[f'{key}_sent'])} sent, {format_rate(rates[f'{key}_received'])} received"
        for label, key in (("RDMA", "rdma"), ("sockets", "socket"))
        if rates is not None
        and None not in (rates[f"{key}_sent"], rates[f"{key}_received"])
        and (ports.ports or key == "socket")
    ]
    if rates is not None and moved:
        state += f"; last {format_seconds(rates['seconds'])}: {'; '.join(moved)}"
    return [f"network: {state}"]


def _rank_lines(engine: Engine) -> list[str]:
    """One line for all ranks that are alike; none where no rank has anything of RDMA."""
    alike: dict[str, list[int]] = {}
    for rank in engine.job.alive_ranks():
        text = _format_access(rank.rdma) if rank.rdma is not None else ""
        if text:
            alike.setdefault(text, []).append(rank.rank)
    return [f"network of {format_ranks(ranks)}: {text}" for text, ranks in alike.items()]


def _format_access(access: RdmaAccess) -> str:
    ports = [node for node in access.device_nodes or () if node.startswith("uverbs")]
    held = [node for node in access.open_nodes or () if node.startswith("uverbs")]
    if not ports and not held:
        return ""
    if access.open_nodes is None:
        return "open files cannot be read"
    return f"holds {_few(held)} open" if held else f"holds none of {_few(ports)} open"


def _few(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (
        f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    )
