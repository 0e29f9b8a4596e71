"""Nodes without machines: an engine each, told records or facts; their digests, over JSON as on the wire, and
the job's engine.

`JobOfNodes` is what hubs and their threads do, in told time: a digest of each node every five seconds, every
three with stacks while somebody wants a closer look, and the verdict back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from diag.agent.cluster.digest import Collector, DigestMaker
from diag.agent.cluster.jobhub import _is_for
from diag.agent.cluster.roster import Identity
from diag.detectors import make_detectors
from diag.detectors.cluster import make_job_detectors
from diag.detectors.hang import HangDetector, wants_closer_look
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.model import Change, Finding, Record
from diag.model.observations import JobVerdict, Observation
from diag.sources import digest as digest_source
from diag.sources.parsers import PARSERS

__all__ = ["JobOfNodes", "NodeEngine"]

CALM_SECONDS, CLOSER_SECONDS = 5.0, 3.0


class NodeEngine:
    """One node as its hub has it."""

    def __init__(
        self, number: int | None, nodes: int = 2, host: str = "", run_id: str = "", **identity: Any
    ) -> None:
        detectors = make_detectors()
        self.hang = next(one for one in detectors if isinstance(one, HangDetector))
        self.collector = Collector()
        self.collector.joined = True
        self.engine = Engine(PARSERS, [*detectors, self.collector], PRECEDENCE)
        self.maker = DigestMaker(self.collector)
        self.host = host or f"node-{number}"
        self.me = Identity(
            run_id or f"run-{self.host}",
            self.host,
            "0",
            f"http://10.0.0.{(number or 0) + 1}:9095",
            number,
            nodes,
            **{"rendezvous": "10.0.0.1:29500", **identity},
        )
        self.sizes: list[int] = []
        self.changes: list[Change] = []

    def tell(self, at: float, *facts: Observation) -> None:
        self.changes += self.engine.advance(at)
        for fact in facts:
            self.engine._dispatch(fact)

    def digest(
        self, at: float, detail: int = 0, every: float = CALM_SECONDS, **changes: Any
    ) -> dict[str, Any]:
        """As it arrives: JSON."""
        gpus = self.hang.gpu_states(self.engine.now, self.engine.job)
        document = self.maker.make(self.engine, self.me, at, every, gpus, detail=detail, **changes)
        text = json.dumps(document, separators=(",", ":"))
        self.sizes.append(len(text))
        return json.loads(text)  # type: ignore[no-any-return]


class JobOfNodes:
    """The job hub's engine and the nodes that report to it. `told_back`: nodes hear the verdict."""

    def __init__(self, nodes: Sequence[NodeEngine], *, told_back: bool = True) -> None:
        self.nodes = list(nodes)
        self.engine = Engine(PARSERS, make_job_detectors(), PRECEDENCE)
        self.changes: list[Change] = []
        self.silent: set[str] = set()  # hosts that do not report any more
        self._next = {node.host: 0.0 for node in nodes}
        self._told_back = told_back

    def feed(self, node: NodeEngine, record: Record) -> None:
        self.advance(record.at)
        node.changes += node.engine.feed(record)

    def advance(self, now: float) -> None:
        """All digests that are due until then, each at its own time."""
        due = [node for node in self.nodes if node.host not in self.silent]
        while due:
            node = min(due, key=lambda one: self._next[one.host])
            at = self._next[node.host]
            if at == 0.0 or now - at > 600.0:  # the first one, or the recording has a gap
                self._next[node.host] = now + 0.3 * self.nodes.index(node)
                continue
            if at > now:
                break
            self.report(node, at)
        self.changes += self.engine.advance(now)

    def report(self, node: NodeEngine, at: float, **changes: Any) -> None:
        node.changes += node.engine.advance(at)
        self.changes += self.engine.advance(at)
        closer = wants_closer_look(at, self.engine.job)
        detail = int(closer or wants_closer_look(node.engine.now, node.engine.job))
        every = CLOSER_SECONDS if closer else CALM_SECONDS
        document = node.digest(at, detail, every, **changes)
        self.changes += self.engine.feed(Record(digest_source.SOURCE, document, host=node.host, at=at))
        self._next[node.host] = at + every
        if self._told_back:
            findings = tuple(
                one for one in self.engine.active() if _is_for(one, node is self.nodes[0], self.nodes[0].host)
            )
            fact = JobVerdict(None, self.nodes[0].host, len(self.nodes), len(self.nodes), findings)
            told = json.loads(json.dumps(digest_source.verdict(fact, self.engine.now)))
            node.changes += node.engine.feed(
                Record(digest_source.VERDICT_SOURCE, told, host=self.nodes[0].host, at=at + 1e-3)
            )

    def finish(self, now: float) -> None:
        """The commands have ended. What a hub says last follows its next check, one second later at most."""
        for _ in range(2):
            now += 1.0
            self.advance(now)
            for number, node in enumerate(self.nodes):
                if node.host not in self.silent:
                    self.report(node, now + 1e-3 * number)
            self.changes += self.engine.finish()
        for node in self.nodes:
            node.changes += node.engine.finish()

    def findings(self) -> list[Finding]:
        return self.engine.active()

    def the(self, finding_id: str) -> Finding:
        return next(finding for finding in self.findings() if finding.id == finding_id)

    def hang(self) -> Finding:
        """Who holds the job up, whether it is known to be for good or not."""
        return next(one for one in self.findings() if one.id in ("hang", "held-up"))

    def ids(self) -> list[str]:
        return [finding.id for finding in self.findings()]


def split(records: Iterable[Record], log_node: int = 0) -> Iterable[tuple[list[int], Record]]:
    """A journal of one machine as those of two: even ranks on the first, odd ones on the second. What is no
    rank's is on both, but the log, of which each line is printed on one node."""
    for record in records:
        if record.rank is not None:
            yield [record.rank % 2], record
        elif record.source == "output":
            yield [log_node], record
        else:
            yield [0, 1], record
