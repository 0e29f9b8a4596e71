"""Is the loss a constant, so that nothing is learnt?"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from diag.detectors.training.numbers import Numbers, Point, PointReader, format_iteration, say
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity
from diag.state.view import JobView

_LN_2 = math.log(2)  # the sigmoid loss of DPO where policy and reference agree: where each run begins
_FEW = 10  # lines with a reason to see (no gradient, no learning rate)
_MANY = 50  # without: a warm-up that moves bf16 weights by less than they can tell looks the same for some tens of steps
_HIDDEN = 3  # zeros beside gradients that are no numbers
_ADVICE = {
    "nan_hidden": "transformers' logging_nan_inf_filter writes 0 for a loss that is nan: stop the job and see loss-nan (bf16 "
    "instead of fp16, a lower learning rate, a look at the batch).",
    "no_gradient": "No gradient reaches a weight: look at what is frozen (--freeze_parameters_ratio, --train_type or "
    "--tuner_type, target modules of LoRA), at labels that are all -100 (template, --max_length that cuts off the answer), and "
    "whether chosen and rejected are the same text.",
    "no_learning_rate": "The learning rate is 0: see --lr or --learning_rate, --min_lr, the scheduler and its number of steps "
    "(a resumed optimizer that was at its end).",
    "stuck": "Gradients come but the loss does not move: check that the optimizer gets the trained weights (resume, offload), "
    "that the learning rate is not below what bf16 weights can take (1e-6 and more), and that chosen and rejected differ.",
    "zero": "A loss of exactly 0 has nothing to learn: labels that are all masked, an empty answer after --max_length, or a "
    "model that knows its data by heart.",
}


class LossCollapseDetector:
    """Meaning: the loss has the same value in line after line: nothing is learnt.

    Evidence: 10 lines of the same loss to the last digit with a gradient norm of 0; 50 lines with a learning
    rate of 0 (in a warm-up it may be rounded), or where neither tells why and the rate is printed and no
    longer rises (a warm-up moves bf16 weights too little at first); 0 in 3 lines whose gradient norm is nan
    or inf. A DPO loss that stays 0.6931 is policy and reference being the same: each run begins there. A loss
    of 0 beside gradients is an info.

    What to do: the advice follows the cause: no_gradient, no_learning_rate, nan_hidden (transformers prints 0
    for nan), zero, stuck.

    False alarms: a loss that is printed with few digits and has converged; losses of reinforcement learning
    are not looked at.
    """

    name = "loss-collapse"
    listens = PointReader.listens

    def __init__(self) -> None:
        self._reader = PointReader()
        self._same: deque[Point] = deque(maxlen=_MANY)
        self._first: Point | None = None
        self._length = 0

    def observe(self, at: float, fact: Numbers) -> None:
        point = self._reader.observe(at, fact)
        if point is None or point.loss is None or point.policy:
            return
        again = (
            self._same and self._same[-1].loss == point.loss and self._same[-1].iteration != point.iteration
        )
        if not again or (point.iteration or 0) < (self._same[-1].iteration or 0):
            self._same.clear()
            self._first, self._length = point, 0
        self._same.append(point)
        self._length += 1

    def _cause(self) -> str:
        points = list(self._same)
        zero = points[-1].loss == 0
        if zero and len(points) >= _HIDDEN and all(point.bad_grad for point in points[-_HIDDEN:]):
            return "nan_hidden"
        if len(points) < _FEW or not points[-1].finite_loss:
            return ""
        last = points[-_FEW:]
        if zero and (last[-1].margin or 0.0) > 0:
            return ""  # it prefers all chosen by far: nothing is left to learn, and nothing is broken
        if all(point.grad == 0 for point in last):
            return "no_gradient"
        # ms-swift rounds to 8 digits: a warm-up begins with rates that print as 0.
        if len(points) >= _MANY and all(point.rate == 0 for point in points):
            return "no_learning_rate"
        if zero:
            return "zero"
        rates = [point.rate for point in points if point.rate is not None]
        # Without a rate it is not known whether the warm-up goes on; a program that prints none is a toy as a
        # rule.
        rises = not rates or (rates[-1] > rates[0] and rates[-1] == max(rates))
        return "stuck" if len(points) >= _MANY and not rises else ""

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        cause, first = self._cause() if self._same else "", self._first
        if not cause or first is None:
            return
        last = self._same[-1]
        assert last.loss is not None
        same = " (ln 2: policy and reference are the same to DPO)" if abs(last.loss - _LN_2) < 1e-4 else ""
        why = {
            "nan_hidden": f"; the gradient norm is {say(last.grad)}",
            "no_gradient": "; the gradient norm is 0",
            "no_learning_rate": "; the learning rate is 0",
        }.get(cause, "")
        severity = Severity.CRITICAL if cause == "nan_hidden" else Severity.WARNING
        if cause == "zero" and (last.grad or 0.0) > 0:
            # gradients come: it is below what is printed, and the model knows its data
            severity = Severity.INFO
        yield Finding(
            id="loss-collapse",
            subject=JOB,
            severity=severity,
            confidence=Confidence.MEDIUM if cause == "stuck" else Confidence.HIGH,
            cause=cause,
            since=first.at,
            summary=f"the loss is {say(last.loss)} in {self._length} lines in a row, since "
            f"{format_iteration(first.iteration).removeprefix('at ')}{same}{why}",
            advice=_ADVICE[cause],
            evidence=(Evidence("output", last.text[:500], last.at),),
        )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()
