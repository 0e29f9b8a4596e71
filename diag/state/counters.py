"""Which number of a line's template is a counter: one that grows by itself, by amounts of one size or towards the
total beside it. Pure.

Of two that go together (epoch and batch) the inner one begins anew when the outer one grows. Ranks that print in turn,
with or without their number, repeat what the first of them showed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from diag.state.line_template import Count, Line, Value
from diag.state.rhythm import Rhythm, is_clockwork

_LEAST_GROWTHS = 4  # ours: so often seen to grow, by lines of more than one burst
_LEAST_SECONDS = 2.0
_BURST_SECONDS = 1.0  # ours: in less all ranks print their line of a step
_MOST_TIMES = (
    8  # ours: what grows by more of its usual amounts at once leapt, or lines in between were not read
)
_RECENT = 16
_CLOCK_RATIO = 0.002
_MOST_SERIES = 12  # of a template
_MOST_TEMPLATES = 64
_POINTS = 8  # of a value beside the counter
# A sleep is late by less than this, a line behind it too; where nothing but the counter changes it need not be as near.
_TIMER = (0.002, 0.0001)
_LIKE_TIMER = (0.010, 0.005)


@dataclass(slots=True, eq=False)
class Series:
    """One whole number of a template, and what it was before."""

    name: str
    total: int
    value: int
    began: float
    at: float  # when it grew last
    amount: int = 0  # by which it grew, the least of the last
    growths: int = 0
    all_growths: int = 0
    leaps: int = 0
    backs: int = 0
    base: int = 0  # of the laps before this one
    laps: int = 0  # how often it began anew
    lap_began: float = 0.0
    is_label: bool = False  # it says which, not how far: a rank, a layer
    outer: tuple[str, int] | None = None  # that grows when this begins anew
    rhythm: Rhythm = field(default_factory=Rhythm)
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_RECENT))  # seconds, amount

    @property
    def position(self) -> int:
        """How far it is, over all laps."""
        return self.base + self.value

    @property
    def is_counter(self) -> bool:
        return self.growths >= _LEAST_GROWTHS and not self.is_label and self.backs <= self.growths

    def next(self, at: float, value: int, *, outer_grew: bool) -> bool:
        """Whether it grew."""
        if value == self.value:
            return False
        if value < self.value:
            if self._begins_anew(value, outer_grew):
                self._begin(at, value)
                return True
            self._fall_back(at, value)
            return False
        grew = self._grow(at, value - self.value)
        self.value = value
        if grew:
            self.at = at
            self.rhythm.came(at)
        return grew

    def _begins_anew(self, value: int, outer_grew: bool) -> bool:
        """From nought or one again, well after it; or when what it is a part of went on."""
        if outer_grew:
            return self.growths >= 1 and value <= max(2 * self.amount, self.value // 4)
        return self.growths >= 3 and value <= max(1, self.amount) and self.value >= 4 * max(1, value)

    def _fall_back(self, at: float, value: int) -> None:
        """A rank that is behind the first; or a number that goes up and down, or leapt and is back."""
        self.backs += value < self.value - 2 * max(1, self.amount)
        if self.backs > max(8, self.growths):
            self.value, self.began, self.at, self.lap_began = value, at, at, at
            self.amount = self.growths = self.leaps = self.backs = 0

    def _begin(self, at: float, value: int) -> None:
        paused, took = at - self.at, self.at - self.lap_began
        # What runs through in a moment, each time after a pause, is a list: of ranks, layers, files.
        self.is_label = not self.total and took < _BURST_SECONDS and paused > 4 * took
        # A lap that begins with nought or is longer than what was seen of it: the next number follows on the last.
        self.base += self.total if self.total and self.value <= self.total else self.value + (value == 0)
        self.laps += 1
        self.value, self.at, self.lap_began = value, at, at
        self.all_growths += 1
        self.rhythm.came(at)

    def _grow(self, at: float, by: int) -> bool:
        if self.total and self.value + by > self.total:
            self.growths = 0
            return False
        if self.amount and by > _MOST_TIMES * self.amount and not self.total:
            self.leaps += 1
            if self.leaps > self.growths:
                self.growths = self.leaps = self.amount = 0
                self.recent.clear()
            return self.growths >= _LEAST_GROWTHS
        self.recent.append((at - self.at, by))
        self.amount = min(amount for _, amount in self.recent)
        self.growths += 1
        self.all_growths += 1
        return True

    def is_clock(self) -> bool:
        """It counts seconds, or parts of them."""
        seconds, grown = (sum(part) for part in zip(*self.recent, strict=True)) if self.recent else (0, 0)
        if len(self.recent) < _LEAST_GROWTHS or not seconds:
            return False
        return any(abs(grown / seconds / unit - 1) < _CLOCK_RATIO for unit in (1, 1000))

    def is_timer(self, seconds: float, ratio: float) -> bool:
        """It counts the ticks of one: each takes the same time, as a clock gives it. What is printed once a second and
        has grown by more or by less is no timer."""
        return is_clockwork([gap / amount for gap, amount in self.recent], seconds, ratio)


@dataclass(slots=True)
class Template:
    """All numbers of one kind of line."""

    series: OrderedDict[tuple[str, int], Series] = field(default_factory=OrderedDict)
    values: dict[str, deque[tuple[float, int, float, float]]] = field(default_factory=dict)

    def next(self, at: float, line: Line, least_seconds: float) -> Series | None:
        """The counter that grew with this line."""
        known = [(count, one) for count in line.counts if (one := self.series.get(count.key)) is not None]
        larger = [count.key for count, one in known if count.value > one.value]
        grew: list[Series] = []
        for count, one in known:
            laps = one.laps
            if not one.next(at, count.value, outer_grew=bool(larger)):
                continue
            grew.append(one)
            if one.laps > laps and larger:
                one.outer = larger[-1]
                # What begins anew when a number behind it grows says who prints: `[3] step 120`.
                in_place = count.key[0].isdigit() and not count.total
                one.is_label |= in_place and int(count.key[0]) < int(larger[0][0])
        if len(known) < len(line.counts):
            for count in line.counts:
                if count.key not in self.series:
                    self._add(at, count)
        counter = _finest([one for _, one in known], least_seconds)
        if counter is None or not any(one is counter for one in grew):
            return None
        self._note(at, counter, line.values)
        return counter

    def _add(self, at: float, count: Count) -> None:
        self.series[count.key] = Series(count.name, count.total, count.value, at, at, lap_began=at)
        if len(self.series) > _MOST_SERIES:
            self.series.popitem(last=False)

    def _note(self, at: float, counter: Series, values: tuple[Value, ...]) -> None:
        for value in values:
            kept = self.values.setdefault(value.key, deque(maxlen=_POINTS))
            kept.append((at, counter.position, value.value, value.unit))

    def holds(self, series: Series) -> bool:
        """It counts in these lines."""
        return any(one is series for one in self.series.values())

    def has_results(self) -> bool:
        """A fraction beside the counter changes with it and follows neither the time nor the count: a loss."""
        return any(_is_result(points) for points in self.values.values())


def _finest(series: list[Series], least_seconds: float) -> Series | None:
    """The counter of a line: it grows most often, and by the least."""
    found = [
        one for one in series if one.is_counter and not one.is_clock() and one.at - one.began >= least_seconds
    ]
    return min(found, key=lambda one: (-(one.all_growths // 4), one.amount, one.laps > 0), default=None)


def _is_result(points: deque[tuple[float, int, float, float]]) -> bool:
    last = [point for point in points if abs(point[2]) < 1e300]  # no nan
    if len(last) < _LEAST_GROWTHS or len({value for _, _, value, _ in last}) < 3:
        return False
    values = [value for _, _, value, _ in last]
    nearly = max(1.5 * max(unit for *_, unit in last), 0.1 * (max(values) - min(values)))
    return all(
        _off_line([float(point[place]) for point in last], values) > nearly for place in (0, 1)
    )  # fmt: skip


def _off_line(across: list[float], values: list[float]) -> float:
    """How far the values are from the straight line between the first and the last."""
    span = across[-1] - across[0]
    if span <= 0:
        return float("inf")
    slope = (values[-1] - values[0]) / span
    return max(
        abs(value - values[0] - slope * (x - across[0])) for x, value in zip(across, values, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Grown:
    """A counter grew with this line."""

    series: Series
    template: Template
    line: Line

    @property
    def by_timer(self) -> bool:
        return self.series.is_timer(*_TIMER)

    @property
    def like_timer(self) -> bool:
        return self.series.is_timer(*_LIKE_TIMER)

    @property
    def where(self) -> str:
        """
        In the words of the line: "batch 40 of epoch 3", "step 120".
        """
        name, series = word(self.series.name), self.series
        outer = self.template.series.get(series.outer) if series.outer is not None else None
        if outer is not None and word(outer.name) != "step":
            return f"{name} {series.value} of {word(outer.name)} {outer.value}"
        return f"{name} {series.value}" if not series.laps else f"step {series.position}"


def word(name: str) -> str:
    """What the counter is called in a sentence."""
    return name.lower() if 1 < len(name) <= 16 and name.replace("_", "").isalpha() else "step"


class Counters:
    """Given each line; keeps the templates that came last."""

    def __init__(self) -> None:
        self._templates: OrderedDict[str, Template] = OrderedDict()

    def next(self, at: float, line: Line, *, timed: bool = True) -> Grown | None:
        """`timed`: lines come when they are printed, and are not read from a file that was."""
        template = self._templates.pop(line.template, None) or Template()
        self._templates[line.template] = template
        if len(self._templates) > _MOST_TEMPLATES:
            self._templates.popitem(last=False)
        series = template.next(at, line, _LEAST_SECONDS if timed else 0.0)
        return None if series is None else Grown(series, template, line)

    def start_over(self) -> None:
        self._templates.clear()
