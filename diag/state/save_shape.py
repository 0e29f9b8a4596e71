"""How one save used memory, and what the saves so far say of the next one and of the one under way. Pure.

A prediction is a mixture: each way to read the past (the same rise again, the same part given back again,
either growing on) is a component, weighted by how well it would have predicted the saves before. A save under way
is predicted by its pace and by what it has reached already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import mul

from diag.state.memory_series import MemoryPoint

_EPSILON = 8 << 20  # less is no rise: what diag's own readings may miss (memory_peek)
_CURVE = 64
# Of a rise: how well even saves that were all alike tell the next; of the base: readings are so far apart.
_FLOOR_OF_RISE, _FLOOR_OF_BASE = 0.02, 0.004
# Of the rise: by how much saves grow that grow unforeseen (mean of an exponential tail).
_UNSEEN_GROWTH = 0.25
_PACE = 0.1  # how well the pace of two equal stagings agrees, of the pace: links and disks are shared
_LOWEST = 0.06  # of the usual rise: below it are the steps' own comings and goings
_CLOSE_SECONDS = 1.2  # twice the time between two looks, and some
# belief that its pace tells a size that no earlier save tells, and how far that is believed
_SIZE_BY_PACE, _GROWTH = (0.1, 0.3)
_HELD_UP = 1.0  # belief, beside a density, that a pace means nothing because one of the two saves was held up
_LOOKAHEAD = 0.1  # seconds by which a rise that goes on is ahead of its last reading, at the least
_STANDS = 0.1  # a second without a rise leaves so much of the belief that it goes on


@dataclass(frozen=True, slots=True)
class SaveShape:
    """One save that is over. `curve`: (seconds since the rise began, bytes over the base); `exact`: the
    kernel's counter showed the peak. `given_back`: the sum of all falls in it."""

    number: int
    iteration: int | None
    base: int
    peak: int
    after: int
    given_back: int
    curve: tuple[tuple[float, int], ...]
    exact: bool = False

    @property
    def rise(self) -> int:
        return max(0, self.peak - self.base)

    @property
    def fall(self) -> int:
        """What it gave back: pinned staging and helper processes of the first save stay, and are not taken
        twice."""
        return min(max(self.given_back, self.peak - self.after), self.rise)


@dataclass(frozen=True, slots=True)
class Component:
    """A normal distribution of the peak; with `tail` an exponential one from `mid` upwards."""

    weight: float
    mid: float
    spread: float
    tail: bool = False

    def above(self, value: float) -> float:
        """The probability that the peak is over `value`."""
        if self.tail:
            return 1.0 if value <= self.mid else math.exp(-(value - self.mid) / self.spread)
        return 0.5 * math.erfc((value - self.mid) / (self.spread * math.sqrt(2)))


@dataclass(frozen=True, slots=True)
class Mixture:
    """What the peak may be. `reached` is what it is at least."""

    components: tuple[Component, ...]
    reached: float = 0.0

    def above(self, value: float) -> float:
        if value < self.reached:
            return 1.0
        total = sum(part.weight * part.above(self.reached) for part in self.components)
        if total <= 1e-9:
            return 0.0
        return min(1.0, sum(part.weight * part.above(value) for part in self.components) / total)

    def quantile(self, share: float) -> float:
        """The peak that is not passed with this probability."""
        low = self.reached or min(part.mid - 6 * part.spread for part in self.components)
        high = max(low, *(part.mid + 8 * part.spread for part in self.components))
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (low, middle) if self.above(middle) < 1 - share else (middle, high)
        return high


@dataclass(frozen=True, slots=True)
class Running:
    """A save under way: the points since it began, over `base`."""

    base: int
    points: tuple[MemoryPoint, ...]
    now: float

    @property
    def reached(self) -> int:
        return max((point.needed for point in self.points), default=self.base)

    @property
    def curve(self) -> list[tuple[float, int]]:
        return [(point.at, point.needed - self.base) for point in self.points]

    @property
    def stands_for(self) -> float:
        """Seconds since the last reading that was higher than all before it by what counts."""
        top, since = self.base + _EPSILON, self.now
        for point in self.points:
            if point.needed > top:
                top, since = point.needed + _EPSILON // 2, point.at
        return self.now - since

    @property
    def last_pace(self) -> float:
        """Bytes a second between the last two readings that are far enough apart; 0 where it does not rise."""
        last = self.points[-1]
        for point in reversed(self.points[:-1]):
            if last.at - point.at >= 0.4:
                return max(0.0, (last.needed - point.needed) / (last.at - point.at))
        return 0.0


