"""The roster: who runs where and who its ranks are, as hubs tell each other. The job hub keeps it; by it the others
know where the job hub may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from diag.agent.node_hub import NodeHub
from diag.launch.launchers.nodes import JobNodes
from diag.model.observations import NodeDigest, RankDigest
from diag.sources.digest import SCHEMA

WHOLE_ROSTER = 128  # nodes; of larger jobs those that could take over
_CANDIDATES = 16
_PARTS = ("rank", "local_rank", "pid", "start_ticks")  # of a rank's place
_MOST = 1 << 20  # of ranks and of nodes: as in model
_BLANK = {"str": "", "int": 0, "float": 0.0, "bool": False}

Entry = dict[str, Any]  # see `checked`


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is to the others. `url` is where they reach its hub."""

    run_id: str
    host: str
    version: str
    url: str = ""
    node_rank: int | None = None
    nodes: int = 1
    rendezvous: str = ""
    local_world_size: int = 0
    host_names: tuple[str, ...] = ()


# --- entries


def checked(entry: Mapping[str, Any]) -> Entry:
    """The entry with what an entry has. Raises KeyError, TypeError or ValueError where others could not go on
    with it: one that is kept is sorted, asked and sent to every node."""
    node_rank = entry["node_rank"]
    ranks = entry["ranks"]
    if type(ranks) is not list or len(ranks) > _MOST:
        raise TypeError("ranks: not a list")
    if any(type(place) is not list or len(place) != len(_PARTS) for place in ranks):
        raise ValueError("ranks: not the place of a rank")
    return {
        **{name: _text(entry, name) for name in ("run_id", "host", "url", "rendezvous")},
        "gone": bool(entry.get("gone")),
        "node_rank": None if node_rank is None else _number(node_rank, "node_rank"),
        **{name: _number(entry[name], name) for name in ("nodes", "world_size")},
        "ranks": [[_number(part, "ranks", 1 << 63) for part in place] for place in ranks],
    }


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry[name]
    if not isinstance(value, str) or len(value) > 4096:
        raise TypeError(f"{name}: not a name")
    return value


def _number(value: Any, name: str, most: int = _MOST) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError(f"{name}: not a number of a job")
    return value


def entry_of(node: Mapping[str, Any], ranks: list[dict[str, Any]]) -> Entry:
    """Of a digest's node and its ranks. Raises as `checked`."""
    return checked(
        {
            **{name: node[name] for name in ("run_id", "host", "nodes", "world_size")},
            "node_rank": node.get("node_rank"),
            "url": node.get("url", ""),
            "rendezvous": node.get("rendezvous", ""),
            "gone": bool(node.get("leaving")) or node.get("returncode") is not None,
            "ranks": [[rank["placement"][name] for name in _PARTS] for rank in ranks],
        }
    )


def digest_of(entry: Entry, every_seconds: float) -> dict[str, Any]:
    """A digest made of what the roster has of a node."""
    own = {name: entry[name] for name in ("run_id", "host", "node_rank", "url", "nodes", "rendezvous")}
    node = {
        **_blank(NodeDigest),
        **own,
        "world_size": entry["world_size"],
        "ranks": len(entry["ranks"]),
        "phase": "launch",
        "marked_phase": "launch",
        "every_seconds": every_seconds,
    }
    shared = {name: entry[name] for name in ("world_size", "host")} | {"node_rank": entry["node_rank"] or 0}
    ranks = [
        {
            **_blank(RankDigest),
            "rank": place[0],
            "run_id": entry["run_id"],
            "alive": True,
            "moved": [],
            "placement": {**shared, **dict(zip(_PARTS, place, strict=True))},
        }
        for place in entry["ranks"]
    ]
    return {"schema": SCHEMA, "node": node, "ranks": ranks, "frames": {}, "commands": {}}


def _blank(kind: type[Any]) -> dict[str, Any]:
    """What such a fact must have, as of a node or rank of which nothing is known."""
    return {one.name: _BLANK.get(str(one.type)) for one in fields(kind) if one.default is MISSING}


# --- the job hub's


