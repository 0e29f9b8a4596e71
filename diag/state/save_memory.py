"""The memory of the job's saves so far against the tightest limit, and what the next one will need.

Filled by `Saves`; read by the forecast's detector and by the metrics. The models are `save_shape` and
`memory_series`.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from diag.knowledge.flags import flag_values
from diag.model.observations import CgroupMemory, HostMemory
from diag.state.memory_series import MemoryPoint, MemorySeries, slope
from diag.state.progress import Progress
from diag.state.save_shape import Component, Mixture, Running, SaveShape, before_save, in_save, shape_of
from diag.state.saves import Save, SaveLog

HOST = "host"
_KEPT_SHAPES = 32
_SETTLES = 1.5  # seconds after a save in which it gives back what it took
_BEFORE = 0.6  # a line of the log comes a little after what it tells of
_SUSPECT = 0.15  # of the usual rise, in a place where a save may be
_FRESH_SECONDS = 30.0  # several periods of readings that come at any rate
_NEAR, _STEEP = 0.7, 0.005  # of the limit, and of what is needed
_LEAST_LEAK_SECONDS = 60.0
_LEAST_LEAK_POINTS = 12
_GOES_ON = 0.75  # of the growth of the first half: what slows down more is no leak
_SLOWS_DOWN = 0.5  # of the growth in the first steps: what the job's allocators cause ends, so much goes on
_LEAST_RISE = 16 << 20
# Of what the arguments say that a save takes: pinned blocks are rounded up to powers of two.
_ESTIMATE_SPREAD = 0.3


@dataclass(frozen=True, slots=True)
class Outlook:
    """A peak that is to come, as a mixture. `running`: of the save under way; `number` counts saves from
    1."""

    limit: int
    mixture: Mixture
    running: bool
    number: int
    iteration: int | None  # after which the save is, or was begun
    base: int
    basis: str  # saves, estimate

    @property
    def peak(self) -> int:
        return int(self.mixture.quantile(0.5))

    @property
    def low(self) -> int:
        return int(self.mixture.quantile(0.025))

    @property
    def high(self) -> int:
        return int(self.mixture.quantile(0.975))

    @property
    def risk(self) -> float:
        """The probability that it does not fit."""
        return self.mixture.above(float(self.limit))


class LimitMemory:
    """One limit: a cgroup by its path, or the host."""

    def __init__(self, path: str, progress: Progress, log: SaveLog) -> None:
        self._progress, self._log = progress, log
        self.path = path
        self.series = MemorySeries()  # what was needed, reading by reading
        self.shapes: deque[SaveShape] = deque(maxlen=_KEPT_SHAPES)  # of the saves so far
        self.starts: dict[int, float] = {}  # when each of them was over, by its number
        self._shaped = 0  # the number of the save that was looked at last

    # -- observing ---------------------------------------------------------------------------------------

    def add(self, point: MemoryPoint, limit: int | None) -> None:
        self.series.add(point, limit)
        if self.shapes:
            self._settle(point)

    def saved(self, save: Save) -> None:
        """A save is over."""
        if save.number > self._shaped and self.series.points:
            self._shaped = save.number
            self._learn(save)

    def _learn(self, save: Save) -> None:
        assert save.ended is not None
        if save.iteration is None:
            return  # before the first step: a rank that imports the checkpointing modules
        base = self.series.at(save.after + _BEFORE / 2) or self.series.at(save.ended)
        points = self.series.between(save.after + _BEFORE / 2, save.ended)
        if base is None or not points:
            return  # not watched then: nothing is known of it
        first = self.series.points[0]
        if first.at > save.after + 1.0:
            return  # the watch began in it: what it began from was not seen
        shape = shape_of(save.number, save.iteration, base, points)
        if self.shapes and shape.iteration is not None and shape.iteration == self.shapes[-1].iteration:
            return  # the same save, shown again by the stack of another rank
        if shape.rise < max(_LEAST_RISE, _SUSPECT * max((known.rise for known in self.shapes), default=0)):
            return  # a stack that was read in a save's last moment tells of a save that is over, and nothing is staged in it
        self.shapes.append(shape)
        self.starts[save.number] = save.ended

    def _settle(self, point: MemoryPoint) -> None:
        """What stays after a save is known from the readings that come after it."""
        shape = self.shapes[-1]
        ended = self.starts.get(shape.number)
        if ended is None or point.at > ended + _SETTLES:
            return
        fell = shape.after - point.needed
        if fell > 0:
            self.shapes[-1] = replace(shape, after=point.needed, given_back=shape.given_back + fell)

    def forget(self) -> None:
        """The processes are new ones (a restart): sizes stay true, the readings of the old ones do not."""
        self.series.points.clear()

    # -- being asked --------------------------------------------------------------------------------------

    def outlook(self, now: float, argv: Sequence[str] = (), estimate: int | None = None) -> Outlook | None:
        """None: nothing is known that could tell, or no limit is set."""
        if not self.series.limit or not self.series.points:
            return None
        limit = self.series.limit
        running = self._running(now)
        if running is not None:
            current = self._log.current
            number = current.number if current else self._log.count + 1
            if not self.shapes:
                return None  # how far a first save will go is not known
            mixture = in_save(list(self.shapes), running)
            return Outlook(limit, mixture, True, number, self._progress.iteration, running.base, "saves")
        base = self._base(now)
        if base is None:
            return None
        number = self._log.count + 1
        if self.shapes:
            every = save_every(argv, [shape.iteration for shape in self.shapes])
            drift, unsure = self._drift(now, every)
            following = self._progress.iteration
            if every and following is not None and not self._is_due(every):
                following = (following // every + 1) * every
            mixture = before_save(list(self.shapes), base + drift, unsure)
            return Outlook(limit, mixture, False, number, following, base, "saves")
        if estimate and self._progress.iteration is not None:
            every = save_every(argv, [])
            spread = Component(1.0, float(base + estimate), _ESTIMATE_SPREAD * estimate)
            return Outlook(limit, Mixture((spread,)), False, number, every, base, "estimate")
        return None

    def _is_due(self, every: int) -> bool:
        """The step that was made last is one after which a save comes, and it has not been made yet."""
        iteration = self._progress.iteration
        return iteration is not None and iteration % every == 0 and iteration != self.shapes[-1].iteration

    def _base(self, now: float) -> int | None:
        """Needed memory in steps: the least since the last save, or of the last steps, where batches come and
        go."""
        last = self._log.saves[-1].ended if self._log.saves else None
        since = max(now - 20.0, (last or 0.0) + 0.2)
        held = self.series.at(now)
        points = self.series.between(since, now)[-5:]
        if not points:
            return held.needed if held else None
        return int(statistics.median_low([point.needed for point in points]))

    def _drift(self, now: float, every: int | None) -> tuple[float, float]:
        """Growth of the base up to the next save, and how unsure that is: as between the saves so far, or as
        it grows now."""
        if not every or self._progress.iteration is None or self._is_due(every):
            return 0.0, 0.0
        grown = [
            max(0, after.base - before.after)
            for before, after in pairwise(self.shapes)
            if None not in (before.iteration, after.iteration)
            and (after.iteration or 0) - (before.iteration or 0) == every
        ]
        left = 1.0 - (self._progress.iteration % every) / every
        if grown:
            drift = left * statistics.fmean(grown[-3:])
            return drift, 0.3 * drift
        since = self.starts.get(self.shapes[-1].number, now)
        points = self.series.between(since + _SETTLES, now)
        if len(points) < 3 or not self._progress.step_seconds:
            return 0.0, 0.0
        seconds = statistics.median(self._progress.step_seconds) * left * every
        grows = max(0.0, slope(points)) * seconds
        return _SLOWS_DOWN * grows, (1 - _SLOWS_DOWN) * grows

    def _running(self, now: float) -> Running | None:
        """The save under way: shown by the log or the stacks, or by memory that rises as in a save, where a
        save may be."""
        current = self._log.current
        if current is not None:
            since = current.after
        elif self._progress.iteration_at is not None and self._may_save():
            since = self._progress.iteration_at
        else:
            return None
        base = self.series.at(since + _BEFORE / 2)
        if base is None:
            return None
        points = self.series.between(since + _BEFORE / 2, now)
        running = Running(base.needed, (base, *points), now)
        if current is None:
            usual = self.shapes[-1].fall if self.shapes else 0
            if not usual or running.reached - base.needed < max(16 << 20, _SUSPECT * usual):
                return None
        return running

    def _may_save(self) -> bool:
        """After a step at which the saves so far say that one is due, unless it was made already."""
        done = [shape.iteration for shape in self.shapes if shape.iteration is not None]
        every = save_every((), done)
        if not done or not every or self._progress.iteration is None or self._progress.iteration == done[-1]:
            return False
        return (self._progress.iteration - done[-1]) % every == 0

    # -- a leak -------------------------------------------------------------------------------------------

    def seconds_to_limit(self, now: float) -> float | None:
        """How long until the base itself meets the limit, as it grows in the steps; None where it does not
        clearly grow."""
        if not self.series.limit or self._log.current is not None or self._progress.iteration_at is None:
            return None
        last = self._log.saves[-1].ended if self._log.saves else None
        since = max(now - 1800.0, (last or 0.0) + _SETTLES)
        points = _at_steps(self.series.between(since, self._progress.iteration_at))
        if len(points) < _LEAST_LEAK_POINTS or points[-1].at - points[0].at < _LEAST_LEAK_SECONDS:
            return None
        half = len(points) // 2
        early, late = slope(points[:half]), slope(points[half:])
        if late <= 0 or late < _GOES_ON * early:
            return None  # caches that fill, and a first epoch, slow down: a leak does not
        needed = points[-1].needed
        if needed - points[0].needed < 0.02 * self.series.limit:
            return None
        return max(0.0, (self.series.limit - needed) / min(late, slope(points)))


def _at_steps(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    """The least of each step: batches come and go, and a save that is not seen yet is after the last
    step's line."""
    least: dict[int, MemoryPoint] = {}
    for point in points:
        if point.iteration is not None and point.needed < least.setdefault(point.iteration, point).needed:
            least[point.iteration] = point
    return list(least.values())


