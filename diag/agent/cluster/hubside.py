"""The part of a hub that has to do with other nodes: joining them, and what outputs ask about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from diag.agent.cluster.collector import Collector
from diag.agent.cluster.jobdump import nodes_json
from diag.agent.cluster.member import Member, NodeHub
from diag.agent.cluster.post import Sender
from diag.launch.launchers.nodes import JobNodes, nodes_of_rank
from diag.launch.service_discovery import Target
from diag.model import Placement
from diag.outputs.view.view import ClusterFacts, ranks_json

if TYPE_CHECKING:
    from diag.agent.rank_finder import Found
    from diag.launch.rundir import RunDir
    from diag.settings import Settings


class OwnHub(NodeHub, Protocol):
    """What it needs of the hub that holds it."""

    @property
    def run_dir(self) -> RunDir | None: ...
    @property
    def clock(self) -> Callable[[], float]: ...


class Membership:
    """A part of each hub: of one that has not joined others it has nothing to tell. See ClusterView."""

    def __init__(self, hub: OwnHub, settings: Settings, talk: Callable[[str], None]) -> None:
        self.member: Member | None = None  # of the hubs of all nodes, once this one has joined them
        self.open_port: Callable[[], int | None] = lambda: None  # to them; None: there is none
        self.other_targets: Callable[[], Sequence[Target]] = tuple  # the other hubs, where they are known
        self.collector = Collector()
        self.of_several = False  # nodes: their launchers wait for each other before there are ranks
        self._hub = hub
        self._settings = settings
        self._talk = talk
        self._asked_to_join = False

    def join(self, nodes: JobNodes) -> None:
        """Report to the job hub, and be it when asked. Without a token, or for a job of one node, nothing is
        joined."""
        self.of_several |= nodes.count > 1
        if self.member is None and self._settings.nodes not in ("auto", "off"):
            for line in nodes.bad:
                alone = "; this node is judged by itself" if nodes.count < 2 else ""
                self._talk(
                    f"diag: --nodes (DIAG_NODES) cannot be right: {line}; it is host[:port],... or @FILE{alone}"
                )
        if self.member is not None or nodes.count < 2 or self._settings.nodes == "off":
            return
        token = self._settings.token  # not `self.token`, which may be made up here: other nodes have another
        if not token or not self._settings.http:
            missing = (
                "set the same DIAG_TOKEN on all of them (a random word, made once in the job script)"
                if not token
                else "leave out --no-http (DIAG_HTTP, http)"
            )
            self._talk(
                f"diag: {nodes.count} nodes, and each is watched by itself: {missing} and their hubs judge the job "
                "together"
            )
            return
        port = self.open_port()
        if port is None:
            return
        settings = self._settings
        if not settings.port:
            self._talk(
                "diag: with port 0 the hubs of other nodes do not find this one: give all nodes the same port (DIAG_PORT)"
            )
        scheme = "https" if settings.tls_cert else "http"
        hub = self._hub
        self.member = Member(
            hub,
            nodes,
            port,
            Sender(token, settings.tls_ca or settings.tls_cert),
            self.collector,
            self._talk,
            clock=hub.clock,
            run_dir=hub.run_dir.path if hub.run_dir else None,
            scheme=scheme,
            peer_port=settings.port or port,
        )
        self.other_targets = self._targets_of_nodes
        self.member.start()

    def rank_found(self, found: Found) -> None:
        """Its environment may be the first to tell of other nodes."""
        if self._settings.nodes == "off" or not found.distributed:
            return
        nodes = nodes_of_rank({**found.variables, **_identity(found.placement)})
        if nodes is None:
            return
        if self.member is None and nodes.count > 1 and not self._asked_to_join:
            self._asked_to_join = True
            self.join(nodes)
        if self.member is not None:
            self.member.learn(nodes, found.placement.local_world_size)

    def _targets_of_nodes(self) -> tuple[Target, ...]:
        """The other hubs that live, as the roster tells where they answer."""
        member = self.member
        if member is None:
            return ()
        entries = [
            entry
            for entry in member.roster
            if entry["url"] and not entry.get("gone") and entry["run_id"] != self._hub.run_id
        ]
        return tuple(
            Target(
                str(entry["url"]).partition("://")[2],
                self._hub.job_id,
                str(entry["host"]),
                str(entry["run_id"]),
                str(entry["url"]).partition("://")[0],
            )
            for entry in entries
        )

    @property
    def takes_digests(self) -> bool:
        """See ClusterView."""
        return self.member is not None

    def take_digest(self, document: dict[str, Any], address: str) -> dict[str, Any] | None:
        """See ClusterView."""
        return self.member.take(document, address) if self.member is not None else None

    def refuse_digest(self, address: str) -> None:
        """See ClusterView."""
        if self.member is not None:
            self.member.refuse(address, "another token")

    def nodes(self) -> list[dict[str, Any]]:
        """See ClusterView."""
        member = self.member
        if member is None:
            return []
        job_hub = member.job_hub if member.is_job_hub else None
        if job_hub is None:
            return nodes_json(None, member.roster)
        with job_hub.lock:
            return nodes_json(job_hub.engine, member.roster)

    def facts(self) -> ClusterFacts | None:
        """See ClusterView."""
        member = self.member
        if member is None:
            return None
        expected = heard = 0
        findings: tuple[tuple[str, str], ...] = ()
        if member.job_hub is not None and member.is_job_hub:
            expected, heard, findings = member.job_hub.facts()
        counts = member.counts
        return ClusterFacts(
            member.is_job_hub,
            expected,
            heard,
            findings,
            dict(counts.digests),
            dict(counts.digest_bytes),
            member.round_trip,
        )

    def other_ranks(self) -> list[dict[str, Any]]:
        """See ClusterView."""
        job_hub = self.member.job_hub if self.member is not None and self.member.is_job_hub else None
        if job_hub is None:
            return []
        with job_hub.lock:
            return ranks_json(job_hub.engine)

    # -- for the hub that holds it ------------------------------------------------------------------------

    @property
    def detail_wanted(self) -> bool:
        """The job hub suspects the job."""
        return self.member is not None and self.member.detail_wanted

    def hurry(self) -> None:
        """Something happened that the job hub should hear of now."""
        if self.member is not None:
            self.member.hurry()

    def leave(self) -> None:
        if self.member is not None:
            self.member.leave()

    def is_unexplained(self) -> bool:
        """A rank died here, and the job hub names none: what this node knows by itself is better than
        nothing."""
        engine = self._hub.engine
        verdict = engine.job.cluster.verdict
        named = verdict is not None and any(finding.id == "rank-died" for finding in verdict.findings)
        return not named and any(finding.id == "rank-died" for finding in engine.withheld.values())


def _identity(place: Placement) -> dict[str, str]:
    """What the launcher told the rank, in torchrun's words: the allow-list of variables has not all of it."""
    told = {"RANK": place.rank, "LOCAL_RANK": place.local_rank, "WORLD_SIZE": place.world_size}
    if place.local_world_size:
        told |= {"LOCAL_WORLD_SIZE": place.local_world_size, "GROUP_RANK": place.node_rank}
    return {name: str(value) for name, value in told.items()}
