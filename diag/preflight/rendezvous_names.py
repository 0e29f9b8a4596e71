"""What nodes that meet tell each other of themselves, and whether a name told is one that others can use."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from diag.launch.launchers.nodes import nodes_of
from diag.preflight.line import Line
from diag.preflight.plan import LaunchPlan, is_own
from diag.preflight.rendezvous_probe import Met, own_name, resolve

_RESOLVE_SECONDS = 5.0
_MOST_NAMED = 8


def mine(plan: LaunchPlan) -> dict[str, int | str | None]:
    name = ""
    if plan.meeting.backend == "c10d":
        name = plan.meeting.local_address or own_name(_RESOLVE_SECONDS)
    return {
        "node_rank": plan.meeting.node_rank,
        "nodes": plan.meeting.nodes,
        "host": socket.gethostname(),
        "name": name,
    }


def name_of(plan: LaunchPlan, met: Met) -> Line | None:
    """Of torchrun's c10d rendezvous, whose rank 0 gives the ranks its own name as MASTER_ADDR, whatever the
    endpoint was.

    torch 2.13, elastic/rendezvous/dynamic_rendezvous.py and api.py: `local_addr or socket.getfqdn()`.
    """
    if plan.meeting.backend != "c10d" or not met.name:
        return None
    addresses, why = resolve(met.name, plan.meeting.port, _RESOLVE_SECONDS)
    if addresses and not any(is_own(address) for address in addresses):
        return None
    wrong = (
        f"resolves to {', '.join(addresses)} here, which is this machine"
        if addresses
        else f"does not resolve here: {why}"
    )
    return Line(
        "other nodes",
        "problem",
        f"the node at {met.seen_as} calls itself {met.name}, and that {wrong}; torchrun's c10d rendezvous gives such a name to "
        "the ranks as MASTER_ADDR",
        "--local_addr with each node's own address, or the names in DNS or /etc/hosts of each node",
        "hostname-resolution",
        "critical",
    )


def is_translated(met: Met, seen_as: str) -> bool:
    """Whether something between the two nodes gives it another address. A node that did not say its own is
    not judged."""
    return bool(met.own) and met.own.partition("%")[0] != seen_as.partition("%")[0]


def translated(said: str, what: str) -> Line:
    """Of a node that another sees under an address which it has not itself."""
    return Line(
        what,
        "problem",
        f"{said}: address translation (docker's -p, NAT) passes on this port alone, and NCCL and gloo connect to ports that they "
        "choose themselves, at the address that each node has itself",
        "docker run --network=host on every node, with MASTER_ADDR the host's address; in a cloud, the addresses of one private "
        "network",
        "rendezvous-failure",
        "critical",
    )


def absent(plan: LaunchPlan, came: Sequence[Met]) -> str:
    """ ": node 2 (gpu3)": which nodes did not come, with their names where the engine tells them; "" where a rank is not known."""
    ranks = {met.node_rank for met in came}
    nodes = plan.meeting.nodes
    missing = [rank for rank in range(1, nodes) if rank not in ranks]
    if plan.meeting.node_rank is None or len(missing) != nodes - 1 - len(came):
        return ""
    hosts = nodes_of(plan.command, plan.environment).hosts
    named = [
        f"node {rank} ({hosts[rank]})" if len(hosts) == nodes else f"node {rank}"
        for rank in missing[:_MOST_NAMED]
    ]
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f": {', '.join(named)}{more}"