def given_back(points: Sequence[MemoryPoint]) -> int:
    """The sum of all falls: ranks give back one after the other, while helper processes still grow."""
    return sum(a.needed - b.needed for a, b in pairwise(points) if a.needed - b.needed > _EPSILON)


def shape_of(
    number: int, iteration: int | None, base: MemoryPoint, points: Sequence[MemoryPoint]
) -> SaveShape:
    """`points` are those of the save, `base` the reading that held when it began."""
    peak, exact = max([base.needed, *(point.needed for point in points)]), False
    counters = [point.peak for point in (base, *points) if point.peak is not None]
    caches = [point.cache for point in (base, *points)]
    if len(counters) > 1 and counters[-1] > counters[0]:
        # The counter rose in this save, so it is this save's peak, page cache included: which part was cache
        # is known from readings.
        known, unsure = counters[-1] - max(caches), max(caches) - min(caches)
        peak = max(peak, known)
        exact = unsure <= _EPSILON
    rise = peak - base.needed
    started = base.at
    for point in points:
        if point.needed - base.needed > max(_EPSILON, 0.03 * rise):
            break
        started = point.at
    curve = [(point.at - started, point.needed - base.needed) for point in points if point.at >= started]
    step = max(1, len(curve) // _CURVE)
    falls, after = given_back(points), points[-1].needed
    return SaveShape(number, iteration, base.needed, peak, after, falls, tuple(curve[::step]), exact)


def quicker(
    now: Sequence[tuple[float, float]], before: Sequence[tuple[float, float]], usual: float
) -> float | None:
    """How many times as fast as before this save rises, over the same part of the rise; None where that
    is not known yet.

    >>> quicker([(0, 0), (1, 100), (2, 200)], [(0, 0), (0.5, 25), (1, 50), (2, 100), (3, 150), (4, 200)], 400)
    2.0
    """
    rising = [(t, x) for t, x in now if x >= _LOWEST * usual]
    if len(rising) < 2:
        return None
    (t0, x0), (t1, x1) = rising[0], max(rising, key=lambda point: point[1])
    earlier = _crossing(before, x0), _crossing(before, x1)
    if earlier[0] is None or earlier[1] is None or t1 - t0 < 0.4 or earlier[1] - earlier[0] < 0.2:
        return None
    return (earlier[1] - earlier[0]) / (t1 - t0)


def _crossing(curve: Sequence[tuple[float, float]], level: float) -> float | None:
    """When the curve first came to a level, between two readings that are close enough to tell."""
    for (t0, x0), (t1, x1) in pairwise(curve):
        if x0 <= level <= x1 and x1 > x0:
            return t0 + (t1 - t0) * (level - x0) / (x1 - x0) if t1 - t0 <= _CLOSE_SECONDS else None
    return None


# --- before a save

_Teller = Callable[[Sequence[SaveShape], float], float]


def _same_rise(past: Sequence[SaveShape], base: float) -> float:
    return base + past[-1].rise


def _same_fall(past: Sequence[SaveShape], base: float) -> float:
    return base + past[-1].fall


def _growing(part: Callable[[SaveShape], int]) -> _Teller:
    def tell(past: Sequence[SaveShape], base: float) -> float:
        last, before = part(past[-1]), part(past[-2])
        return base + max(0.0, last + (last - before))

    return tell


def _growing_faster(past: Sequence[SaveShape], base: float) -> float:
    last, before = past[-1].fall, past[-2].fall
    return base + last * min(2.0, max(0.7, last / before)) if before > 0 else base + last


# function, saves that it needs, belief before anything is seen, and which of them it builds on: what is wrong
# with that is wrong with it. What the first save keeps is most often not taken again (pinned staging, Manager
# processes), so its fall tells more than its rise.
_TELLERS: tuple[tuple[_Teller, int, float, int], ...] = (
    (_same_rise, 1, 0.3, 0),
    (_same_fall, 1, 0.6, 1),
    (_growing(lambda shape: shape.rise), 2, 0.3, 0),
    (_growing(lambda shape: shape.fall), 2, 0.4, 1),
    (_growing_faster, 2, 0.3, 1),
)
_UNTRIED = 0.07  # of the rise: how far a way to read the past may be off that was never tried
_USUALLY = 0.6  # of the belief in a way to read the past: that it goes on as well as it did for most saves
_FORGETS = 0.4  # an older save counts so much of the next newer one
_UNFORESEEN = 0.25  # belief that none of the above holds: it grows unforeseen


def before_save(shapes: Sequence[SaveShape], base: float, unsure: float = 0.0) -> Mixture:
    """What the next save will need, from those so far (one at the least) and the base it will begin from.

    >>> same = [SaveShape(n, n, 100 << 20, 300 << 20, 100 << 20, 200 << 20, ()) for n in (1, 2, 3)]
    >>> round(before_save(same, 100 << 20).quantile(0.5) / (1 << 20))
    303
    """
    rise = max(1.0, float(shapes[-1].rise), float(shapes[-1].fall))
    floor = _FLOOR_OF_RISE * rise + _FLOOR_OF_BASE * base + unsure + 1.0
    parts = []
    squares: list[float] = []
    for tell, needs, belief, family in _TELLERS:
        if len(shapes) < needs:
            continue
        tried = range(len(shapes) - 1, needs - 1, -1)
        errors = [(tell(shapes[:index], shapes[index].base) - shapes[index].peak) ** 2 for index in tried]
        weights = [_FORGETS**age for age in range(len(errors))]
        # Untried, it may be off by a part of the rise; each trial makes that count less.
        untried = (_UNTRIED * rise) ** 2
        square = (sum(map(mul, weights, errors)) + 0.5 * untried) / (sum(weights) + 0.5)
        if not errors and family < len(squares):
            square = max(square, squares[family])
        squares.append(square)
        fit = belief / (square + floor**2)
        # One save that jumped is no reason to think that each does: what predicted the others well is believed to
        # go on, too.
        middle = sorted(errors)[(len(errors) - 1) // 2] if errors else square
        usually = min(square, middle + untried / (1 + len(errors)))
        for share, spread in ((_USUALLY, usually), (1 - _USUALLY, square)):
            parts.append((share * fit, tell(shapes, base), math.sqrt(spread + floor**2)))
    total = sum(weight for weight, _, _ in parts)
    known = [Component((1 - _UNFORESEEN) * weight / total, mid, spread) for weight, mid, spread in parts]
    usual = sum(part.weight * part.mid for part in known) / (1 - _UNFORESEEN)
    return Mixture((*known, Component(_UNFORESEEN, usual, _UNSEEN_GROWTH * rise, tail=True)))


# --- in a save


def in_save(shapes: Sequence[SaveShape], running: Running) -> Mixture:
    """What the save under way will need. Sizes that its pace speaks against count less, and what is passed
    counts no more."""
    ahead = running.last_pace * _LOOKAHEAD if running.stands_for < 0.8 else 0.0
    reached = running.reached + ahead
    if not shapes:
        spread = _UNSEEN_GROWTH * max(1.0, reached - running.base)
        return Mixture((Component(1.0, reached, spread, tail=True),), reached)
    expected = before_save(shapes, running.base)
    last = shapes[-1]
    usual = max(1.0, float(max(last.fall, _EPSILON)))
    pace = quicker(running.curve, last.curve, usual)
    parts = list(expected.components)
    seen = (running.reached - running.base) / usual
    if pace is not None:
        parts = _by_pace(parts, running.base, usual, pace, _PACE + 0.05 * max(0.0, 1 - seen))
    still = 1.0 - _STANDS ** max(0.0, running.stands_for - 0.7) if seen > 0.3 else 0.0
    parts = [replace(part, weight=part.weight * (1 - still)) for part in parts]
    if still > 0:
        parts.append(Component(still * 2, float(running.reached), _FLOOR_OF_RISE * usual))
    return Mixture(tuple(parts), reached)


def _by_pace(
    parts: Sequence[Component], base: float, usual: float, pace: float, noise: float
) -> list[Component]:
    """Either each save takes the same time, and then the pace tells the size, or each has the same pace,
    which tells nothing."""
    made = []
    for part in parts:
        ratio = (part.mid - base) / usual
        width = math.hypot(noise, 0.0 if part.tail else part.spread / usual)
        same_time = 0.6 if part.tail else _density(pace, ratio, width)
        same_pace = _density(pace, 1.0, noise) + _HELD_UP
        weight = part.weight * 0.5 * (same_time * (not part.tail) + same_pace)
        made.append(replace(part, weight=weight))
    # A save that is half as large again is rare, and a rank or link that was slow for once is not.
    likely = _SIZE_BY_PACE * _density(pace, 1.0, _GROWTH) * _GROWTH
    made.append(Component(likely, base + usual * pace, (noise + 0.03) * usual * pace))
    return made


def _density(value: float, mid: float, width: float) -> float:
    return math.exp(-0.5 * ((value - mid) / width) ** 2) / (width * 2.5)