def save_every(argv: Sequence[str], saved: Sequence[int | None]) -> int | None:
    """Iterations between saves: as they were made, else as the command says.

    >>> save_every(["megatron", "--save_interval", "200"], [])
    200
    >>> save_every([], [50])
    50
    """
    done = [iteration for iteration in saved if iteration]
    if len(done) > 1 and done[-1] > done[-2]:
        return done[-1] - done[-2]
    # ms-swift: --save_steps; megatron-lm and ms-swift 3.x: --save_interval, --save-interval
    for text in flag_values(argv, "save_steps", "save_interval"):
        if text.isdecimal() and int(text[:10]):
            return int(text[:10])
    return done[0] if done else None


class SaveMemory:
    """All limits that were seen; `outlooks` of the one that is worst."""

    def __init__(self, progress: Progress, log: SaveLog) -> None:
        self._progress, self._log = progress, log
        self.limits: dict[str, LimitMemory] = {}  # by path
        self.steep = 0  # how many readings were of a steep rise near a limit: the kernel may kill at once

    def add(self, at: float, fact: CgroupMemory | HostMemory) -> None:
        iteration = self._progress.iteration
        if isinstance(fact, HostMemory):
            swapped = max(0, fact.swap_total_bytes - fact.swap_free_bytes)
            needed, limit = (
                fact.total_bytes - fact.available_bytes + swapped,
                fact.total_bytes + fact.swap_total_bytes,
            )
            self._add(HOST, MemoryPoint(at, needed, iteration=iteration), limit)
        else:
            # Dirty cache too is written back by the kernel before it kills: it slows a save down, and ends none.
            needed = max(0, fact.usage_bytes - fact.cache_bytes)
            point = MemoryPoint(at, needed, fact.cache_bytes, fact.peak_bytes, iteration)
            self._add(fact.path, point, fact.limit_bytes)

    def _add(self, path: str, point: MemoryPoint, limit: int | None) -> None:
        known = self.limits.get(path)
        if known is None:
            if len(self.limits) >= 64:
                return
            known = self.limits[path] = LimitMemory(path, self._progress, self._log)
        before = known.series.points[-1].needed if known.series.points else point.needed
        known.add(point, limit)
        near = bool(limit) and point.needed >= _NEAR * (limit or 0)
        self.steep += near and bool(known.shapes) and point.needed - before >= _STEEP * point.needed

    def saved(self, log: SaveLog) -> None:
        """Called after whatever may have ended a save."""
        last = log.saves[-1] if log.saves else None
        if last is not None and last.ended is not None and not last.cut_off:
            for limit in self.limits.values():
                limit.saved(last)

    def start_over(self) -> None:
        for limit in self.limits.values():
            limit.forget()

    def fresh(self) -> list[LimitMemory]:
        """Those that are still read: a rank that moved left another behind."""
        read = [(limit.series.points[-1].at, limit) for limit in self.limits.values() if limit.series.points]
        newest = max((at for at, _ in read), default=0.0)
        return [limit for at, limit in read if at >= newest - _FRESH_SECONDS]

    def outlook(
        self, now: float, argv: Sequence[str] = (), estimate: int | None = None
    ) -> tuple[LimitMemory, Outlook] | None:
        """Of the limit with the greatest risk, else of the one with the least room left."""
        asked = [(limit, limit.outlook(now, argv, estimate)) for limit in self.fresh()]
        known = [(limit, outlook) for limit, outlook in asked if outlook is not None]
        return max(known, key=lambda pair: (pair[1].risk, pair[1].peak / pair[1].limit), default=None)
