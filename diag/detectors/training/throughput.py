"""Have steps become slower than they were in the same job, and is one part of a step most of it?"""

from __future__ import annotations

from collections.abc import Iterator

from diag.detectors.findings import finding, row
from diag.detectors.training.slower import Cause, SurroundedDetector, cause_of, format_shares
from diag.model import Confidence, Evidence, Finding, Severity
from diag.state.pace import Drop
from diag.state.view import JobView
from diag.text.units import format_ratio, format_seconds


class ThroughputDropDetector(SurroundedDetector):
    name = "throughput-drop"

    def __init__(self) -> None:
        super().__init__()
        self._known: tuple[float, int, Cause] | None = None  # of the drop since then, at so many laps

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        drop = job.progress.steps.pace.drop
        if drop is None:
            self._known = None
            return
        cause = self._cause(drop, job)
        before, after = format_seconds(drop.before), format_seconds(drop.after)
        evidence = [
            Evidence(
                "output",
                f"{before} a step up to iteration {drop.iteration}, {after} in the {drop.steps} steps since",
                drop.since,
            ),
            *cause.evidence,
        ]
        shares = ", ".join(format_shares(job.residence.counts(since=drop.since)))
        if shares:
            evidence.append(Evidence("stacks", f"all ranks since then: {shares}", now))
        yield finding(
            self.name,
            cause.name,
            severity=None if drop.matters or cause.name != "unknown" else Severity.INFO,
            summary=f"steps take {after} since iteration {drop.iteration}, {drop.ratio:.2g} times the {before} before "
            f"({drop.steps} steps, {format_seconds(drop.seconds)}, and still); {cause.text}",
            since=drop.since,
            ranks=cause.ranks,
            waiting_ranks=cause.waiting,
            evidence=evidence,
        )

    def _cause(self, drop: Drop, job: JobView) -> Cause:
        """Looked for anew with each lap until it is found: then it stays, as does the drop."""
        known, laps = self._known, job.progress.steps.pace.laps
        if known is None or known[0] != drop.since or (known[2].name == "unknown" and known[1] != laps):
            known = self._known = (drop.since, laps, cause_of(drop, job, self))
        return known[2]


_LEAST = 40  # samples of each rank
_MOST_SHARE = 0.3
_GPU_IDLE = 0.8  # a GPU that is busy for longer has its work: the thread only runs ahead of it
_GPU_SAMPLES = 12


class SlowDetector(SurroundedDetector):
    name = "slow"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if job.phase not in ("steady", "training") or job.broken:
            return
        counts = job.residence.counts()
        if (
            not counts
            or any(sum(each.values()) < _LEAST for each in counts.values())
            or set(job.ranks) - set(counts)
        ):
            return
        busy = self._busy(job.residence.oldest())
        if busy is not None and busy > _GPU_IDLE:
            return
        for kind, cause in (("data", "data_loading"), ("cpu_optimizer", "cpu_optimizer")):
            share = min(each[kind] / sum(each.values()) for each in counts.values())
            if share >= _MOST_SHARE:
                yield _slow(cause, share, busy, job, now)

    def _busy(self, since: float) -> float | None:
        """How busy the busiest GPU was: the node may have others that the job does not use. None without
        GPUs."""
        seen = [
            [gpu.utilization_ratio for at, gpu in looks if at >= since and gpu.utilization_ratio is not None]
            for looks in self.gpus.values()
        ]
        return max((sum(each) / len(each) for each in seen if len(each) >= _GPU_SAMPLES), default=None)


def _slow(cause: str, share: float, busy: float | None, job: JobView, now: float) -> Finding:
    counts, step = job.residence.counts(), job.progress.steps.now()
    of_step = f", about {format_seconds(share * step)} of each step of {format_seconds(step)}" if step else ""
    gpus = f"; the busiest GPU is in use for {format_ratio(busy)} of the time" if busy is not None else ""
    samples = min(sum(each.values()) for each in counts.values())
    return finding(
        "slow",
        cause,
        confidence=None if busy is None else Confidence.HIGH,
        summary=f"every rank {row('slow', cause)['what']} in {format_ratio(share)} of its samples or more{of_step} "
        f"({samples} samples a rank){gpus}",
        since=job.residence.oldest(),
        evidence=[Evidence("stacks", "all ranks: " + ", ".join(format_shares(counts)), now)],
    )
