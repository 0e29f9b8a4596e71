"""Does the loss jump up, or rise for long?"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diag.detectors.findings import finding
from diag.detectors.training.numbers import LossDetector, digits
from diag.model import Finding
from diag.state.exact import fisher
from diag.state.points import Point, format_iteration
from diag.state.view import JobView

_TRAILING, _LEAST_TRAILING = 50, 20
_IN_A_ROW = 3  # one bad batch is every run's; three lines of them are not
_SIGMAS = 10.0
_WINDOW = 30
_LEAST_RISE = 0.25  # ours: a DPO loss of 0.02 that becomes 0.06 learns still
_FALSE_ALARM = 1e-7


class LossSpikeDetector(LossDetector):
    name = "loss-spike"

    def __init__(self) -> None:
        super().__init__()
        self._before: deque[Point] = deque(maxlen=_TRAILING)
        self._high: list[Point] = []  # the values above, in a row, while no spike is open
        self._spike: list[Point] = []
        self._usual = self._limit = 0.0
        self._back = 0

    def _see(self, point: Point, loss: float) -> None:
        if not point.finite_loss:
            return
        if _went_back(self._before, point):
            self._before.clear()
            self._high, self._spike = [], []
        if self._spike:
            self._go_on(point, loss)
            return
        if (
            len(self._before) >= _LEAST_TRAILING
            and (self._high or self._is_high(loss))
            and loss > self._limit
        ):
            self._high.append(point)
            if len(self._high) == _IN_A_ROW:
                self._spike, self._high, self._back = self._high, [], 0
            return
        self._before.extend(self._high)
        self._high = []
        self._before.append(point)

    def _is_high(self, loss: float) -> bool:
        # nearly all are below one of the last few already, and so below any limit
        if self._before and loss <= 1.2 * (self._before[-1].loss or 0.0):
            return False
        values = [point.loss for point in self._before if point.loss is not None]
        if loss <= 1.2 * max(values):
            return False
        self._usual = statistics.median(values)
        spread = 1.4826 * statistics.median(abs(value - self._usual) for value in values)
        self._limit = max(
            1.2 * max(values), 2 * self._usual, self._usual + max(_LEAST_RISE, _SIGMAS * spread)
        )
        return loss > self._limit and min(values) > 0  # around zero, twice as much means nothing

    def _go_on(self, point: Point, loss: float) -> None:
        self._spike.append(point)
        del self._spike[_IN_A_ROW:-1]
        self._back = 0 if loss > self._limit else self._back + 1
        if self._back >= _IN_A_ROW:
            self._spike = []

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if not self._spike:
            return
        first, last = self._spike[0], self._spike[-1]
        grads = [point.grad for point in self._before if point.grad is not None]
        grad = ""
        if grads and first.grad is not None:
            grad = f"; the gradient norm was {digits(first.grad)} ({digits(statistics.median(grads))} before)"
        yield finding(
            self.name,
            since=first.at,
            summary=f"the loss jumped to {digits(first.loss)} {format_iteration(first.iteration)}: {digits(self._usual)} is the "
            f"median of the {len(self._before)} lines before, {digits(last.loss)} the value now{grad}",
            evidence=[first.evidence(300), last.evidence(300)],
        )


@dataclass(frozen=True, slots=True)
class _Rise:
    since: Point
    best: float
    best_at: int | None
    now: float


class LossDivergenceDetector(LossDetector):
    name = "loss-divergence"

    def __init__(self) -> None:
        super().__init__()
        self._points: deque[Point] = deque(maxlen=_WINDOW)
        self._first: float | None = None
        self._best: tuple[float, int | None, tuple[float, ...]] | None = None
        self._positive = True
        self._rise: _Rise | None = None

    def _see(self, point: Point, loss: float) -> None:
        if not point.finite_loss:
            return
        if _went_back(self._points, point):
            self._points.clear()
            self._rise = None
        self._positive &= loss > 0
        self._points.append(point)
        if len(self._points) < _WINDOW or not self._positive:
            self._rise = None
            return
        values = tuple(item.loss for item in self._points if item.loss is not None)
        median = statistics.median(values)
        if self._first is None:
            self._first = median
        if self._best is None or median < self._best[0]:
            self._best = (median, point.iteration, values)
        self._rise = self._risen(values, median)

    def _risen(self, values: Sequence[float], median: float) -> _Rise | None:
        assert self._best is not None and self._first is not None
        best, best_at, low = self._best
        if median < max(2 * best, best + _LEAST_RISE) or not (median >= self._first or median >= 3 * best):
            return None
        middle = (best * median) ** 0.5
        few, many = (sum(value <= middle for value in part) for part in (values, low))
        if fisher(few, _WINDOW, many, _WINDOW) > _FALSE_ALARM:
            return None
        since = self._rise.since if self._rise is not None else self._points[0]
        return _Rise(since, best, best_at, median)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        rise = self._rise
        if rise is None:
            return
        first = f", {digits(self._first)} at the start" if self._first is not None else ""
        yield finding(
            self.name,
            since=rise.since.at,
            summary=f"the loss rises: {digits(rise.now)} is the median of the last {_WINDOW} lines, {digits(rise.best)} was the "
            f"lowest ({format_iteration(rise.best_at)}){first}",
            evidence=[self._points[-1].evidence(300)],
        )


def _went_back(points: Sequence[Point], point: Point) -> bool:
    """Another attempt, or another training, begins: its steps are counted anew."""
    last = points[-1].iteration if points else None
    return last is not None and point.iteration is not None and point.iteration < last
