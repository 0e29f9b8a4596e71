"""The nodes were not started alike: one number twice, different counts of nodes or ranks, different ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import islice

from diag.detectors.contract import Detector
from diag.model import JOB, Confidence, Evidence, Finding, Severity
from diag.state.cluster import NodeState
from diag.state.view import JobView

_EARLY = ("launch", "rendezvous")


class LaunchMismatchDetector(Detector):
    """Meaning: what the launchers of two nodes were told does not fit together: the job hangs or fails at the
    rendezvous.

    Evidence: number of this node, count of nodes, ranks a node and rendezvous port, as each node's command
    line and environment give them.

    What to do: give all nodes the same values, and each its own node rank.

    False alarms: none known. Counts of ranks a node may differ by intent: that is said only while the job
    does not come together.
    """

    name = "launch-mismatch"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        nodes = [
            node
            for node in job.cluster.current()
            if not node.gone and now - node.heard_at <= node.silent_after()
        ]
        if len(nodes) < 2:
            return
        numbers = Counter(node.digest.node_rank for node in nodes if node.digest.node_rank is not None)
        for number, count in numbers.items():
            if count > 1:
                same = [node for node in nodes if node.digest.node_rank == number]
                hosts = " and ".join(node.digest.host for node in same[:4])
                yield _finding(
                    "duplicate_node_rank",
                    f"{hosts} were all started as node {number}",
                    same,
                    "Give each node its own --node_rank / NODE_RANK: 0 on the node of MASTER_ADDR, then 1, 2, ... (Kubernetes: "
                    "from JOB_COMPLETION_INDEX; Slurm: SLURM_NODEID).",
                )
                return
        if not any(node.digest.phase in _EARLY for node in nodes):
            return
        # torchrun counts what each node brings, and starts ranks when all have met: unlike counts are no
        # trouble there.
        met = {rank.node for rank in job.ranks.values() if rank.placement.launcher == "torchrun"}
        yield from islice(self._differences(nodes, met), 1)

    @staticmethod
    def _differences(nodes: list[NodeState], met: Collection[str]) -> Iterator[Finding]:
        yield from _differ(
            nodes,
            "nnodes_differ",
            "count of nodes",
            lambda node: node.digest.nodes,
            "Give all nodes the same --nnodes / NNODES.",
        )
        yield from _differ(
            nodes,
            "nproc_differ",
            "count of ranks on a node",
            lambda node: None if node.digest.run_id in met else node.digest.local_world_size or None,
            "Give all nodes the same --nproc_per_node / NPROC_PER_NODE, and as many GPUs.",
        )
        yield from _differ(
            nodes,
            "port_differs",
            "rendezvous port",
            lambda node: node.digest.rendezvous.rpartition(":")[2] or None,
            "Give all nodes the same MASTER_ADDR and MASTER_PORT (--master_port, --rdzv_endpoint).",
        )


def _differ(
    nodes: list[NodeState], cause: str, what: str, value: Callable[[NodeState], object], advice: str
) -> Iterator[Finding]:
    by_value: dict[object, list[NodeState]] = {}
    for node in nodes:
        told = value(node)
        if told is not None:
            by_value.setdefault(told, []).append(node)
    if len(by_value) < 2:
        return
    words = "; ".join(
        f"{told} on {', '.join(node.name for node in there[:3])}" + (" ..." if len(there) > 3 else "")
        for told, there in sorted(by_value.items(), key=lambda item: -len(item[1]))
    )
    fewest = min(by_value.values(), key=len)
    yield _finding(cause, f"the nodes were told different things as {what}: {words}", fewest, advice)


def _finding(cause: str, summary: str, nodes: list[NodeState], advice: str) -> Finding:
    return Finding(
        id="launch-mismatch",
        subject=JOB,
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        cause=cause,
        summary=summary,
        advice=advice,
        since=max(node.first_at for node in nodes),
        evidence=tuple(
            Evidence(
                "digest",
                f"{node.digest.host}: node {node.digest.node_rank} of {node.digest.nodes}, rendezvous "
                f"{node.digest.rendezvous or '?'}, {node.digest.local_world_size or '?'} ranks",
                node.first_at,
            )
            for node in nodes[:6]
        ),
    )
