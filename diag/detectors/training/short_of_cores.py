"""A rank that gets too little of a core while the others get theirs: reported by itself, without any sample of who waits
for whom, and with what the job's steps take since."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from diag.detectors.findings import finding
from diag.detectors.training.core_shares import CoreShares, Starved
from diag.detectors.training.straggler_samples import RankSample
from diag.model import JOB, Confidence, Evidence, Finding, Severity, numbered
from diag.state.exact import fisher
from diag.state.pace import LEAST_RATIO
from diag.state.view import JobView
from diag.text.units import format_ranks, format_seconds

_FRESH_SECONDS = 30.0
# Of the others' samples since then: below that nobody waits for the rank, as where each works for itself.
_OTHERS_WAIT, _LEAST_SAMPLES = 0.25, 5
# Reports of steps. With 5 before and 10 after, all of them slower: 3e-4.
_LEAST_BEFORE, _LEAST_AFTER, _COMPARED = 5, 10, 128
_CHANCE = 1e-3
# Where steps cannot tell, the kernel's figures alone have to last.
_ALONE_SECONDS = 50.0


@dataclass(frozen=True, slots=True)
class Slower:
    """Seconds of a step before the rank got too little, and since."""

    before: float
    after: float


def short_of_cores(
    shares: CoreShares, compared: Callable[[], Mapping[int, Sequence[RankSample]]], job: JobView, now: float
) -> Finding | None:
    """None where all ranks are as badly off, where nobody waits for those that are, and where steps take what they
    took before."""
    ranks = [rank for rank in job.alive_ranks() if rank.distributed]
    starved = shares.starved(
        [rank.rank for rank in ranks if not rank.thread]
    )  # the readings are of the main thread
    starved = tuple(one for one in starved if now - one.at <= _FRESH_SECONDS)
    slow = {one.rank for one in starved}
    others = tuple(rank.rank for rank in ranks if rank.rank not in slow)
    seen = [rank for rank in others if shares.knows(rank)]
    if not starved or not seen or 2 * len(starved) > len(ranks) or not all(map(shares.served, seen)):
        return None
    since, looks = max(one.since for one in starved), compared()
    waits = [look.waits for rank in others for look in looks.get(rank, ()) if look.at >= since]
    if len(waits) < _LEAST_SAMPLES or sum(waits) < _OTHERS_WAIT * len(waits):
        return None
    before = job.progress.steps.seconds(0.0, since)[-_COMPARED:]
    after = job.progress.steps.seconds(since, now)[-_COMPARED:]
    if len(before) < _LEAST_BEFORE:
        return _finding(starved, others, None) if now - since >= _ALONE_SECONDS else None
    slower = _slower(before, after)
    return _finding(starved, others, slower) if slower is not None else None


def _slower(before: list[float], after: list[float]) -> Slower | None:
    if len(after) < _LEAST_AFTER:
        return None
    found = Slower(statistics.median(before), statistics.median(after))
    if found.after < LEAST_RATIO * found.before:
        return None
    slow = found.before * LEAST_RATIO**0.5
    quick_after, quick_before = (sum(one <= slow for one in part) for part in (after, before))
    return found if fisher(quick_after, len(after), quick_before, len(before)) < _CHANCE else None


def _finding(starved: tuple[Starved, ...], others: tuple[int, ...], slower: Slower | None) -> Finding:
    """A warning where steps are slower since; else, where too few were made before to compare with, only what the
    kernel counts."""
    ranks, first = tuple(one.rank for one in starved), starved[0]
    served = numbered("the other [rank gets what it asks|ranks get what they ask] for", len(others))
    summary = f"{format_ranks(ranks)} {numbered('[gets|get]', len(ranks))} too little of a core, and {served}"
    evidence = [one.evidence() for one in starved[:2]]
    if slower is not None:
        before, after = format_seconds(slower.before), format_seconds(slower.after)
        ratio = slower.after / slower.before
        summary += f"; since then a step takes {after}, {ratio:.2g} times the {before} before"
        text = f"{before} a step before, {after} since (medians)"
        evidence.append(Evidence("output", text, first.since))
    else:
        summary += "; whether that slows the job is not known: no steps were measured before"
    return finding(
        "straggler",
        "cpu_contention",
        subject=f"rank {ranks[0]}" if len(ranks) == 1 else JOB,
        severity=None if slower is not None else Severity.INFO,
        confidence=Confidence.MEDIUM,
        ranks=ranks,
        waiting_ranks=others if slower is not None else (),
        since=first.since,
        summary=f"{summary}; {first}",
        count=len(ranks),
        evidence=evidence,
    )
