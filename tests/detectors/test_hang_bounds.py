"""How long, how much and how many: what is given to a job, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diag.detectors.hang import wants_closer_look
from diag.detectors.hang.verdict import lowered, raised
from diag.model import Confidence
from diag.model.observations import Iteration, PhaseMarked, SnapshotTaken
from tests.detectors.test_hang import started, steady
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, Story, pid_of, process, stack, tree


def moves(story: Story, seconds: int, *, rank_0: Sequence[str] | None = None, every: int = 0) -> None:
    """Both ranks run Python, or rank 0 is at rest at `rank_0`; a step is logged each `every` seconds."""
    for second in range(seconds):
        for rank in range(2):
            lines: Sequence[str] = (*TRAIN, f"forward /app/model.py:{second % 97}")
            cpu = 5.0 + second
            if rank == 0 and rank_0 is not None:
                lines, cpu = rank_0, 0.0
            story.tell(tree(rank, story.now, cpu=cpu), stack(rank, story.now, lines))
        if every and second % every == 0:
            number = (story.engine.job.iteration or 0) + 10
            story.tell(Iteration(1, number, 1000, f"iteration {number}"))
        story.wait(1.0)


def seconds_until(story: Story, finding: str, limit: int, rank_1: Sequence[str] = SLEEP) -> int:
    for second in range(0, limit, 5):
        if any(one.id == finding for one in story.findings()):
            return second
        story.still(5.0, {0: ALL_REDUCE, 1: rank_1}, step=5.0)
    return limit


# --- patience


def test_rank_is_given_three_steps_though_it_moves_within_them() -> None:
    story = started()
    moves(story, 122, every=20)
    for number in range(70, 75):  # steps of 20 s
        story.tell(Iteration(1, number, 1000, f"iteration {number}"))
        moves(story, 20)
    story.tell(Iteration(1, 75, 1000, "iteration 75"))

    assert 55 <= seconds_until(story, "held-up", 120) <= 75


def test_evaluation_is_given_40_seconds() -> None:
    story = steady()
    story.tell(PhaseMarked(0, "eval", "***** Running Evaluation *****"))
    evaluate = (*TRAIN, "evaluate /app/eval.py:3")

    assert 40 <= seconds_until(story, "held-up", 120, evaluate) <= 50


def test_job_that_logs_each_minute_is_called_hung_after_twenty_of_its_lines() -> None:
    """Its steps are short and it moves within them: the lines are what it has shown."""
    story = started()
    moves(story, 302, every=60)

    assert 1150 <= seconds_until(story, "hang", 1500) <= 1260


@pytest.mark.parametrize("phase", ["steady", "training"])
def test_wait_beside_a_helper_that_works_is_no_hang_for_ten_minutes(phase: str) -> None:
    story = steady()
    if phase == "training":  # steps are made, of a length not yet known
        story = started()
        story.tell(PhaseMarked(0, "training", "{'loss': 1.0}"))
    for second in range(0, 570, 2):
        helper = process(5001, ppid=pid_of(1), cpu=1.0 * second)
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, helper), stack(1, story.now, SLEEP))
        story.wait(2.0)

    assert story.engine.job.phase == phase
    assert [one.id for one in story.findings()] == ["held-up"]


# --- what ends a hang


def test_what_stirs_for_half_a_minute_does_not_end_a_hang_and_what_goes_on_does() -> None:
    story = steady()
    story.still(60.0, {0: ALL_REDUCE, 1: SLEEP})
    hung = []
    for second in range(80):
        helper = process(5001, ppid=pid_of(1), chars=(second // 2) << 30)
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, helper), stack(1, story.now, SLEEP))
        story.wait(1.0)
        hung.append(bool(story.findings()))

    assert all(hung[:42])
    assert not all(hung)


def test_rank_that_computes_after_a_hang_by_time_alone_holds_the_others_up_without_a_gap() -> None:
    """Only of what could not end by itself it is news that it goes on."""
    story = steady()
    story.still(330.0, {0: ALL_REDUCE, 1: SLEEP})
    assert [ground.kind for ground in story.hang().grounds] == ["overdue"]

    moves(story, 12, rank_0=ALL_REDUCE)

    assert story.the("held-up").cause == "busy"


# --- one captured moment


@pytest.mark.parametrize(
    ("silent", "severity", "confidence"), [(20.0, "critical", "high"), (None, "warning", "medium")]
)
def test_captured_moment_is_critical_where_its_own_times_show_a_silence(
    silent: float | None, severity: str, confidence: str
) -> None:
    story = started()
    story.tell(SnapshotTaken(None, "captured", story.now, silent))
    for _ in range(2):
        for rank, lines in ((0, ALL_REDUCE), (1, SLEEP)):
            story.tell(tree(rank, story.now), stack(rank, story.now, lines))
    story.wait(1.0)

    assert (story.hang().id, story.hang().ranks) == ("hang", (1,))
    assert (story.hang().severity.value, story.hang().confidence.value) == (severity, confidence)


def test_one_stack_of_each_rank_is_no_hang_where_nothing_else_tells_it() -> None:
    """A rank is in code of its own for a moment, and others wait for it, in each step."""
    story = started()
    story.tell(SnapshotTaken(None, "captured", story.now, None))
    for rank, lines in ((0, ALL_REDUCE), (1, SLEEP)):
        story.tell(tree(rank, story.now), stack(rank, story.now, lines))
    story.wait(1.0)

    assert story.findings() == []


@pytest.mark.parametrize(
    ("samples", "silent", "final", "unproven"),
    [(1, None, True, True), (2, None, True, False), (1, 20.0, True, False), (1, None, False, False)],
)
def test_moment_with_one_stack_and_no_times_does_not_show_whether_the_job_stands(
    samples: int, silent: float | None, final: bool, unproven: bool
) -> None:
    story = started()
    story.tell(SnapshotTaken(None, "captured", story.now, silent, final=final))
    for _ in range(samples):
        story.tell(*(stack(rank, story.now, ALL_REDUCE) for rank in range(2)))

    said = [line.what for line in story.engine.not_checked()]
    assert ("whether the job is stuck" in said) == unproven


def test_confidence_goes_one_level_down_or_up_and_no_further() -> None:
    low, medium, high = Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH

    assert [lowered(one) for one in (low, medium, high)] == [low, low, medium]
    assert [raised(one) for one in (low, medium, high)] == [medium, high, high]


# --- when diag looks closer


def test_rank_that_is_at_rest_in_one_call_while_the_other_moves_is_looked_at_closer() -> None:
    story = started()
    moves(story, 40, rank_0=ALL_REDUCE)
    waits = wants_closer_look(story.now, story.engine.job)
    story.tell(PhaseMarked(1, "first_step", "Train:   0%|          | 0/8 [00:00<?, ?it/s]"))

    assert waits
    assert not wants_closer_look(story.now, story.engine.job)
