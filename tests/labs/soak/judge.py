"""Whether what was written down is flat: faults in words, empty when there is none. The limits and why they
are so stand here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.labs.soak.day import Hour
from tests.labs.soak.live import Lived, Sampler
from tests.labs.soak.sampling import Disk, Row

__all__ = ["HOUR", "SHORT", "Limits", "Trend", "judge_day", "judge_live", "trends"]

_MB = 1e6
_JOURNAL_BYTES, _OUTPUT_BYTES = 256 << 20, 1 << 30  # diag's own budgets, by default
_ROOM = 1 << 20  # what is written before a budget is looked at again


@dataclass(frozen=True, slots=True)
class Limits:
    """Medians of the last `window` seconds against those of the first after `warm_up`: what may be more by
    then. `cpu` is a ratio of what a process uses, above `cpu_floor` (of a core); `reading` one of what a
    reading takes at its quickest, above `reading_floor` (seconds: wall time, which other load stretches)."""

    warm_up: float
    window: float
    hub_rss: float
    rss: float
    fds: int
    threads: int
    cpu: float
    cpu_floor: float
    reading: float
    reading_floor: float
    refused: int


# A connection of a scrape, a listener or a dump may be open in one window and not in the other: three of
# them.
HOUR = Limits(600, 600, 5 * _MB, 2 * _MB, 3, 3, 1.3, 0.005, 2.0, 0.001, 0)
# Half a minute lies in the warm-up of diag's windows of time: the hub still learns the job.
SHORT = Limits(12, 8, 8 * _MB, 3 * _MB, 4, 4, 2.0, 0.05, 4.0, 0.01, 0)


@dataclass(frozen=True, slots=True)
class Trend:
    """Of one process: medians of the first and of the last window, the highest of all, and the slope of its
    private memory in MB an hour over all after the warm-up. `cpu`: shares of a core."""

    process: str
    rss: tuple[float, float, float]
    private: tuple[float, float, float]
    fds: tuple[float, float, float]
    threads: tuple[float, float, float]
    cpu: tuple[float, float]
    slope: float


def trends(rows: Sequence[Row], limits: Limits) -> list[Trend]:
    """Of the processes that were there from the warm-up to the end."""
    end = max((row.at for row in rows), default=0.0)
    found = []
    for process in dict.fromkeys(row.process for row in rows):
        mine = [row for row in rows if row.process == process and row.at >= limits.warm_up]
        first = [row for row in mine if row.at < limits.warm_up + limits.window]
        last = [row for row in mine if row.at >= end - limits.window]
        if len(first) < 2 or len(last) < 2:
            continue

        def told(
            name: str, first: Sequence[Row] = first, last: Sequence[Row] = last, mine: Sequence[Row] = mine
        ) -> tuple[float, float, float]:
            middles = [statistics.median(getattr(row, name) for row in rows) for rows in (first, last)]
            return middles[0], middles[1], max(getattr(row, name) for row in mine)

        found.append(
            Trend(
                process,
                told("rss"),
                told("private"),
                told("fds"),
                told("threads"),
                (_share(first), _share(last)),
                3600 * _slope([(row.at, row.private / _MB) for row in mine]),
            )
        )
    return found


def _share(rows: Sequence[Row]) -> float:
    return (rows[-1].cpu - rows[0].cpu) / (rows[-1].at - rows[0].at)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between points half of all apart: single jumps do not move it."""
    half = len(points) // 2
    return statistics.median(
        (later[1] - early[1]) / (later[0] - early[0])
        for early, later in zip(points, points[half:], strict=False)
        if later[0] > early[0]
    )


def judge_live(
    rows: Sequence[Row], disks: Sequence[Disk], samplers: Sequence[Sampler], lived: Lived, limits: Limits
) -> list[str]:
    """What is not as it should be of a live run."""
    found = trends(rows, limits)
    names = {trend.process for trend in found}
    faults = (
        []
        if {"hub", "sidecar-0"} <= names
        else [f"hub or sidecars were not there all the time, only {sorted(names)}"]
    )
    for trend in found:
        faults += _judge_process(trend, limits)
    faults += _judge_samplers(samplers, limits)
    for name, most, taken in (
        ("journal", _JOURNAL_BYTES, max(disk.journal for disk in disks)),
        ("kept output", _OUTPUT_BYTES, max(disk.output for disk in disks)),
    ):
        if taken > most + _ROOM:
            faults.append(f"the {name} took {taken / _MB:.0f} MB of {most / _MB:.0f}")
    faults += [f"false alarm: {finding}" for finding in lived.findings]
    faults += (
        [f"not answered: {refused}" for refused in lived.refused]
        if len(lived.refused) > limits.refused
        else []
    )
    faults += [
        f"nobody asked for {name}"
        for name in ("scrape", "dump", "top", "listen")
        if not lived.asked.get(name)
    ]
    if lived.exit_code:
        faults.append(f"exit code {lived.exit_code}")
    return faults


