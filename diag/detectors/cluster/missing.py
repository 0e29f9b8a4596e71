"""The nodes do not come together: who is there, and who is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding
from diag.model import Evidence, Finding, NotChecked
from diag.state.cluster import NodeState
from diag.state.view import JobView
from diag.text.units import format_ranks, format_seconds

# Ours: images are pulled and pods scheduled one after the other; torchrun itself waits for minutes.
_PATIENCE_SECONDS = 90.0
_EARLY = ("launch", "rendezvous")


class RendezvousDetector(Detector):
    """Nodes have waited for each other for 90 s, and some never came. One on which the job runs without diag is reported
    here only while the job waits; later it is `not checked`."""

    name = "rendezvous-failure"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        nodes = [node for node in job.cluster.current() if not node.gone]
        expected = job.cluster.expected()
        if not nodes or len(nodes) >= expected or any(node.digest.phase not in _EARLY for node in nodes):
            return
        if any(rank.alive and rank.placement.launcher == "torchrun" for rank in job.ranks.values()):
            return  # it starts ranks when all nodes have met: one that is not heard has no diag
        since = max(node.first_at for node in nodes)
        if now - since < _PATIENCE_SECONDS:
            return
        missing = _missing(nodes, expected)
        named = f": {missing}" if missing else ""
        where = next((node.digest.rendezvous for node in nodes if node.digest.rendezvous), "")
        yield finding(
            self.name,
            "nodes_missing",
            since=since,
            summary=f"{len(nodes)} of {expected} nodes have been waiting for each other for {format_seconds(now - since)}"
            f"{f' at {where}' if where else ''}; {expected - len(nodes)} never joined{named}",
            words={"where": where or "the way"},
            evidence=tuple(_waits(node) for node in nodes[:6]),
        )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        nodes = job.cluster.current()
        expected = job.cluster.expected()
        if nodes and len(nodes) < expected and any(node.digest.phase not in _EARLY for node in nodes):
            missing = _missing(nodes, expected)
            yield NotChecked(
                f"{expected - len(nodes)} of {expected} nodes" + (f" ({missing})" if missing else ""),
                "no diag reports from there",
                "start the job under `diag run` there too, with the same DIAG_TOKEN and a DIAG_PORT that the nodes can reach",
            )


def _waits(node: NodeState) -> Evidence:
    return Evidence("digest", f"{node.name} waits in phase {node.digest.phase}", node.first_at)


def _missing(nodes: list[NodeState], expected: int) -> str:
    """ "node 2 (gpu-3)": by their numbers, where all that came have one."""
    numbers = [node.digest.node_rank for node in nodes]
    if None in numbers:
        return ""
    absent = [number for number in range(expected) if number not in numbers]
    names = next((node.digest.host_names for node in nodes if node.digest.host_names), ())
    if len(absent) > 6 or not names:
        return format_ranks(absent, noun="node")
    named = {number: f" ({name})" for number, name in enumerate(names) if name}
    return ", ".join(f"node {number}{named.get(number, '')}" for number in absent)
