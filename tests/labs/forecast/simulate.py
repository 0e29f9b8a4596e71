"""The run that a plan makes, by calculation: the readings that diag would have of it, told to the engine.
Seconds for hundreds of seeds; what the thresholds were chosen on. Memory of a light job as measured in real
runs."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from diag.detectors.memory.forecast import HostOomForecastDetector
from diag.engine.engine import Engine
from diag.model import ChangeKind
from diag.model.observations import CgroupMemory, Iteration, Observation, SaveFinished
from diag.state.save_memory import Outlook
from diag_job.faults.growing_plan import SAVES, Plan, limit_of
from tests.facts import ALL_REDUCE, Story, stack

__all__ = ["Simulated", "simulate"]

MIB = 1 << 20
_UNIT, _OWN = 700 * MIB, 24 * MIB
# ranks in their steps; Manager processes that the first save leaves behind
_JOB, _HELPERS = (500 * MIB, 405 * MIB)
_STEPS, _STEP_SECONDS = 5, 0.45
_SAVING = (
    "<module> /app/train.py:300",
    "save_checkpoint /app/train.py:250",
    "preload_tensors megatron/core/dist_checkpointing/strategies/filesystem_async.py:212",
)


@dataclass(frozen=True)
class Simulated:
    killed_at: float | None
    warned_at: float | None
    warned_save: int | None
    errors: tuple[float, ...]  # of the peak as predicted before each save from the second on, relative
    warned_error: float | None


class _Run:
    def __init__(self, plan: Plan, seed: int) -> None:
        self.rnd = random.Random(f"simulate/{seed}/{plan.fails_at}")
        self.plan, self.now = plan, 1000.0 + self.rnd.random()
        self.story = Story([HostOomForecastDetector()], world=2, start=self.now)
        self.engine: Engine = self.story.engine
        self.changes: list[Any] = []
        self.limit: int | None = None
        self.told = 0
        self.counter = 0
        self.peeked = self.node = self.now
        self.killed: float | None = None
        self.saves = self.judged = 0
        self.in_save = False
        self.stack_due: float | None = None

    def tell(self, fact: Observation) -> None:
        self.changes += self.engine.advance(self.now)
        self.engine._dispatch(fact)

    def memory(self, needed: int) -> None:
        """Time has come to `now`, and the group needs so much."""
        self.changes += self.engine.advance(self.now)
        self.counter = max(self.counter, needed)
        if self.limit and needed >= self.limit and self.killed is None:
            self.killed = self.now
            return
        if self.stack_due and self.now >= self.stack_due:
            self.stack_due = None
            self.tell(stack(0, self.now, _SAVING if self.in_save else ALL_REDUCE))
        due = self.now - self.node >= 5.0
        if due:
            self.node = self.now
            self.tell(stack(0, self.now, _SAVING if self.in_save else ALL_REDUCE))
        near = self.limit is not None and needed > 0.7 * self.limit and needed > self.told
        if self.now - self.peeked >= (0.15 if near else 0.5):
            self.peeked = self.now + self.rnd.uniform(0, 0.03)
            due |= abs(needed - self.told) >= 8 * MIB
            if needed - self.told >= 16 * MIB:
                self.stack_due = self.stack_due or self.now + 0.1
        if due:
            self.told = needed
            self.tell(
                CgroupMemory(
                    0, 1, "/job", needed + 17 * MIB, self.limit, self.counter + 17 * MIB, 0, 17 * MIB
                )
            )
            if self.engine.job.urgent != self.judged:
                self.judged = self.engine.job.urgent
                self.changes += self.engine._check(self.now)

    def flow(self, seconds: float, start: float, end: float) -> None:
        steps = max(1, round(seconds / 0.025))
        for i in range(steps):
            if self.killed is not None:
                return
            self.now += seconds / steps
            self.memory(int(start + (end - start) * (i + 1) / steps))


def simulate(plan: Plan, seed: int, outlooks: list[Outlook] | None = None) -> Simulated:
    """`outlooks` gets what was predicted before each save."""
    run = _Run(plan, seed)
    job: float = _JOB
    iteration = 0
    errors, warned_error = [], None
    for number, save in enumerate(plan.saves[: plan.fails_at or SAVES], 1):
        for _ in range(_STEPS):
            job += plan.leak * _UNIT
            run.flow(_STEP_SECONDS * run.rnd.uniform(0.95, 1.2), job, job + run.rnd.uniform(0, 2) * MIB)
            iteration += 1
            run.tell(Iteration(None, iteration, 0, f"iteration {iteration}"))
            if iteration == _STEPS + 1:
                run.limit = limit_of(plan, int(job), _UNIT, _OWN, _STEPS)
        staged = save.staged * _UNIT
        peak = job + staged + _OWN
        outlook = run.engine.job.saves.memory.outlook(run.now)
        if outlook is not None:
            errors.append(outlook[1].peak / peak - 1)
            if outlooks is not None:
                outlooks.append(outlook[1])
        run.saves, run.in_save = number, True
        run.flow(0.15, job, job)
        # As on a machine that others share: one save in five is held up.
        wobble = run.rnd.uniform(0.97, 1.05) if run.rnd.random() < 0.8 else run.rnd.uniform(1.3, 3.0)
        run.flow(save.seconds * wobble, job, job + staged)
        if number == 1:
            run.flow(1.2, job + staged, job + staged + _HELPERS * 0.8)
            run.flow(0.5, job + staged / 2 + _HELPERS * 0.8, job + staged / 2 + _HELPERS)
            job += _HELPERS
            staged /= 2
        run.flow(0.35, job + staged, peak if number > 1 else job + staged)
        if run.killed is not None:
            break
        job += save.kept * _UNIT
        run.in_save = False
        run.flow(0.35, job, job)
        run.tell(SaveFinished(None, "Successfully saved", f"/out/checkpoint-{iteration}"))
    opened = [change for change in run.changes if change.kind is ChangeKind.OPENED]
    at = opened[0].at if opened else None
    if at is not None and (run.killed is None or at <= run.killed):
        told = opened[-1].finding.summary
        warned_error = (
            float(told.split("will need ")[1].split(" GiB")[0]) * (1 << 30) if "will need" in told else None
        )
        if warned_error is not None:
            warned_error = warned_error / peak - 1
    return Simulated(run.killed, at, run.saves if opened else None, tuple(errors), warned_error)
