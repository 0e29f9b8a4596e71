"""Ranks that cannot meet since they were started with values that do not fit together, as a finding."""

from __future__ import annotations

from collections.abc import Iterator

from diag.detectors.findings import finding
from diag.model import Confidence, Evidence, Finding, Severity
from diag.state.meeting import Disagreement
from diag.state.view import JobView

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MOST_EVIDENCE = 8


def disagreement_finding(found: Disagreement, job: JobView, *, grave: bool) -> Finding:
    """`grave`: also without a look of the kernel's at what they do with these values."""
    seen = f"; {found.seen}" if found.seen else ""
    certain = bool(found.seen) or found.cause == "duplicate_rank"
    return finding(
        "rendezvous-failure",
        found.cause,
        ranks=found.ranks,
        waiting_ranks=tuple(rank for rank in found.compared if rank not in found.ranks),
        severity=Severity.CRITICAL if certain or grave or job.broken else None,
        confidence=Confidence.HIGH if certain else None,
        since=found.since,
        final=job.broken,
        summary=f"{found.said}{seen}; they cannot rendezvous",
        evidence=tuple(_evidence(found, job)),
    )


def _evidence(found: Disagreement, job: JobView) -> Iterator[Evidence]:
    for number in sorted(found.compared, key=lambda number: number not in found.ranks)[:_MOST_EVIDENCE]:
        rank = job.ranks.get(number)
        if rank is not None:
            values = " ".join(f"{name}={rank.variables[name]}" for name in _NAMES if name in rank.variables)
            yield Evidence("environ", f"pid {rank.placement.pid}: {values}", rank.found_at, number)
