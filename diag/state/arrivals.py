"""Who came last to the collectives that all ranks took part in: times of torch's Flight Recorders side by
side. Pure.

The times are of when the host gave the call to its stream, by the host's clock: of one host only. On a GPU
the host runs ahead, so that a slow GPU does not show here; a slow host, or one that waits for data, does.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from diag.model.observations import FlightRecorder

_LEAST_CALLS = 4


@dataclass(frozen=True, slots=True)
class Latecomer:
    """`seconds` behind the first, the median of those calls to which it came last."""

    rank: int
    times: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    calls: int
    ranks: tuple[int, ...]
    last: tuple[Latecomer, ...]  # most often last first


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
    late: dict[int, list[float]] = {}
    compared: set[int] = set()
    count = 0
    for (backend, group, _, _), times in calls.items():
        if len(times) < 2 or set(times) != users[backend, group]:
            continue  # one of them has it no more, or has not come: that is a hang's matter
        last = max(times, key=lambda rank: (times[rank], rank))
        late.setdefault(last, []).append(times[last] - min(times.values()))
        compared |= set(times)
        count += 1
    if count < _LEAST_CALLS:
        return None
    order = sorted(late, key=lambda rank: (-len(late[rank]), rank))
    found = tuple(Latecomer(rank, len(late[rank]), statistics.median(late[rank])) for rank in order)
    return Arrivals(count, tuple(sorted(compared)), found)
