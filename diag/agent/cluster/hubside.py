"""The part of a hub that has to do with other nodes: joining them, and what outputs ask about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from diag.agent.cluster.digest import Collector
from diag.agent.cluster.jobdump import nodes_json
from diag.agent.cluster.jobhub import JobHub
from diag.agent.cluster.member import Member
from diag.agent.cluster.post import Sender
from diag.agent.node_hub import NodeHub
from diag.launch.launchers.nodes import JobNodes, nodes_of_rank
from diag.launch.service_discovery import Target
from diag.model import Placement
from diag.outputs.view.view import ClusterFacts, ranks_json

if TYPE_CHECKING:
    from diag.agent.rank_finder import Found
    from diag.settings import Settings


class Membership:
    """A part of each hub: of one that has not joined others it has nothing to report. See ClusterView."""

    def __init__(self, hub: NodeHub, settings: Settings, talk: Callable[[str], None]) -> None:
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
                alone = "; this node is judged on its own" if nodes.count < 2 else ""
                self._talk(
                    f"diag: invalid --nodes (DIAG_NODES): {line}; expected host[:port],... or @FILE{alone}"
                )
        if self.member is not None or nodes.count < 2 or self._settings.nodes == "off":
            return
        # not the hub's, which may be generated here: other nodes have another
        token = self._settings.token
        if not token or not self._settings.http:
            missing = (
                "set the same DIAG_TOKEN on every node (a random string, generated once in the job script)"
                if not token
                else "leave out --no-http (DIAG_HTTP, http)"
            )
            self._talk(
                f"diag: {nodes.count} nodes, each watched on its own: {missing}, and their hubs will judge the job "
                "together"
            )
            return
        port = self.open_port()
        if port is None:
            return
        settings = self._settings
        if not settings.port:
            self._talk(
                "diag: with port 0 the hubs of other nodes cannot find this one: give all nodes the same port (DIAG_PORT)"
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
        hubs = []
        for entry in self.member.roster if self.member is not None else ():
            if entry["url"] and not entry.get("gone") and entry["run_id"] != self._hub.run_id:
                scheme, _, place = str(entry["url"]).partition("://")
                hubs.append(Target(place, self._hub.job_id, str(entry["host"]), str(entry["run_id"]), scheme))
        return tuple(hubs)

    @property
    def takes_digests(self) -> bool:
        return self.member is not None

    def take_digest(self, document: dict[str, Any], address: str) -> dict[str, Any] | None:
        return self.member.take(document, address) if self.member is not None else None

    def refuse_digest(self, address: str) -> None:
        if self.member is not None:
            self.member.refuse(address, "another token")

    def nodes(self) -> list[dict[str, Any]]:
        member, judging = self.member, self._judging
        if member is None or judging is None:
            return nodes_json(None, member.roster) if member is not None else []
        with judging.lock:
            return nodes_json(judging.engine, member.roster)

    def facts(self) -> ClusterFacts | None:
        member, judging = self.member, self._judging
        if member is None:
            return None
        expected, heard, findings = judging.facts() if judging is not None else (0, 0, ())
        return ClusterFacts(
            member.is_job_hub,
            expected,
            heard,
            findings,
            dict(member.digests),
            dict(member.digest_bytes),
            member.round_trip,
        )

    def other_ranks(self) -> list[dict[str, Any]]:
        judging = self._judging
        if judging is None:
            return []
        with judging.lock:
            return ranks_json(judging.engine)

    @property
    def _judging(self) -> JobHub | None:
        return self.member.judging if self.member is not None else None

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
    """What the launcher gave the rank, in torchrun's variables: the allow-list of variables has not all of it."""
    given = {"RANK": place.rank, "LOCAL_RANK": place.local_rank, "WORLD_SIZE": place.world_size}
    if place.local_world_size:
        given |= {"LOCAL_WORLD_SIZE": place.local_world_size, "GROUP_RANK": place.node_rank}
    return {name: str(value) for name, value in given.items()}
