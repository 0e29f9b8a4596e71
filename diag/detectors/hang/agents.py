"""torchrun's agents that wait in a rendezvous which never completes, so that no rank is started."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Sequence

from diag.detectors.hang.verdict import Verdict
from diag.model import Confidence, numbered
from diag.model.observations import Agent
from diag.state.view import JobView

_SHOWN = 6


def waiting_agents(job: JobView) -> Verdict | None:
    """None where ranks run, or enough agents have come to one rendezvous: what keeps these is another matter. Where the
    hubs of several nodes have joined they know who is missing."""
    agents = [one for one in job.run.agents if one.waits and one.nodes > 1]
    if not agents or job.cluster.nodes or any(rank.distributed for rank in job.alive_ranks()):
        return None
    meetings: dict[tuple[str, str], list[Agent]] = defaultdict(list)
    for one in agents:
        meetings[one.where, one.run_id].append(one)
    if any(len(there) >= min(one.nodes for one in there) for there in meetings.values()):
        return None
    cause, words = _cause_and_words(agents, meetings)
    again = any(rank.distributed for rank in job.ranks.values())
    subject = "no rank has run again" if again else "no rank was started"
    return Verdict(
        "rendezvous", (), (), cause, job.run.agents_at, Confidence.HIGH, words=words, subject=subject
    )


def _cause_and_words(
    agents: Sequence[Agent], meetings: dict[tuple[str, str], list[Agent]]
) -> tuple[str, str]:
    places, ids = {one.where for one in agents}, {one.run_id for one in agents}
    if len(ids) == len(meetings) > 1 and len(places) == 1:
        each = _each({f"id {run_id or 'none'}": there for (_, run_id), there in meetings.items()})
        return (
            "rendezvous_ids_differ",
            f"{_who(agents)}{_at(agents[0])} {_nodes(agents)}, and with ids that differ: {each}",
        )
    if len(places) == len(meetings) > 1 and len(ids) == 1:
        each = _each(
            {where or "an address that is not known": there for (where, _), there in meetings.items()}
        )
        return (
            "rendezvous_places_differ",
            f"{_who(agents)} {_nodes(agents)}, and at places that differ: {each}",
        )
    words = f"{_who(agents)}{'' if len(places) > 1 else _at(agents[0])} {_nodes(agents)}"
    if len(meetings) > 1:
        named = {" id ".join(filter(None, key)): there for key, there in meetings.items()}
        return "nodes_missing", f"{words}: {_each(named)}"
    return "nodes_missing", words + _id(agents[0]) + _others(agents)


def _who(agents: Sequence[Agent]) -> str:
    pids = ", ".join(str(one.pid) for one in agents[:_SHOWN]) + (", ..." if len(agents) > _SHOWN else "")
    count = numbered(f"{len(agents)} torchrun [agent waits|agents wait]", len(agents))
    return f"{count} on this machine ({numbered('[pid|pids]', len(agents))} {pids}) in the rendezvous"


def _at(one: Agent) -> str:
    return f" at {one.where}" if one.where else ""


def _id(one: Agent) -> str:
    return f" (id {one.run_id})" if one.run_id else ""


def _nodes(agents: Sequence[Agent]) -> str:
    counts = sorted({one.nodes for one in agents})
    if len(counts) == 1:
        return f"for {counts[0]} nodes"
    return "for " + " and ".join(f"{one.nodes} nodes (pid {one.pid})" for one in agents[:_SHOWN])


def _each(named: dict[str, list[Agent]]) -> str:
    shown = [
        f"{name} ({numbered('[pid|pids]', len(there))} {', '.join(str(one.pid) for one in there)})"
        for name, there in [*named.items()][:_SHOWN]
    ]
    return ", ".join(shown) + (f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else "")


def _others(agents: Sequence[Agent]) -> str:
    """Who else has come that far, where one of them has the store."""
    hosts = sorted({host for one in agents for host in one.hosts})
    if hosts:
        names = ", ".join(hosts[:_SHOWN])
        return f"; connected to it from elsewhere, and not counted as nodes: {names}"
    return ", an address that no other machine reaches" if _is_own(agents[0].where) else ""


def _is_own(where: str) -> bool:
    host = where.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
