"""The nodes were not started alike: one number twice, different counts of nodes or ranks, different ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, row
from diag.model import Evidence, Finding
from diag.model.observations import NodeDigest
from diag.state.cluster import NodeState
from diag.state.view import JobView

_EARLY = ("launch", "rendezvous")
_DIFFERENCES = ("nnodes_differ", "nproc_differ", "port_differs")


class LaunchMismatchDetector(Detector):
    """Counts of ranks a node may differ by intent: that is reported only while the job does not come together."""

    name = "launch-mismatch"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        nodes = [node for node in job.cluster.current() if not node.gone and not node.is_silent(now)]
        if len(nodes) < 2:
            return
        numbers = Counter(node.digest.node_rank for node in nodes if node.digest.node_rank is not None)
        for number in [number for number, count in numbers.items() if count > 1][:1]:
            same = [node for node in nodes if node.digest.node_rank == number]
            hosts = " and ".join(node.digest.host for node in same[:4])
            yield _finding(
                "duplicate_node_rank",
                f"{hosts} were all started as node {number}",
                same,
            )
            return
        if any(node.digest.phase in _EARLY for node in nodes):
            # torchrun counts what each node brings, and starts ranks when all have met: unlike counts are no
            # trouble there.
            met = {rank.node for rank in job.ranks.values() if rank.placement.launcher == "torchrun"}
            yield from islice(_differences(nodes, met), 1)


def _differences(nodes: list[NodeState], met: Collection[str]) -> Iterator[Finding]:
    for cause in _DIFFERENCES:
        by_value: dict[object, list[NodeState]] = {}
        for node in nodes:
            value = _value(cause, node, met)
            if value is not None:
                by_value.setdefault(value, []).append(node)
        if len(by_value) > 1:
            values = "; ".join(
                f"{value} on {', '.join(node.name for node in there[:3])}"
                + (" ..." if len(there) > 3 else "")
                for value, there in sorted(by_value.items(), key=lambda item: -len(item[1]))
            )
            summary = f"the nodes were started with different values of the {row('launch-mismatch', cause)['what']}: {values}"
            yield _finding(cause, summary, min(by_value.values(), key=len))


def _value(cause: str, node: NodeState, met: Collection[str]) -> object:
    """What this node was started with; None where that is not known or does not matter."""
    if cause == "nnodes_differ":
        return node.digest.nodes
    if cause == "nproc_differ":
        return None if node.digest.run_id in met else node.digest.local_world_size or None
    return node.digest.rendezvous.rpartition(":")[2] or None


def _finding(cause: str, summary: str, nodes: list[NodeState]) -> Finding:
    return finding(
        "launch-mismatch",
        cause,
        summary=summary,
        since=max(node.first_at for node in nodes),
        evidence=[Evidence("digest", _started(node.digest), node.first_at) for node in nodes[:6]],
    )


def _started(node: NodeDigest) -> str:
    ranks = f"rendezvous {node.rendezvous or '?'}, {node.local_world_size or '?'} ranks"
    return f"{node.host}: node {node.node_rank} of {node.nodes}, {ranks}"
