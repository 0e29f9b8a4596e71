"""How far the job is, as its log tells: its phase, steps, saves, and what it printed last. Judges nothing.

`JobState` adds what processes and stacks tell; only the methods below write what they own.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from typing import Any

from diag.model.observations import (
    BarMoved,
    EpochStarted,
    Iteration,
    LookedAway,
    MetricsLogged,
    Observation,
    PhaseMarked,
    SaveFinished,
    SavesBehind,
    SaveStarted,
    StepsPlanned,
)
from diag.state.saves import SaveLog
from diag.state.silences import Silences
from diag.state.steptimes import StepTimes

__all__ = ["PROGRESS_HANDLERS", "Progress"]

# Marks of the start-up that other processes of the job may print again at any time.
_STARTING_PHASES = ("launch", "rendezvous", "model_load")


class Progress:
    """The base of `JobState`: told marks and steps."""

    def __init__(self) -> None:
        self.phase = "launch"
        self.phase_at: float | None = None
        self.marked_phase = "launch"
        self.own_phase = "launch"  # without what another node's log told
        self.borrowed = False  # this node's log tells no steps: phase and iteration are the job hub's word
        self.epoch: int | None = (
            None  # the one that the log said began before the first step; None where it says no such thing
        )
        self.phase_line = ""  # the line that marked it; "" when stacks or processes told
        self.phases: deque[tuple[float, str]] = deque(maxlen=64)  # when each began
        self.iteration: int | None = None
        self.total_iterations = 0
        self.iteration_at: float | None = None
        self.metrics: dict[str, float] = {}
        self.step_seconds: deque[float] = deque(maxlen=64)
        self.line_seconds: deque[float] = deque(maxlen=64)  # between lines that report steps
        self.told_step_seconds: float | None = None  # as a node says whose log tells the steps
        self.steps = StepTimes()
        self.silences = Silences()
        self.save_log = SaveLog()
        self._bar: tuple[int, int] | None = None
        self._planned_steps = 0
        self.log_moved_at: float | None = None

    def step_p95(self) -> float | None:
        """Seconds a training step takes, 95th percentile of those seen, one freak left out; None before the
        second step.

        One step far longer than all others was no step's length but something that happened in it: `silences`
        keeps that.
        """
        steps = sorted(self.step_seconds)
        if len(steps) > 2 and steps[-1] > 2 * steps[-2]:
            steps.pop()
        if len(steps) < 2:
            return self.told_step_seconds or (steps[0] if steps else None)
        return statistics.quantiles(steps, n=20, method="inclusive")[-1]

    def phase_then(self, at: float) -> str:
        """The phase at an earlier moment, as it was told until then; the first known for a time before."""
        first = self.phases[0][1] if self.phases else self.phase
        return next((phase for began, phase in reversed(self.phases) if began <= at), first)

    def _phase_marked(self, at: float, fact: PhaseMarked) -> None:
        self.log_moved_at = at
        phase = fact.phase
        if self.iteration is not None and phase in _STARTING_PHASES:
            return  # a worker that imports DeepSpeed, a model that is loaded for an evaluation: the job has long begun
        if phase == "first_step" and self.phase == "teardown":
            self.iteration = self.iteration_at = self.epoch = (
                None  # one training is over, another begins in these processes
            )
            self.steps.start_over()
        if phase == "steady" and self.iteration is None:
            phase = "first_step"  # an evaluation before the first step
        self._mark(at, phase, fact.text)

    def _bar_moved(self, at: float, fact: BarMoved) -> None:
        """The training's bar counts as steps. Beside such a bar, another that has no name either is an
        evaluation's."""
        moved, self._bar = self._bar != (fact.done, fact.total), (fact.done, fact.total)
        if self._planned_steps and fact.total == self._planned_steps:
            if fact.done:
                self._iteration(at, Iteration(fact.rank, fact.done, fact.total, fact.text))
            elif moved:
                self._phase_marked(at, PhaseMarked(fact.rank, "first_step", fact.text))
            return
        if moved:
            self.log_moved_at = at
        if self._planned_steps and self.phase in ("steady", "eval") and fact.done < fact.total:
            self._mark(at, "eval", fact.text)

    def _steps_planned(self, at: float, fact: StepsPlanned) -> None:
        self.log_moved_at = at
        self._planned_steps = fact.total

    def _metrics_logged(self, at: float, fact: MetricsLogged) -> None:
        """Trainer prints its numbers over the training's bar: of which total that is, need not have been
        announced."""
        numbers = dict(fact.metrics)
        self.metrics.update(numbers)
        self.log_moved_at = at
        if any(name.startswith("eval_") for name in numbers):
            self.steps.disturbed()  # its bar may not have been seen
        if "train_runtime" in numbers:
            self._mark(at, "teardown", fact.text)
        elif "loss" in numbers:
            if self._bar is not None and not self._planned_steps and self._bar[1] > 0:
                self._planned_steps = self._bar[1]
            if self.iteration is None:
                self._mark(at, "training", fact.text)  # steps are made, of a length that is not told yet
        elif self.phase == "eval":
            self._mark(at, "steady" if self.iteration is not None else "first_step")

    def _looked_away(self, at: float, fact: LookedAway) -> None:
        self.steps.looked_away(at)

    def _epoch(self, at: float, fact: EpochStarted) -> None:
        self.log_moved_at = at
        if self.iteration is None:
            self.epoch = fact.epoch
            self._mark(at, "first_step", fact.text)

    def _iteration(self, at: float, fact: Iteration) -> None:
        if self.borrowed:
            self.borrowed, self.iteration = False, None
        if self.iteration is not None and fact.iteration < self.iteration and not fact.metrics:
            return  # a bar that was redrawn late: the metrics line was ahead of it
        late = self.steps.comes_late(at)  # nor is the line before it any measure of when it was written
        if (
            self.iteration is not None
            and self.iteration_at is not None
            and fact.iteration > self.iteration
            and not late
        ):
            self.line_seconds.append(at - self.iteration_at)
            self.step_seconds.append((at - self.iteration_at) / (fact.iteration - self.iteration))
        if self.iteration is None or fact.iteration != self.iteration:
            self.log_moved_at = at
            self.iteration_at = at
        if self.iteration is None or fact.iteration != self.iteration:
            self.steps.reported(at, fact.iteration, dict(fact.metrics))
        self.iteration, self.total_iterations = fact.iteration, fact.total or self.total_iterations
        self.metrics.update(dict(fact.metrics))
        # A bar is drawn again whenever a line is printed: the step that was made last says nothing of the
        # work after it.
        if self.iteration_at == at or self.phase not in ("eval", "ckpt_save", "teardown"):
            self._mark(at, "steady")

    def _save_started(self, at: float, fact: SaveStarted) -> None:
        self.log_moved_at = at
        self._mark(at, "ckpt_save", fact.text)
        self.save_log.began(
            at, self.iteration, at, "log", fact.path
        )  # only the path is new: the phase has begun it
        self.save_log.asynchronous |= fact.asynchronous

    def _saves_behind(self, at: float, fact: SavesBehind) -> None:
        self.save_log.asynchronous = True

    def _save_finished(self, at: float, fact: SaveFinished) -> None:
        self.steps.disturbed()  # ms-swift 4 says only this of a save
        part = (
            self.save_log.asynchronous and "`safetensors`" in fact.text
        )  # they are written at once, the rest later
        self.save_log.ended(
            at, self.iteration, self.iteration_at or self.phase_at or at, fact.path, written=not part
        )
        self.log_moved_at = at
        self._mark(at, "steady" if self.iteration is not None else self.phase)

    def _mark(self, at: float, phase: str, line: str = "") -> None:
        self.marked_phase = phase
        self._set_phase(at, phase)
        self.phase_line = line

    def borrow(self, at: float, phase: str, iteration: int | None, total: int) -> None:
        """The job hub's word on how far the job is, for a node whose own log does not tell it."""
        if (self.iteration is not None and not self.borrowed) or not phase or phase == "ended":
            return
        self.borrowed = iteration is not None
        self.iteration, self.total_iterations = iteration, total or self.total_iterations
        if self.own_phase != "ckpt_save":  # its stacks know better
            self._set_phase(at, phase, own=False)

    def _set_phase(self, at: float, phase: str, *, own: bool = True) -> None:
        if own:
            self.own_phase = phase
        if phase != self.phase:
            if phase != "steady":
                self.steps.disturbed()
            if self.phase_at is not None:
                self.silences.phase_ended(self.phase, at - self.phase_at)
            if phase == "ckpt_save":
                told_by = "log" if self.marked_phase == "ckpt_save" else "stacks"
                self.save_log.began(at, self.iteration, self.iteration_at or self.phase_at or at, told_by)
            elif self.phase == "ckpt_save":
                self.save_log.ended(at, self.iteration, at, cut_off=phase in ("ended", "rendezvous"))
            self.phase, self.phase_at, self.phase_line = phase, at, ""
            self.phases.append((at, phase))


PROGRESS_HANDLERS: dict[type[Observation], Callable[[Any, float, Any], None]] = {
    PhaseMarked: Progress._phase_marked,
    EpochStarted: Progress._epoch,
    Iteration: Progress._iteration,
    BarMoved: Progress._bar_moved,
    MetricsLogged: Progress._metrics_logged,
    StepsPlanned: Progress._steps_planned,
    SaveStarted: Progress._save_started,
    SaveFinished: Progress._save_finished,
    SavesBehind: Progress._saves_behind,
    LookedAway: Progress._looked_away,
}
