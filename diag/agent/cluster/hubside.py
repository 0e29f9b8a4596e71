"""The part of a hub that has to do with other nodes: joining them, and what outputs ask about them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from diag.agent.cluster.collector import Collector
from diag.agent.cluster.jobdump import nodes_json
from diag.agent.cluster.member import Member
from diag.agent.cluster.post import Sender
from diag.detectors.hang import HangDetector
from diag.engine.engine import Engine
from diag.launch.launchers.nodes import JobNodes, nodes_of_rank
from diag.launch.service_discovery import Target
from diag.model import Placement, Record
from diag.outputs.view.view import ClusterFacts, ranks_json

if TYPE_CHECKING:
    from diag.agent.rank_finder import Found
    from diag.launch.rundir import RunDir
    from diag.settings import Settings

__all__ = ["HubAmongNodes"]


class HubAmongNodes(ABC):
    """The base of `Hub`: what is declared here is the hub's own, and set by it."""

    settings: Settings
    run_dir: RunDir | None
    engine: Engine
    lock: threading.RLock
    host: str
    run_id: str
    version: str
    job_id: str
    token: str | None
    environment: dict[int, dict[str, str]]
    _mode: str
    _talk: Callable[[str], None]
    _clock: Callable[[], float]
    _hang: HangDetector

    def __init__(self) -> None:
        self.member: Member | None = None  # of the hubs of all nodes, once this one has joined them
        self.open_to_nodes: Callable[[], int | None] = lambda: (
            None
        )  # opens a port to them; None: there is none
        self.other_targets: Callable[[], Sequence[Target]] = (
            tuple  # the other hubs of the job, where they are known
        )
        self._collector = Collector()
        self._asked_to_join = False
        self._of_several = False  # nodes: their launchers wait for each other before there are ranks

    @abstractmethod
    def put(self, record: Record) -> None:
        """Hand over a record from any thread."""

    def join(self, nodes: JobNodes) -> None:
        """Report to the job hub, and be it when asked. Without a token, or for a job of one node, nothing is
        joined."""
        self._of_several |= nodes.count > 1
        if self.member is None and self.settings.nodes not in ("auto", "off"):
            for line in nodes.bad:
                alone = "; this node is judged by itself" if nodes.count < 2 else ""
                self._talk(
                    f"diag: --nodes (DIAG_NODES) cannot be right: {line}; it is host[:port],... or @FILE{alone}"
                )
        if self.member is not None or nodes.count < 2 or self.settings.nodes == "off":
            return
        token = self.settings.token  # not `self.token`, which may be made up here: other nodes have another
        if not token or not self.settings.http:
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
        port = self.open_to_nodes()
        if port is None:
            return
        settings = self.settings
        if not settings.port:
            self._talk(
                "diag: with port 0 the hubs of other nodes do not find this one: give all nodes the same port (DIAG_PORT)"
            )
        scheme = "https" if settings.tls_cert else "http"
        self.member = Member(
            self,
            nodes,
            port,
            Sender(token, settings.tls_ca or settings.tls_cert),
            self._collector,
            self._talk,
            clock=self._clock,
            run_dir=self.run_dir.path if self.run_dir else None,
            scheme=scheme,
            peer_port=settings.port or port,
        )
        self.other_targets = self._targets_of_nodes
        self.member.start()

    def _learn_nodes(self, found: Found) -> None:
        if self.settings.nodes == "off" or not found.distributed:
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
            if entry["url"] and not entry.get("gone") and entry["run_id"] != self.run_id
        ]
        return tuple(
            Target(
                str(entry["url"]).partition("://")[2],
                self.job_id,
                str(entry["host"]),
                str(entry["run_id"]),
                str(entry["url"]).partition("://")[0],
            )
            for entry in entries
        )

    @property
    def takes_digests(self) -> bool:
        """See HubView."""
        return self.member is not None

    def take_digest(self, document: dict[str, Any], address: str) -> dict[str, Any] | None:
        """See HubView."""
        return self.member.take(document, address) if self.member is not None else None

    def refuse_digest(self, address: str) -> None:
        """See HubView."""
        if self.member is not None:
            self.member.refuse(address, "another token")

    def nodes(self) -> list[dict[str, Any]]:
        """See HubView."""
        member = self.member
        if member is None:
            return []
        job_hub = member.job_hub if member.is_job_hub else None
        if job_hub is None:
            return nodes_json(None, member.roster)
        with job_hub.lock:
            return nodes_json(job_hub.engine, member.roster)

    def cluster_facts(self) -> ClusterFacts | None:
        """See HubView."""
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
        """See HubView."""
        job_hub = self.member.job_hub if self.member is not None and self.member.is_job_hub else None
        if job_hub is None:
            return []
        with job_hub.lock:
            return ranks_json(job_hub.engine)

    def _is_unexplained(self) -> bool:
        """A rank died here, and the job hub names none: what this node knows by itself is better than
        nothing."""
        verdict = self.engine.job.cluster.verdict
        told = verdict is not None and any(finding.id == "rank-died" for finding in verdict.findings)
        return not told and any(finding.id == "rank-died" for finding in self.engine.alone.values())

    @property
    def closer(self) -> bool:
        return self._mode == "closer"

    def gpu_states(self) -> dict[int, str]:
        with self.lock:
            return self._hang.gpu_states(self.engine.now, self.engine.job)


def _identity(place: Placement) -> dict[str, str]:
    """What the launcher told the rank, in torchrun's words: the allow-list of variables has not all of it."""
    told = {"RANK": place.rank, "LOCAL_RANK": place.local_rank, "WORLD_SIZE": place.world_size}
    if place.local_world_size:
        told |= {"LOCAL_WORLD_SIZE": place.local_world_size, "GROUP_RANK": place.node_rank}
    return {name: str(value) for name, value in told.items()}
