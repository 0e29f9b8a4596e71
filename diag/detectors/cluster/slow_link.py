"""A node whose network answers late, beside the others: each step waits for what it sends and gets."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding
from diag.model import Evidence, Finding, Severity
from diag.model.observations import NodeDigest, RankDigest
from diag.state.cluster import NodeState
from diag.state.view import JobView
from diag.text.units import format_ranks, format_ratio, format_seconds

_SAMPLES = 5  # exchanges in a row, all of them late: 25 s at the usual pace
# Ours: within a data centre a connection takes 0.1-0.5 ms, over a routed network some ms.
_RATIO, _LEAST_SECONDS = 10.0, 0.005
_MOST_LOOKS = 512
# Below this share of samples in which ranks wait for each other the link costs the job nothing that one would
# see.
_WAITING_RATIO = 0.3
_RDMA = ("IB", "AWS Libfabric", "OFI", "GIN")


class SlowLinkDetector(Detector):
    """By the time between the first packet to the job hub and its answer, as the kernel measures it: no program of either
    side is part of it. Where the job hub's own link is the slow one, all others are late alike and nothing is
    reported."""

    name = "slow-link"
    listens = (NodeDigest, RankDigest)

    def __init__(self) -> None:
        self._seconds: dict[str, deque[tuple[float, float]]] = {}
        self._waits: deque[bool] = deque(maxlen=_MOST_LOOKS)

    def observe(self, at: float, fact: NodeDigest | RankDigest) -> None:
        if isinstance(fact, RankDigest):
            self._waits.extend(look.waits for look in fact.looks)
        elif fact.connect_seconds is not None:
            self._seconds.setdefault(fact.run_id, deque(maxlen=_SAMPLES)).append((at, fact.connect_seconds))

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        nodes = {node.digest.run_id: node for node in job.cluster.current() if not node.gone}
        least = {
            run_id: min(seconds for _, seconds in samples)
            for run_id, samples in self._seconds.items()
            if run_id in nodes and len(samples) == _SAMPLES
        }
        if len(least) < 2 or job.returncode is not None:
            return
        for run_id, seconds in least.items():
            others = [value for other, value in least.items() if other != run_id]
            usual = statistics.median(others)
            if seconds >= max(_LEAST_SECONDS, _RATIO * usual):
                yield self._finding(nodes[run_id], job, seconds, usual)

    def _finding(self, node: NodeState, job: JobView, seconds: float, usual: float) -> Finding:
        ranks = tuple(sorted(job.cluster.ranks_on(node.digest.run_id, job.ranks)))
        waiting = sum(self._waits) / len(self._waits) if self._waits else 0.0
        comms = [comm for process in job.nccl_processes.living() for comm in process.communicators.values()]
        matters = waiting >= _WAITING_RATIO and not any(comm.net.startswith(_RDMA) for comm in comms)
        since = self._seconds[node.digest.run_id][0][0]
        whose = f" with {format_ranks(ranks)}" if ranks else ""
        share = f"; ranks are found waiting for each other in {format_ratio(waiting)} of samples"
        wait = share if self._waits else ""
        return finding(
            "straggler",
            "slow_link",
            subject=node.digest.host,
            severity=None if matters else Severity.INFO,
            ranks=ranks,
            since=since,
            waiting_ranks=tuple(sorted(set(job.ranks) - set(ranks))) if matters else (),
            summary=f"the network of {node.name}{whose} answers late: a connection takes {format_seconds(seconds)} there, "
            f"{format_seconds(usual)} on the other nodes{wait}",
            words={"host": node.digest.host},
            evidence=tuple(
                Evidence("digest", f"connection to the job hub in {format_seconds(value)}", at)
                for at, value in list(self._seconds[node.digest.run_id])[-3:]
            ),
        )
