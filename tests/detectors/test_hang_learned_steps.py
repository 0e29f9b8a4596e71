"""A job whose trainer is not known is judged by the steps that were learned from its log."""

from __future__ import annotations

import random

from diag.model.observations import LogLine
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, Story

BACKWARD = (*TRAIN, "backward torch/_tensor.py:600", "_engine_run_backward torch/autograd/graph.py:800")


def trained(story: Story, steps: int, seconds: float) -> None:
    noise = random.Random(steps)
    for step in range(steps):
        here = (ALL_REDUCE, BACKWARD) if step % 2 else (BACKWARD, ALL_REDUCE)
        took = seconds * noise.uniform(0.9, 1.1)
        story.still(took, dict(enumerate(here)), step=min(2.0, took))
        story.tell(
            LogLine(None, "both", f"Epoch {step // 20} batch {step % 20}/20 loss {noise.uniform(0.3, 2):.3f}")
        )


def test_hang_of_an_unknown_trainer_is_told_with_its_last_step_in_its_own_words() -> None:
    story = Story()
    trained(story, 50, 1.5)
    story.still(60.0, {0: ALL_REDUCE, 1: SLEEP})

    hang = story.hang()
    assert hang.ranks == (1,) and "after batch 9 of epoch 2" in hang.summary


def test_steps_of_two_minutes_in_which_nothing_else_moves_are_no_hang() -> None:
    """Each rank stands in one call for the whole of a step: only the log shows that they are made."""
    story = Story()
    trained(story, 10, 120.0)
    assert story.engine.job.phase == "steady"
    for step in range(8):
        story.still(random.Random(step).uniform(110, 130), {0: ALL_REDUCE, 1: SLEEP})
        story.tell(
            LogLine(None, "both", f"Epoch 0 batch {10 + step}/20 loss {random.Random(step).random():.3f}")
        )

        assert [finding.id for finding in story.findings() if finding.severity.counts] == []


def test_heartbeat_that_goes_on_hides_no_hang() -> None:
    story = Story()
    trained(story, 50, 1.5)
    for beat in range(12):
        story.still(5.0, {0: ALL_REDUCE, 1: SLEEP})
        story.tell(LogLine(None, "both", f"monitor: reading {beat}"))

    assert story.hang().ranks == (1,)
