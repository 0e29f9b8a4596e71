"""Lines of `diag doctor` on the nodes that were met: their names, clocks and addresses, whether NCCL and gloo get through
to them, and who did not come."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

from diag.launch.launchers.nodes import nodes_of
from diag.preflight.line import Line, line, table
from diag.preflight.plan import LaunchPlan, is_own
from diag.preflight.rendezvous_probe import Met, own_name, resolve
from diag.preflight.ways import Way
from diag.text.tables import fill
from diag.text.units import format_seconds

_RESOLVE_SECONDS = 5.0
_MOST_NAMED = 8
_SKEW_SECONDS = 1.0  # times of logs and of diag's own findings are given by the second
# torch 2.13, elastic/rendezvous/dynamic_rendezvous.py: a node whose last sign of life is older than three
# keep_alive_interval (5 s), by the reader's own clock, is taken for dead.
_C10D_SECONDS = 15.0


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


def reported_lines(plan: LaunchPlan, met: Met) -> Iterator[Line]:
    yield from _name_lines(plan, met)
    yield from clock_lines(plan, met)
    yield from way_lines(plan, met)


def _name_lines(plan: LaunchPlan, met: Met) -> Iterator[Line]:
    """Of torchrun's c10d rendezvous, whose rank 0 gives the ranks its own name as MASTER_ADDR, whatever the
    endpoint was.

    torch 2.13, elastic/rendezvous/dynamic_rendezvous.py and api.py: `local_addr or socket.getfqdn()`.
    """
    if plan.meeting.backend != "c10d" or not met.name:
        return
    addresses, why = resolve(met.name, plan.meeting.port, _RESOLVE_SECONDS)
    if not addresses:
        yield line("rendezvous.unusable-name", met=met, wrong=f"does not resolve here: {why}")
    elif any(map(is_own, addresses)):
        wrong = f"resolves to {', '.join(addresses)} here, to this machine's own address"
        yield line("rendezvous.unusable-name", met=met, wrong=wrong)


def clock_lines(plan: LaunchPlan, met: Met) -> Iterator[Line]:
    """None for a difference smaller than the exchange's own uncertainty."""
    if met.ahead_seconds is None:
        return
    off = abs(met.ahead_seconds)
    least, who = off - met.unsure_seconds, _named(met)
    if least <= _SKEW_SECONDS:
        yield line("rendezvous.clock-agrees", who=who, within=format_seconds(off + met.unsure_seconds))
        return
    way = "ahead of" if met.ahead_seconds > 0 else "behind"
    dead = plan.meeting.backend == "c10d" and least > _C10D_SECONDS
    said = f"the clock of {who} is {format_seconds(off)} {way} this node's"
    yield line(f"rendezvous.clock-{'c10d' if dead else 'differs'}", said=said)


def way_lines(plan: LaunchPlan, met: Met) -> Iterator[Line]:
    """Whether the addresses at which NCCL and gloo will listen are reached, there and here."""
    if met.ways is None:
        return
    who = _named(met)
    if not met.ways or not met.back:
        yield line("ways.not-tried", who=who)
        return
    blocked = [("here", way) for way in met.ways if way.how != "reached"]
    blocked += [("there", way) for way in met.back if way.how != "reached"]
    if not blocked:
        at = table("ways")["words"]["at"]
        reached = ", ".join(fill(at, use=way.door.use, ip=way.door.ip) for way in (*met.ways, *met.back))
        kind = "-translated" if is_translated(met, met.seen_as) else ""
        yield line(f"ways.open{kind}", who=who, reached=reached, met=met)
        return
    words = table("ways")["words"]
    said = "; ".join(
        fill(words[f"from-{begin}"], use=way.door.use, tried=_tried(way)) for begin, way in blocked
    )
    one_way = "" if len({begin for begin, _ in blocked}) > 1 else words["one-way"]
    key = "translated" if is_translated(met, met.seen_as) else "blocked"
    address, port = plan.meeting.address, plan.meeting.port
    yield line(f"ways.{key}", who=who, said=said, one_way=one_way, met=met, address=address, port=port)


def _tried(way: Way) -> str:
    words = table("ways")["how"]
    return fill(words.get(way.how, words["error"]), place=way.place, said=way.said)


def _named(met: Met) -> str:
    host = met.host or met.seen_as
    return host if met.node_rank is None else f"node {met.node_rank} ({host})"


def is_translated(met: Met, seen_as: str) -> bool:
    """Whether something between the two nodes gives it another address. A node that did not report its own is
    not judged."""
    return bool(met.own) and met.own.partition("%")[0] != seen_as.partition("%")[0]


def absent(plan: LaunchPlan, came: Sequence[Met]) -> str:
    """ ": node 2 (gpu3)": the nodes that did not come, with their names where the engine has them; "" where a rank is not known."""
    ranks = {met.node_rank for met in came}
    nodes = plan.meeting.nodes
    missing = [rank for rank in range(1, nodes) if rank not in ranks]
    if plan.meeting.node_rank is None or len(missing) != nodes - 1 - len(came):
        return ""
    hosts = nodes_of(plan.command.line, plan.environment).hosts
    named = [
        f"node {rank} ({hosts[rank]})" if len(hosts) == nodes else f"node {rank}"
        for rank in missing[:_MOST_NAMED]
    ]
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f": {', '.join(named)}{more}"
