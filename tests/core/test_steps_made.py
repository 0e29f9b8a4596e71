"""That training steps were made is concluded once, whoever reported it, and handed to all who listen."""

from __future__ import annotations

import random

from diag.detectors.contract import Detector
from diag.model import Finding
from diag.model.observations import BarMoved, Iteration, LogLine, StepsPlanned
from diag.state.reducer import MainStackRead, StepMade
from diag.state.stack_activity import Activity
from diag.state.view import JobView
from tests.facts import ALL_REDUCE, SLEEP, Story, found, stack


class Notes(Detector):
    name = "notes"
    listens = (StepMade, MainStackRead)

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.read: list[tuple[int, Activity]] = []

    def observe(self, at: float, fact: StepMade | MainStackRead) -> None:
        if isinstance(fact, StepMade):
            self.steps.append((fact.iteration, fact.steps))
        elif fact.reading is not None:
            self.read.append((fact.rank, fact.reading.activity))

    def check(self, now: float, job: JobView) -> tuple[Finding, ...]:
        return ()


def told(*facts: object) -> list[tuple[int, int]]:
    notes = Notes()
    story = Story([notes])
    for fact in facts:
        story.wait(2.0)
        story.tell(fact)  # type: ignore[arg-type]
    return notes.steps


def test_lines_of_a_known_trainer_announce_how_many_steps_were_made() -> None:
    lines = [Iteration(1, done, 100, f"iteration {done}", (("loss", 0.5),)) for done in (10, 20, 20, 25)]

    assert told(*lines) == [(10, 0), (20, 10), (25, 5)]


def test_bar_of_the_training_announces_them_too_and_one_that_lags_does_not() -> None:
    bars = [BarMoved(0, done, 50, f"{done}/50") for done in (1, 3, 2, 4)]
    other = BarMoved(0, 5, 7, "5/7")

    assert told(StepsPlanned(None, 50, "50 steps"), *bars, other) == [(1, 0), (3, 2), (4, 1)]


def test_another_attempt_counts_from_its_checkpoint_on() -> None:
    again = found(0)
    place = again.placement.__class__(0, 0, 2, "node-0", 2000, 778, 0, 2, "torchrun")
    before, after = (Iteration(1, done, 100, f"iteration {done}") for done in (30, 21))

    steps = told(before, type(again)(0, place, again.command), after, Iteration(1, 22, 100, "iteration 22"))

    assert steps == [(30, 0), (21, 0), (22, 1)]


def test_lines_of_a_loop_that_nobody_knows_announce_them_once_they_are_learned() -> None:
    dice, notes = random.Random(1), Notes()
    story = Story([notes])
    for step in range(1, 30):
        story.wait(dice.uniform(1, 2))
        for rank in (0, 1):
            story.tell(stack(rank, story.now, dice.choice((ALL_REDUCE, SLEEP))))
        story.tell(LogLine(None, "both", f"step {step}/1000 loss {dice.random():.4f}"))

    first, *others = notes.steps
    assert first[1] == 0 and len(others) > 15
    assert others == [(step, 1) for step in range(first[0] + 1, 30)]
    measured = story.engine.job.progress.steps
    assert measured.counted == 28  # those before it was learned that they are steps as well
    assert len(measured.seconds(0.0, story.now)) == 28


def test_a_rank_that_reads_its_own_stack_by_its_history_is_read_so_by_all() -> None:
    notes = Notes()
    story = Story([notes])
    story.tell(
        stack(0, story.now, ALL_REDUCE), stack(1, story.now, SLEEP), stack(1, story.now, SLEEP, pid=4321)
    )

    assert notes.read == [(0, Activity.COLLECTIVE), (1, Activity.OTHER)]