def _judge_process(trend: Trend, limits: Limits) -> list[str]:
    faults = []
    most = limits.hub_rss if trend.process == "hub" else limits.rss
    # A machine short of memory takes pages of files back, so RSS alone may hide what grows.
    for name, values in (("RSS", trend.rss), ("private memory", trend.private)):
        if values[1] - values[0] > most:
            was, now = (value / _MB for value in values[:2])
            faults.append(f"{trend.process}: {name} grew by {now - was:.1f} MB, from {was:.1f} to {now:.1f}")
    for name, allowed in (("fds", limits.fds), ("threads", limits.threads)):
        first, last, _ = getattr(trend, name)
        if last - first > allowed:
            faults.append(f"{trend.process}: {name} grew from {first:g} to {last:g}")
    if trend.cpu[1] > trend.cpu[0] * limits.cpu + limits.cpu_floor:
        faults.append(
            f"{trend.process}: CPU rose from {100 * trend.cpu[0]:.2f} to {100 * trend.cpu[1]:.2f} % of a core"
        )
    return faults


def _judge_samplers(samplers: Iterable[Sampler], limits: Limits) -> list[str]:
    by_name: dict[str, list[Sampler]] = {}
    for each in samplers:
        if each.at >= limits.warm_up:
            by_name.setdefault(each.sampler, []).append(each)
    faults = []
    for name, told in by_name.items():
        first = _a_reading([each for each in told if each.at < limits.warm_up + limits.window])
        last = _a_reading([each for each in told if each.at >= told[-1].at - limits.window])
        if first is not None and last is not None and last > first * limits.reading + limits.reading_floor:
            faults.append(
                f"a reading of {name} took {1000 * first:.2f} ms at first, {1000 * last:.2f} ms at last"
            )
    return faults


def _a_reading(told: Sequence[Sampler]) -> float | None:
    """Seconds, of the quickest stretch between two scrapes: a pause that other load makes is in few of them, what
    grows in all."""
    if len(told) < 2 or told[-1].count - told[0].count < 3:
        return None
    return min(
        (later.seconds - earlier.seconds) / (later.count - earlier.count)
        for earlier, later in pairwise(told)
        if later.count > earlier.count
    )


# --- the day
# ---------------------------------------------------------------------------------------------------

_DAY_GROWTH = 2 * _MB  # of the state: what still moves when all windows of time are full
_DAY_RSS = 5 * _MB
_DAY_ENTRIES = 100  # of one kind of container
_DAY_CPU = 1.3


def judge_day(
    hours: Sequence[Hour], outcome: dict[str, Any], full_after: float, cpu: float = _DAY_CPU
) -> list[str]:
    """What still grows after `full_after` told hours, when all of diag's windows of time are full; and
    findings without cause."""
    steady = [hour for hour in hours if hour.hour >= full_after - 1e-6]
    faults = [f"false alarm: {told}" for told in outcome["unexplained"]]
    if len(steady) < 2:
        return [*faults, f"{len(steady)} rows after {full_after:g} told hours"]
    first, last = steady[0], steady[-1]
    for name, most in (("state", _DAY_GROWTH), ("rss", _DAY_RSS), ("traced", _DAY_RSS)):
        grown = getattr(last, name) - getattr(first, name)
        if grown > most:
            faults.append(
                f"{name} grew by {grown / _MB:.1f} MB between told hours {first.hour:g} and {last.hour:g}"
            )
    for name in ("taking", "checking", "scraping"):
        third = max(1, len(steady) // 3)
        early = statistics.median(getattr(hour, name) for hour in steady[:third])
        late = statistics.median(getattr(hour, name) for hour in steady[-third:])
        if late > early * cpu + 1.0:
            faults.append(f"{name} a told minute rose from {early:.1f} to {late:.1f} ms of CPU")
    told = [hour for hour in outcome["hours"] if hour["hour"] >= full_after - 1e-6]
    faults += [f"{path} grew from {was} to {now} entries" for path, was, now in growing(told)]
    faults += [
        f"the cache of {name} has no bound: {entries} entries"
        for name, (entries, most) in outcome["caches"].items()
        if most is None and entries > _DAY_ENTRIES
    ]
    return faults


def growing(told: Sequence[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Kinds of containers whose entries are more in the last hour than in the first by more than a few, and
    never went down."""
    found = []
    last = told[-1]["parts"]
    for part, held in last.items():
        for path, now in held["entries"].items():
            counts = [hour["parts"].get(part, {"entries": {}})["entries"].get(path, 0) for hour in told]
            if now - counts[0] > _DAY_ENTRIES and all(later >= early for early, later in pairwise(counts)):
                found.append((f"{part}{path}", counts[0], now))
    return found
