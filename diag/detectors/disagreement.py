"""Ranks that cannot meet since they were started with values that do not fit together, as a finding."""

from __future__ import annotations

from collections.abc import Iterator

from diag.model import JOB, Confidence, Evidence, Finding, Severity
from diag.state.meeting import Disagreement
from diag.state.view import JobView

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MOST_EVIDENCE = 8
_ONCE = (
    "Set {name} once, before the ranks are started, and export it, so that all have the same: in a launch script above the "
    "loop that starts them{more}. What runs now cannot come together: end it."
)
_ADVICE = (
    ("port_differs", _ONCE.format(name="MASTER_PORT", more=", also where it picks a free port")),
    ("address_differs", _ONCE.format(name="MASTER_ADDR", more=", to an address of rank 0's machine")),
    ("world_size_differs", _ONCE.format(name="WORLD_SIZE", more=", to the number of all ranks")),
    (
        "duplicate_rank",
        "Give each process its own RANK, from 0 to WORLD_SIZE - 1: in a launch script, is the counter raised for each "
        "one that it starts? What runs now cannot come together: end it.",
    ),
    (
        "rank_out_of_range",
        "RANK counts from 0 to WORLD_SIZE - 1: see that the count begins at 0, and that WORLD_SIZE is the number of all "
        "ranks. What runs now cannot come together: end it.",
    ),
)


def disagreement_finding(found: Disagreement, job: JobView, *, grave: bool) -> Finding:
    """`grave`: also without a look of the kernel's at what they do with these values."""
    cause, advice = next(row for row in _ADVICE if row[0] == found.cause)
    seen = f"; {found.seen}" if found.seen else ""
    certain = bool(found.seen) or cause == "duplicate_rank"
    return Finding(
        id="rendezvous-failure",
        subject=JOB,
        ranks=found.ranks,
        waiting_ranks=tuple(rank for rank in found.compared if rank not in found.ranks),
        cause=cause,
        severity=Severity.CRITICAL if certain or grave or job.broken else Severity.WARNING,
        confidence=Confidence.HIGH if certain else Confidence.MEDIUM,
        since=found.since,
        final=job.broken,
        summary=f"{found.said}{seen}; they cannot meet",
        advice=advice,
        evidence=tuple(_evidence(found, job)),
    )


def _evidence(found: Disagreement, job: JobView) -> Iterator[Evidence]:
    for number in sorted(found.compared, key=lambda number: number not in found.ranks)[:_MOST_EVIDENCE]:
        rank = job.ranks.get(number)
        if rank is not None:
            values = " ".join(f"{name}={rank.variables[name]}" for name in _NAMES if name in rank.variables)
            yield Evidence("environ", f"pid {rank.placement.pid}: {values}", rank.found_at, number)
