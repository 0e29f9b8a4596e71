"""How long captured evidence itself shows that nothing moved: by the times in the logs, the watchdog, the
GPUs, the recorder."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from typing import Any

from diag.model.observations import (
    CollectiveTimedOut,
    EpochStarted,
    FlightRecorder,
    Iteration,
    Observation,
    PhaseMarked,
    SaveFinished,
    SaveStarted,
)

_PROGRESS = (Iteration, EpochStarted, PhaseMarked, SaveStarted, SaveFinished)
# Ours; H200 job, and torch 2.11's C++ log (no year in it):
#   [2026-11-20 22:48:23] [rank1] iteration      4/200 | loss: 1.1127E-01
#   [rank1]:[E1120 22:48:50.873733582 ProcessGroupNCCL.cpp:1628] [PG ID 0 ...
_STAMP = re.compile(
    r"\b(?:\d{4}-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)|[EWI](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.\d)"
)
_MOST_CHARS = 120  # of a line: a time is at its beginning
# A job whose log is silent three times longer than it ever was has stopped; below this it may be a long step.
_SHORTEST_SECONDS = 15.0
_TIMES_LONGER = 3.0
_LONGEST_SECONDS = 30 * 86400.0

_BUSY_UTILIZATION = 98
_IDLE_UTILIZATION = 2
_FLAT_MILLIWATTS = 8000


class LogClock:
    """Given each line of the logs and what it means; how long before the last line the last progress
    was."""

    def __init__(self) -> None:
        self.waited_seconds = 0.0  # as the watchdog says
        self._last: float | None = None
        self._progress: float | None = None
        self._longest = 0.0

    def see(self, text: str, facts: Iterable[Observation]) -> None:
        now = _stamp(text[:_MOST_CHARS])
        if now is not None:
            self._last = max(self._last or now, now)
        for fact in facts:
            if isinstance(fact, CollectiveTimedOut):
                self.waited_seconds = max(self.waited_seconds, fact.seconds)
            elif isinstance(fact, _PROGRESS) and now is not None:
                if self._progress is not None:
                    self._longest = max(self._longest, now - self._progress)
                self._progress = max(self._progress or now, now)

    def silent_seconds(self) -> float | None:
        if self._last is None or self._progress is None:
            return None
        silent = self._last - self._progress
        usual = max(_SHORTEST_SECONDS, _TIMES_LONGER * self._longest)
        return silent if usual <= silent < _LONGEST_SECONDS else None


def epoch_of(text: str) -> float | None:
    """Seconds since the epoch of a line with a whole date, taken as UTC: training machines keep
    that."""
    match = _STAMP.search(text[:_MOST_CHARS])
    if match is None or match[1] is None:
        return None
    try:
        found = datetime.datetime.strptime(match[0][:19].replace("T", " "), "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None
    return found.replace(tzinfo=datetime.timezone.utc).timestamp()


def _stamp(text: str) -> float | None:
    """Seconds within a year, which is all that two lines of one log need."""
    match = _STAMP.search(text)
    if match is None:
        return None
    month, day, hour, minute, second = (int(part) for part in match.groups() if part is not None)
    try:
        return datetime.datetime(
            2000, month, day, hour, minute, second, tzinfo=datetime.timezone.utc
        ).timestamp()
    except ValueError:
        return None


def flat_seconds(rows: Sequence[tuple[float, dict[str, Any]]], gpus: set[int]) -> float | None:
    """For how long at the end of the series the GPUs did nothing but wait: each at full or at no utilisation
    with flat power, and one at least at full. None when they do not, or the series is too short for that."""
    began: float | None = None
    end: float | None = None
    held: dict[int, tuple[bool, float, float]] = {}
    busy = False
    for at, row in reversed(rows):
        index, used, power = row["gpu"], row.get("util"), row.get("power_mw")
        if index not in gpus:
            continue
        if not isinstance(used, (int, float)) or not isinstance(power, (int, float)):
            break
        spins = used >= _BUSY_UTILIZATION
        before = held.get(index, (spins, power, power))
        low, high = min(before[1], power), max(before[2], power)
        if (
            not (spins or used <= _IDLE_UTILIZATION)
            or before[0] is not spins
            or high - low > _FLAT_MILLIWATTS
        ):
            break
        held[index] = (spins, low, high)
        busy |= spins
        end = at if end is None else end
        began = at
    if began is None or end is None or not busy or end - began < 1.0:
        return None
    return end - began


def recorder_seconds(recorders: Iterable[FlightRecorder], end: float | None) -> float | None:
    """How long the oldest pending call of any rank was pending at `end` (seconds since the epoch)."""
    created = [
        entry.time_created
        for found in recorders
        for entry in found.entries
        if entry.pending and entry.time_created > 0
    ]
    if not created or end is None or not 0 < end - min(created) < _LONGEST_SECONDS:
        return None
    return end - min(created)