class Roster:
    """What the others need to find each hub. `version` changes with what they are sent."""

    def __init__(self) -> None:
        self.hubs: dict[str, Entry] = {}  # by run id
        self.sent: list[Entry] = []
        self.version = 0

    def note(self, entry: Entry) -> list[str]:
        """What a hub reports of itself. Returns the run ids of those that were at its place before it and have
        left, which are forgotten: a job that is restarted for weeks has had hundreds."""
        run_id, replaced = entry["run_id"], []
        known = self.hubs.get(run_id)
        if known == entry:
            return []
        if known is None:
            place = (entry["host"], entry["node_rank"])
            for other in list(self.hubs.values()):
                if other["gone"] and (other["host"], other["node_rank"]) == place:
                    self.hubs.pop(other["run_id"], None)
                    replaced.append(other["run_id"])
        self.hubs[run_id] = entry
        self.renew()
        return replaced

    def renew(self) -> None:
        """A new version only where that changes what others are sent: at the start of a large job each digest
        is a new entry."""
        entries = sorted(self.hubs.values(), key=_by_node_rank)
        if len(entries) > WHOLE_ROSTER:
            entries = [entry for entry in entries if not entry["gone"]][:_CANDIDATES]
        if entries != self.sent:
            self.sent = entries
            self.version += 1

    @property
    def is_over(self) -> bool:
        """All nodes that report have reported that their command ended."""
        return all(entry["gone"] for entry in self.hubs.values())


def _by_node_rank(entry: Entry) -> tuple[bool, int]:
    return entry["node_rank"] is None, entry["node_rank"] or 0


# --- every hub's


class KnownHubs:
    """The other hubs as far as this one knows of them. `port` is where this one listens, `peer_port` where another
    does that names no port of its own."""

    def __init__(self, hub: NodeHub, nodes: JobNodes, scheme: str, port: int, peer_port: int) -> None:
        if nodes.hosts and not nodes.address:
            nodes = replace(nodes, address=nodes.hosts[0])
        address = nodes.address or ""
        self.nodes = nodes
        self.me = Identity(
            hub.run_id,
            hub.host,
            hub.version,
            node_rank=nodes.node_rank,
            nodes=nodes.count,
            host_names=nodes.hosts,
            url=url_of(scheme, address, port) if address and nodes.node_rank == 0 else "",
            rendezvous=f"{address}:{nodes.port}" if address and nodes.port else address,
        )
        self.entries: list[Entry] = []
        self.seen: list[Any] = []  # the hub that sent them, and its version of the roster
        self._scheme = scheme
        self._peer_port = peer_port

    def hear(self, answer: dict[str, Any], heard_from: str, url: str) -> None:
        """The roster of a job hub's answer, where it has one. Raises as `checked`."""
        if "roster" in answer:
            self.entries = [
                self.placed(checked(entry), heard_from, url) for entry in answer["roster"] if entry["run_id"]
            ]
            self.seen = [heard_from, answer["roster_version"]]

    def is_of_other_job(self, document: dict[str, Any], job_id: str) -> bool:
        """Parts of one job may have ids of their own (Slurm's heterogeneous jobs), and ports that differ are a
        mistake to be reported: another job has both."""
        theirs = str(document.get("job_id") or "")
        there = port_of(str(document["node"].get("rendezvous") or ""))
        here = port_of(self.me.rendezvous)
        return bool(theirs and job_id and theirs != job_id and there and here and there != here)

    def placed(self, entry: Entry, heard_from: str, url: str) -> Entry:
        """A hub does not know where others reach it: the job hub's address is the one that was just used, and
        it knows ours."""
        if entry["run_id"] == self.me.run_id and entry["url"]:
            self.me = replace(self.me, url=str(entry["url"]))
        if entry["run_id"] == heard_from and url != "self" and not entry["url"]:
            return {**entry, "url": url}
        return entry

    def candidates(self, *, met: bool) -> list[str]:
        """Where the job hub may be, best first. A hub that never `met` another has only the addresses that its
        launcher names."""
        nodes, found = self.nodes, []
        # of node 0 its own: another that calls itself node 0 by mistake is found by asking
        if nodes.address:
            found.append(url_of(self._scheme, nodes.address, self._port_of_first() or self._peer_port))
        if nodes.node_rank == 0:
            found.append("self")
        if not met:
            hosts = zip(nodes.hosts, nodes.hub_ports or [None] * len(nodes.hosts), strict=False)
            found += [url_of(self._scheme, host, port or self._peer_port) for host, port in hosts if host][:3]
        living = sorted((entry for entry in self.entries if not entry.get("gone")), key=_by_node_rank)
        found += ["self" if entry["run_id"] == self.me.run_id else str(entry["url"]) for entry in living]
        return list(dict.fromkeys(filter(None, found)))

    def _port_of_first(self) -> int | None:
        """Of node 0's hub, where the user's list of nodes names it: not all of them need have this one's."""
        nodes = self.nodes
        listed = nodes.hub_ports and nodes.hosts and nodes.hosts[0] == nodes.address
        return nodes.hub_ports[0] if listed else None


def url_of(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def port_of(address: str) -> str:
    """
    >>> port_of("10.0.0.1:29500"), port_of("gpu1"), port_of("fd00::1")
    ('29500', '', '')
    """
    host, _, port = address.rpartition(":")
    return port if host and (":" not in host or host.endswith("]")) and port.isdigit() else ""
