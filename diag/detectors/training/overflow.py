"""Does fp16 training lose its steps to overflows of the gradients?"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding
from diag.detectors.training.numbers import digits
from diag.model import Evidence, Finding, Severity
from diag.model.observations import LossScaleReduced
from diag.state.points import Point
from diag.state.view import JobView

# Dynamic scales begin at 2^16 (DeepSpeed, torch) or 2^32 (Megatron-LM) and halve until the gradients fit: 20
# steps.
_BEGIN = 50
_WINDOW = 20  # steps
_MOST_LOST = 0.5
_MINIMUM = 1.0


class Fp16OverflowDetector(Detector):
    name = "fp16-overflow"
    listens = (LossScaleReduced, Point)

    def __init__(self) -> None:
        self._iteration = 0
        self._first_iteration: int | None = None
        self._lost: deque[tuple[int, float]] = deque(maxlen=256)  # iteration, steps skipped
        self._scale: float | None = None
        self._highest = 0.0
        self._ended: tuple[float, LossScaleReduced] | None = None
        self._lost_at_minimum = 0.0
        self._last: tuple[float, str] = (0.0, "")
        self._since: float | None = None
        self._total = 0.0

    def observe(self, at: float, fact: LossScaleReduced | Point) -> None:
        if isinstance(fact, LossScaleReduced):
            if fact.at_minimum:
                self._ended = self._ended or (at, fact)
            elif fact.rank in (None, 0):
                self._skipped(at, 1.0, fact.text)
                self._scale = fact.reduced if fact.reduced is not None else self._scale
                self._highest = max(self._highest, self._scale or 0.0)
        else:
            self._see(at, fact)

    def _see(self, at: float, point: Point) -> None:
        before = self._iteration
        self._iteration = point.iteration if point.iteration is not None else before + 1
        if self._iteration < before:  # another attempt, from an earlier checkpoint
            self._lost.clear()
            self._first_iteration = self._ended = self._since = None
            self._total = self._lost_at_minimum = self._highest = 0.0
        if self._first_iteration is None:
            self._first_iteration = self._iteration
        if point.scale is not None:
            self._scale, self._highest = point.scale, max(self._highest, point.scale)
        if point.skipped:
            self._skipped(at, point.skipped, point.text)
        elif point.loss is not None and point.finite_loss:
            self._lost_at_minimum = 0.0  # a step was made

    def _skipped(self, at: float, steps: float, text: str) -> None:
        self._lost.append((self._iteration, steps))
        self._total += steps
        self._since = self._since or at
        self._last = (at, text)
        if self._scale is not None and self._scale <= _MINIMUM and self._highest > _MINIMUM:
            self._lost_at_minimum += steps

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        made = self._iteration - (self._first_iteration or 0)
        lost = sum(steps for iteration, steps in self._lost if iteration > self._iteration - _WINDOW)
        at_end = self._ended is not None or self._lost_at_minimum >= 3
        low = self._scale is not None and self._scale <= _MINIMUM < self._highest
        if not at_end and not low and not (made >= _BEGIN and lost >= _MOST_LOST * _WINDOW):
            return
        scale = (
            f"the loss scale is {digits(self._scale)}" if self._scale is not None else "the loss scale fell"
        )
        if at_end:
            summary = f"fp16: gradients overflow and the loss scale can fall no further ({scale}, from {digits(self._highest)})"
        elif low:
            highest = digits(self._highest)
            summary = f"fp16: {scale}, its end, down from {highest}: gradients overflow at any scale"
        else:
            summary = f"fp16: {lost:.0f} of the last {_WINDOW} steps were skipped as their gradients overflowed; {scale}"
        summary += f"; {self._total:.0f} steps were skipped up to iteration {self._iteration}"
        at, text = (self._ended[0], self._ended[1].text) if self._ended is not None else self._last
        yield finding(
            self.name,
            "minimum_scale" if at_end or low else "skipped_steps",
            summary=summary,
            since=self._since or at,
            evidence=[Evidence("output", text[:500], at)],
            severity=Severity.CRITICAL if at_end else None,
        )
