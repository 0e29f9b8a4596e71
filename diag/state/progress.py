"""How far the job is, as its log shows: its steps and what they took.

Phases that the log names are handed to `Phases`; saves are in `Saves`.
"""

from __future__ import annotations

import statistics
from collections import deque

from diag.model.observations import (
    BarMoved,
    EpochStarted,
    Iteration,
    JobVerdict,
    MetricsLogged,
    NodeDigest,
    PhaseMarked,
    RunEnded,
    SamplingGap,
    SaveFinished,
    SaveStarted,
    StepsPlanned,
)
from diag.state.cluster import Cluster, furthest
from diag.state.phases import STARTING_PHASES, Phases
from diag.state.reducer import (
    AttemptBegan,
    CounterGrew,
    PhaseChanged,
    RankStopped,
    Reducer,
    StepMade,
    Tell,
    takes,
)
from diag.state.rhythm import Rhythm
from diag.state.run import Run
from diag.state.steptimes import StepTimes

_FEW_NODES = 128  # of more, the word of the one that speaks is taken instead of asking all at each digest


class Progress(Reducer):
    """Owns the iteration."""

    def __init__(self, run: Run, cluster: Cluster, phases: Phases, tell: Tell) -> None:
        self._run, self._cluster, self._phases, self._tell = run, cluster, phases, tell
        self.iteration: int | None = None  # the last that was reported; None before the first
        self.iteration_at: float | None = None  # when it was reported first
        self.total_iterations = 0  # of the training, as its log says; 0 where it does not
        self.epoch: int | None = None  # the one that the log announced before the first step
        self.borrowed = False  # this node's log tells no steps: phase and iteration are the job hub's word
        self.metrics: dict[str, float] = {}  # the newest of each name
        self.step_seconds: deque[float] = deque(maxlen=64)  # a step, by the arrival of the lines
        self.line_seconds: deque[float] = deque(maxlen=64)  # between lines that report steps
        self.rhythm = Rhythm()  # of the lines that report steps, whatever came between them
        self.where = (
            ""  # the last step in the log's own words ("batch 40 of epoch 3"), where these were learned
        )
        self.told_step_seconds: float | None = None  # as a node says whose log tells the steps
        self.steps = StepTimes()  # what undisturbed steps took
        self.log_moved_at: float | None = None  # when a line last showed something new
        self.attempts: deque[tuple[float, int | None]] = deque(maxlen=64)  # when each past one ended, how far
        self._bar: tuple[int, int] | None = None  # done and total of the bar that moved last
        self._trainer_known = False  # a trainer that is known reports the steps
        self._planned_steps = 0  # of the training: the bar with this total is the training's

    # -- reading ------------------------------------------------------------------------------------------

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

    def overdue(self, now: float) -> float | None:
        """Seconds by which the next line with a step is late; 0 where it is not, None where that is not known."""
        return self.rhythm.overdue(now)

    def step_words(self) -> str:
        """The last step as its log calls it: "iteration 120", "batch 40 of epoch 3"."""
        return self.where or f"iteration {self.iteration}"

    def iteration_then(self, at: float) -> int | None:
        """The last of the attempt that ran at that moment, as far as it came."""
        return next((iteration for ended, iteration in self.attempts if at <= ended), self.iteration)

    # -- the log ------------------------------------------------------------------------------------------

    @takes(PhaseMarked)
    def _phase_marked(self, at: float, fact: PhaseMarked) -> None:
        self.log_moved_at = at
        phase = fact.phase
        if self.iteration is not None and phase in STARTING_PHASES:
            return  # a worker that imports DeepSpeed, a model loaded for an evaluation: the job has long begun
        if phase == "first_step" and self._phases.now == "teardown":
            # one training is over, another begins in these processes
            self.iteration = self.iteration_at = self.epoch = None
            self.steps.start_over()
        if phase == "steady" and self.iteration is None:
            phase = "first_step"  # an evaluation before the first step
        self._phases.mark(at, phase, fact.text)

    @takes(EpochStarted)
    def _epoch(self, at: float, fact: EpochStarted) -> None:
        self.log_moved_at = at
        if self.iteration is None:
            self.epoch = fact.epoch
            self._phases.mark(at, "first_step", fact.text)

    @takes(Iteration)
    def _iteration(self, at: float, fact: Iteration) -> None:
        if fact.text:  # a line of its log, and not another node's word
            self._by_trainer()
        self._step(at, fact)

    @takes(BarMoved)
    def _bar_moved(self, at: float, fact: BarMoved) -> None:
        """The training's bar counts as steps. Beside such a bar, another that has no name either is an
        evaluation's."""
        moved, self._bar = self._bar != (fact.done, fact.total), (fact.done, fact.total)
        if self._planned_steps and fact.total == self._planned_steps:
            if fact.done:
                self._by_trainer()
                self._step(at, Iteration(fact.rank, fact.done, fact.total, fact.text))
            elif moved:
                self._phase_marked(at, PhaseMarked(fact.rank, "first_step", fact.text))
        else:
            if moved:
                self.log_moved_at = at
            if self._planned_steps and self._phases.now in ("steady", "eval") and fact.done < fact.total:
                self._phases.mark(at, "eval", fact.text)

    @takes(CounterGrew)
    def _counter_grew(self, at: float, event: CounterGrew) -> None:
        """A line of a trainer that is not known."""
        if self._trainer_known:
            return
        if not event.steps:
            self.log_moved_at = at
            return
        if event.anew:
            self.iteration = self.iteration_at = None
            self.total_iterations = 0
            self._learn_history(at, event)
        self.where = event.where
        self.total_iterations = event.total  # of a lap the total is not the training's
        self._step(at, Iteration(None, event.iteration, event.total, event.text), event.line)

    def _learn_history(self, at: float, event: CounterGrew) -> None:
        """What is known of the lines before it was known that they tell steps, up to the one before this."""
        self.line_seconds.clear()
        self.step_seconds.clear()
        self.line_seconds.extend(seconds for seconds, _ in event.before)
        self.step_seconds.extend(seconds / steps for seconds, steps in event.before)
        self.rhythm = Rhythm(self.line_seconds)
        self.steps.forget()
        then = at - sum(self.line_seconds)
        iteration = event.iteration - sum(steps for _, steps in event.before)
        for seconds, steps in event.before:
            self.steps.reported(then, iteration, {})
            then, iteration = then + seconds, iteration + steps

    def _by_trainer(self) -> None:
        """A trainer that is known reports its steps: what was learned before of other lines is no longer asked."""
        if not self._trainer_known and self.where:
            self.iteration = self.iteration_at = None
            self.where = ""
        self._trainer_known = True

    @takes(StepsPlanned)
    def _steps_planned(self, at: float, fact: StepsPlanned) -> None:
        self.log_moved_at = at
        self._planned_steps = fact.total

    @takes(MetricsLogged)
    def _metrics_logged(self, at: float, fact: MetricsLogged) -> None:
        """Trainer prints its numbers over the training's bar: of which total that is, need not have been
        announced."""
        numbers = dict(fact.metrics)
        self.metrics.update(numbers)
        self.log_moved_at = at
        if any(name.startswith("eval_") for name in numbers):
            self.steps.disturbed()  # its bar may not have been seen
        if "train_runtime" in numbers:
            self._phases.mark(at, "teardown", fact.text)
        elif "loss" in numbers:
            if self._bar is not None and not self._planned_steps and self._bar[1] > 0:
                self._planned_steps = self._bar[1]
            if self.iteration is None:
                self._phases.mark(at, "training", fact.text)  # steps are made, of a length not yet known
        elif self._phases.now == "eval":
            self._phases.mark(at, "steady" if self.iteration is not None else "first_step")

    @takes(SaveStarted, SaveFinished)
    def _save(self, at: float, fact: SaveStarted | SaveFinished) -> None:
        self.log_moved_at = at
        if isinstance(fact, SaveFinished):
            self.steps.disturbed()  # ms-swift 4 prints only this of a save

    def _step(self, at: float, fact: Iteration, line: int = 0) -> None:
        if self.borrowed:
            self.borrowed, self.iteration = False, None
        if self.iteration is not None and fact.iteration < self.iteration and not fact.metrics:
            return  # a bar that was redrawn late: the metrics line was ahead of it
        late = self.steps.comes_late(at)  # nor is the line before it any measure of when it was written
        is_new = self.iteration != fact.iteration
        steps = fact.iteration - (fact.iteration if self.iteration is None else self.iteration)
        if self.iteration_at is not None and steps > 0 and not late:
            self.line_seconds.append(at - self.iteration_at)
            self.step_seconds.append((at - self.iteration_at) / steps)
        if is_new:
            self.log_moved_at = self.iteration_at = at
            self.rhythm.came(at, counts=not late)
            self.steps.reported(at, fact.iteration, dict(fact.metrics), fact.clock)
        self.iteration, self.total_iterations = fact.iteration, fact.total or self.total_iterations
        self.metrics.update(dict(fact.metrics))
        # A bar is drawn again whenever a line is printed: the step that was made last says nothing of the
        # work after it.
        if self.iteration_at == at or self._phases.now not in ("eval", "ckpt_save", "teardown"):
            self._phases.mark(at, "steady")
        if is_new:
            self._tell(at, StepMade(fact.iteration, max(0, steps), line))

    # -- what disturbs steps ------------------------------------------------------------------------------

    @takes(AttemptBegan)
    def _attempt_began(self, at: float, event: AttemptBegan) -> None:
        """Its steps are counted from the checkpoint on, and its start is a start."""
        if self.iteration is not None:
            self.attempts.append((at, self.iteration))
        self.iteration = self.iteration_at = self.epoch = self.rhythm.last = None
        self.where, self._bar = "", None
        self.steps.start_over()
        self._phases.mark(at, "rendezvous", guessed=True)

    @takes(PhaseChanged, RankStopped)
    def _disturbed(self, at: float, event: PhaseChanged | RankStopped) -> None:
        if isinstance(event, RankStopped) or event.phase != "steady":
            self.steps.disturbed()

    @takes(SamplingGap)
    def _looked_away(self, at: float, fact: SamplingGap) -> None:
        self.steps.looked_away(at)

    # -- other nodes --------------------------------------------------------------------------------------

    @takes(NodeDigest)
    def _digest(self, at: float, fact: NodeDigest) -> None:
        """A node's hub speaks: the job is where the furthest of them says it is."""
        known = self._cluster
        few = len(known.nodes) < _FEW_NODES or fact.returncode is not None
        current = known.current() if few else []
        if fact.log_moved_at is not None and fact.log_moved_at > (self.log_moved_at or 0.0):
            self.log_moved_at = fact.log_moved_at
        if fact.step_seconds is not None:
            self.told_step_seconds = fact.step_seconds
        lead = furthest(current) or (fact if (fact.iteration or 0) >= (self.iteration or 0) else None)
        ended = [node.digest.returncode for node in current]
        all_ended = bool(ended) and None not in ended and len(ended) >= known.expected()
        if all_ended and self._run.returncode is None:
            self._tell(at, RunEnded(None, next((code for code in ended if code), 0)))
        elif lead is not None and lead.phase != "ended":
            self._phases.follow(at, lead)

    @takes(JobVerdict)
    def _borrow(self, at: float, fact: JobVerdict) -> None:
        """The job hub's word on how far the job is, for a node whose own log does not tell it."""
        if (self.iteration is not None and not self.borrowed) or not fact.phase or fact.phase == "ended":
            return
        self.borrowed = fact.iteration is not None
        self.iteration, self.total_iterations = fact.iteration, fact.total_iterations or self.total_iterations
        if self._phases.own != "ckpt_save":  # its stacks know better
            self._phases.enter(at, fact.phase, own=False)
