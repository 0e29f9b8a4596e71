"""On every node: what the job hub reports of the whole job, so that any terminal, page and dump shows the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from diag.detectors.contract import Detector
from diag.model import Finding, NotChecked
from diag.state.view import JobView


class VerdictDetector(Detector):
    """Passes on what the job hub reported last, while it is heard of. Reports nothing of its own."""

    name = "verdict"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        cluster = job.cluster
        if cluster.verdict is None or not cluster.joined(now):
            return
        for finding in cluster.verdict.findings:
            yield replace(finding, reported_by=cluster.verdict.hub)

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        cluster = job.cluster
        if cluster.verdict is not None:
            yield from cluster.verdict.not_checked
        elif cluster.why_lost:
            yield NotChecked(
                "the other nodes",
                cluster.why_lost,
                "each node judges its own ranks until a hub answers again",
            )
