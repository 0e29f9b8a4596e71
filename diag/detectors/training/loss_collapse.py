"""Is the loss a constant, so that nothing is learnt?"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence

from diag.detectors.findings import finding
from diag.detectors.training.numbers import LossDetector, digits
from diag.model import Finding, Severity
from diag.state.points import Point, format_iteration
from diag.state.view import JobView

_LN_2 = math.log(2)  # the sigmoid loss of DPO where policy and reference agree: where each run begins
_FEW = 10  # lines with a reason to see (no gradient, no learning rate)
_MANY = 50  # without: a warm-up that moves bf16 weights by less than they resolve looks the same for some tens of steps
_HIDDEN = 3  # zeros in lines whose gradients are no numbers


class LossCollapseDetector(LossDetector):
    name = "loss-collapse"

    def __init__(self) -> None:
        super().__init__()
        self._same: deque[Point] = deque(maxlen=_MANY)
        self._first: Point | None = None
        self._length = 0

    def _see(self, point: Point, loss: float) -> None:
        again = self._same and self._same[-1].loss == loss and self._same[-1].iteration != point.iteration
        if not again or (point.iteration or 0) < (self._same[-1].iteration or 0):
            self._same.clear()
            self._first, self._length = point, 0
        self._same.append(point)
        self._length += 1

    def _cause(self) -> str:
        points = list(self._same)
        last, many = points[-1], len(points) >= _MANY
        if last.loss == 0 and len(points) >= _HIDDEN and all(one.bad_grad for one in points[-_HIDDEN:]):
            return "nan_hidden"
        if len(points) < _FEW or not last.finite_loss:
            return ""
        if last.loss == 0 and (last.margin or 0.0) > 0:
            return ""  # it prefers all chosen by far: nothing is left to learn, and nothing is broken
        if all(one.grad == 0 for one in points[-_FEW:]):
            return "no_gradient"
        # ms-swift rounds to 8 digits: a warm-up begins with rates that print as 0.
        if many and all(one.rate == 0 for one in points):
            return "no_learning_rate"
        if last.loss == 0:
            return "zero"
        return "stuck" if many and not _warms_up(points) else ""

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        cause, first = self._cause() if self._same else "", self._first
        if not cause or first is None:
            return
        last = self._same[-1]
        assert last.loss is not None
        same = " (ln 2: policy and reference are the same to DPO)" if abs(last.loss - _LN_2) < 1e-4 else ""
        why = {
            "nan_hidden": f"; the gradient norm is {digits(last.grad)}",
            "no_gradient": "; the gradient norm is 0",
            "no_learning_rate": "; the learning rate is 0",
        }.get(cause, "")
        learnt = cause == "zero" and (last.grad or 0.0) > 0  # it is below what is printed: the data are known
        yield finding(
            self.name,
            cause,
            since=first.at,
            summary=f"the loss is {digits(last.loss)} in {self._length} lines in a row, since "
            f"{format_iteration(first.iteration).removeprefix('at ')}{same}{why}",
            evidence=[last.evidence()],
            severity=Severity.INFO if learnt else None,
        )


def _warms_up(points: Sequence[Point]) -> bool:
    """Without a rate that is not known; a program that prints none is a toy as a rule."""
    rates = [point.rate for point in points if point.rate is not None]
    return not rates or (rates[-1] > rates[0] and rates[-1] == max(rates))
