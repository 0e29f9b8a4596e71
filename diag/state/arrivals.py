"""Who came last to the collectives that all ranks took part in: times of torch's Flight Recorders side by
side. Pure.

The times are of when the host gave the call to its stream, by the host's clock: of one host only. On a GPU
the host runs ahead, so that a slow GPU does not show here; a slow host, or one that waits for data, does.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from diag.model.observations import FlightRecorder

_LEAST_CALLS = 4
# Two H200: of 204 calls a rank with a seventh of a core came last to 198, and was behind for most of the time;
# in healthy jobs one rank came last to up to 75 % of some 200, by a millisecond.
_LEAST_OF_ONE, _MOSTLY, _LEAST_BEHIND = 40, 0.85, 0.25


@dataclass(frozen=True, slots=True)
class Latecomer:
    """`seconds` behind the first, the median of those calls to which it came last: `times` of the `of` that it
    took part in."""

    rank: int
    times: int
    seconds: float
    of: int = 0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`behind`: in which part of the time between the first of these calls and the last there was one that the
    rank named first had not come to and another had."""

    calls: int
    ranks: tuple[int, ...]
    last: tuple[Latecomer, ...]  # most often last first
    behind: float = 0.0

    @property
    def straggler(self) -> Latecomer | None:
        """Who comes last to nearly all calls, and for a good part of the time."""
        first = self.last[0]
        stands_out = first.of >= _LEAST_OF_ONE and first.times >= _MOSTLY * first.of
        return first if stands_out and self.behind >= _LEAST_BEHIND else None


def arrivals(recorders: Mapping[int, FlightRecorder]) -> Arrivals | None:
    """None where fewer than four calls are in the recorders of two ranks or more."""
    calls: dict[tuple[str, str, int, str], dict[int, float]] = {}
    users: dict[tuple[str, str], set[int]] = {}
    for rank, recorder in recorders.items():
        for entry in recorder.entries:
            if entry.is_p2p or entry.time_created <= 0:
                continue
            users.setdefault((entry.backend, entry.group), set()).add(rank)
            calls.setdefault((entry.backend, entry.group, entry.seq, entry.op), {})[rank] = entry.time_created
    late: dict[
        int, list[tuple[float, float]]
    ] = {}  # by who came last: from the first one's coming to its own
    took_part: Counter[int] = Counter()
    count = 0
    begin, end = math.inf, 0.0
    for (backend, group, _, _), times in calls.items():
        if len(times) < 2 or set(times) != users[backend, group]:
            continue  # one of them has it no more, or has not come: that is a hang's matter
        last = max(times, key=lambda rank: (times[rank], rank))
        first_at = min(times.values())
        late.setdefault(last, []).append((first_at, times[last]))
        took_part.update(times.keys())
        begin, end = min(begin, first_at), max(end, times[last])
        count += 1
    if count < _LEAST_CALLS:
        return None
    order = sorted(late, key=lambda rank: (-len(late[rank]), rank))
    found = tuple(
        Latecomer(rank, len(late[rank]), statistics.median(b - a for a, b in late[rank]), took_part[rank])
        for rank in order
    )
    behind = _covered(late[order[0]]) / (end - begin) if end > begin else 0.0
    return Arrivals(count, tuple(sorted(took_part)), found, behind)


def _covered(spans: list[tuple[float, float]]) -> float:
    """Seconds in one or more of them."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
