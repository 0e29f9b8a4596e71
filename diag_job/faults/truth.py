"""What is true of each fault, written in faults.json before diag was asked: which finding, which class, which
ranks are to blame.

Where two answers are honestly right both are there: in a group of two ranks that call different things
neither is in the minority, and of a send and a receive that do not fit each side may be the wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .spec import TABLE, Fault


@dataclass(frozen=True, slots=True)
class Truth:
    """`findings`: ids of which one must be reported; none: nothing may be. `classes` are those of a hang.

    `blame`: "rank" (the fault's own, no other), "minority" (the same; both, in a job of two ranks), "pair" (the
    rank, or the rank and the peer that it waits for), "nobody" or "everybody".
    """

    findings: tuple[str, ...]
    classes: tuple[str, ...] = ()
    blame: str = "rank"


def _truth(row: Mapping[str, Any]) -> Truth:
    classes = tuple(row.get("classes", ()))
    findings = tuple(row.get("findings", ("hang",) if classes else ()))
    return Truth(findings, classes, row.get("blame", "rank" if findings else "nobody"))


TRUTHS: Mapping[str, Truth] = {name: _truth(row) for name, row in TABLE.items()}


def culprits(
    fault: Fault, ranks: int, peer: int | None = None, truth: Truth | None = None
) -> tuple[frozenset[int], ...]:
    """Every answer to "who?" that is right, the best first. `peer` is the other side of a point-to-point
    call."""
    blame, own = (truth or TRUTHS[fault.name]).blame, frozenset({fault.rank})
    if blame == "nobody":
        return (frozenset(),)
    if blame == "everybody":
        return (frozenset(range(ranks)),)
    if blame == "minority" and ranks == 2:
        return (own, frozenset({0, 1}))
    if blame == "pair" and peer is not None:
        return (own, own | {peer})
    return (own,)
