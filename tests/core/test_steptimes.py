"""How long steps take by the lines that report them, and what is left out."""

from __future__ import annotations

import pytest

from diag.model.observations import Iteration, SamplingGap
from diag.outputs.view.sentence import job_sentence, summary_line
from diag.outputs.view.steps_view import shares_json, steps_json
from diag.state.steptimes import StepTimes, steps_sentence
from tests.facts import ALL_REDUCE, DATA, Story, stack, tree


def reported(steps: StepTimes, first: int, count: int, began: float, seconds: float) -> float:
    at = began
    for iteration in range(first, first + count):
        at += seconds
        steps.reported(at, iteration, {})
    return at


def test_first_report_measures_nothing_as_the_set_up_is_before_it() -> None:
    steps = StepTimes()
    steps.reported(1000.0, 1, {})

    assert steps.to_json() is None and steps.now() is None


def test_steps_are_measured_from_report_to_report_and_a_save_between_them_is_left_out() -> None:
    steps = StepTimes()
    at = reported(steps, 1, 11, 0.0, 1.0)
    steps.disturbed()
    at = reported(steps, 12, 1, at, 30.0)
    reported(steps, 13, 9, at, 1.0)

    told = steps.to_json()
    assert told is not None
    assert (told["count"], told["left_out"], told["seconds_median"], told["seconds_p95"]) == (19, 1, 1.0, 1.0)


def test_lines_that_arrive_in_one_burst_are_one_measurement() -> None:
    steps = StepTimes()
    for burst in range(20):
        for iteration in range(5):
            steps.reported(100.0 + burst, 5 * burst + iteration + 1, {})

    assert steps.median() == pytest.approx(0.2) and steps.counted == 95


def test_lines_of_a_time_in_which_diag_did_not_run_count_together() -> None:
    steps = StepTimes()
    at = reported(steps, 1, 21, 1000.0, 1.0)
    steps.looked_away(at + 60.0)  # SIGSTOP and SIGCONT: the job went on
    reported(steps, 22, 60, at + 60.0, 0.0001)
    reported(steps, 82, 20, at + 60.0, 1.0)

    told = steps.to_json()
    assert told is not None
    assert (told["count"], told["seconds_median"], told["seconds_p95"]) == (
        100,
        1.0,
        pytest.approx(1.0, abs=0.05),
    )
    assert told["slowest"][0]["seconds"] == pytest.approx(1.0, abs=0.05)


def test_bunch_of_lines_teaches_nothing_of_how_long_a_step_is() -> None:
    story = Story([])
    for iteration in range(1, 21):
        story.tell(Iteration(0, iteration, 100, ""))
        story.wait(1.0)
    story.wait(60.0)
    story.tell(SamplingGap(None, 60.0), *(Iteration(0, iteration, 100, "") for iteration in range(21, 80)))
    story.wait(3.0)
    job = story.engine.job

    assert (job.iteration, set(job.progress.step_seconds), max(job.progress.line_seconds)) == (79, {1.0}, 1.0)


def test_times_that_megatron_tells_are_taken_although_a_save_was_between() -> None:
    steps = StepTimes()
    for step in range(1, 10):
        steps.disturbed()
        steps.reported(
            100.0 * step, step, {"elapsed time per iteration (ms)": 700.0, "global batch size": 8.0}
        )

    assert steps.median() == pytest.approx(0.7)
    assert steps.samples_per_second() == pytest.approx(8 / 0.7)


def test_line_that_says_inf_is_measured_by_its_arrival() -> None:
    steps = StepTimes()
    for step in range(1, 10):
        steps.reported(
            2.0 * step,
            step,
            {"elapsed time per iteration (ms)": float("inf"), "global batch size": float("nan")},
        )

    assert steps.median() == 2.0 and steps.samples_per_second() is None


def test_sentence_names_steps_that_stand_out_only() -> None:
    steps = StepTimes()
    at = reported(steps, 1, 30, 0.0, 0.71)
    assert steps_sentence(steps.to_json() or {}) == "29 steps measured, median 0.71 s, p95 0.71 s"

    reported(steps, 31, 1, at, 2.13)

    assert steps_sentence(steps.to_json() or {}).endswith("p95 0.71 s, slowest 2.1 s (iteration 31)")


def test_summary_of_a_run_tells_the_steps() -> None:
    steps = StepTimes()
    reported(steps, 1, 31, 0.0, 0.71)
    document = {"job": {"state": "finished", "steps": steps.to_json()}, "findings": [], "not_checked": []}

    assert (
        summary_line(document)
        == "diag: job finished; 30 steps measured, median 0.71 s, p95 0.71 s; nothing found"
    )


def test_shares_of_a_steps_time_count_samples_of_steady_state_only() -> None:
    story = Story([])
    story.tell(tree(0, story.now), stack(0, story.now, DATA))  # before the first step
    for step in range(1, 11):
        story.wait(1)
        story.tell(Iteration(1, step, 20, f"iteration {step}"))
        for rank in (0, 1):
            story.tell(tree(rank, story.now), stack(rank, story.now, ALL_REDUCE if step % 2 else DATA))

    assert shares_json(story.engine) == {
        rank: {"samples": 10, "collective": 0.5, "data": 0.5} for rank in (0, 1)
    }
    assert steps_json(story.engine)["text"] == [
        "steps: 9 steps measured, median 1 s, p95 1 s", "time of a step, from 20 samples of main threads: collective 50 %, data 50 %",
    ]  # fmt: skip


def test_page_and_dump_say_what_a_step_takes_now() -> None:
    steps = StepTimes()
    reported(steps, 1, 31, 0.0, 0.71)
    document = {"job": {"state": "running", "iteration": 31, "steps": steps.to_json()}}

    assert job_sentence(document) == "The job is running; iteration 31; 0.71 s a step; nothing found."
