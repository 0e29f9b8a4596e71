"""host-oom-forecast before the first save: what the job's arguments tell of it, and what nobody knows."""

from __future__ import annotations

import pytest

from diag.detectors.memory.forecast import HostOomForecastDetector
from diag.model import Placement
from diag.model.observations import (
    Iteration,
    MemoryEstimated,
    MemoryTerm,
    RankFound,
    RunStarted,
    SaveFinished,
)
from diag.state.save_memory import save_every
from tests.detectors.saves import GIB, STAGED, Job
from tests.facts import TICKS, Story


def test_the_first_save_is_not_guessed_at() -> None:
    job = Job(limit=48 * GIB)
    job.steps()

    job.rise(27 * GIB)

    assert not job.said


def test_before_the_first_save_the_estimate_of_the_arguments_tells() -> None:
    job = Job(limit=30 * GIB)
    term = MemoryTerm("staging", STAGED, "14 P / ranks", "megatron-core 0.16")
    job.story.tell(MemoryEstimated(None, (), (), (term,), 40 * GIB, "Qwen3-30B-A3B"))

    job.steps(5)

    found = job.story.the("host-oom-forecast")
    assert (found.cause, found.confidence.value) == ("first_save", "low")


def test_an_estimate_that_fits_is_silent() -> None:
    job = Job(limit=60 * GIB)
    job.story.tell(
        MemoryEstimated(None, (), (), (MemoryTerm("staging", STAGED, "14 P / ranks", "megatron-core 0.16"),))
    )

    job.steps(5)

    assert not job.said


@pytest.mark.parametrize(
    ("words", "every"),
    [
        ("--save_steps 200", 200),
        ("--save_interval 50", 50),
        ("--save-interval=7", 7),
        ("--save_strategy epoch", None),
        ("--save_steps", None),
    ],
)
def test_the_distance_of_saves_is_read_from_the_command(words: str, every: int | None) -> None:
    assert save_every(["megatron", "rlhf", *words.split()], []) == every


def test_interval_of_saves_is_read_where_a_script_around_the_launcher_hides_it() -> None:
    job = Job(limit=48 * GIB)
    story = job.story
    place = Placement(0, 0, 2, "node-0", 7000, TICKS, 0, 2, "torchrun")
    story.tell(RunStarted(None, ("bash", "train.sh"), 999, "node-0", 2))
    story.engine.job.run.rank_argv = ()
    story.tell(RankFound(0, place, "python pretrain_gpt.py --save_interval 10"))
    story.tell(MemoryEstimated(None, (), (), (MemoryTerm("staging", 80 * GIB, "", ""),)))
    job.steps(5)

    assert job.story.the("host-oom-forecast").summary.startswith("the next save after iteration 10 ")


def saving_job(*words: str) -> Story:
    story = Story([HostOomForecastDetector()])
    story.tell(RunStarted(None, ("megatron", "rlhf", *words), 999, "node-0", 2))
    story.tell(Iteration(None, 1, 100, "iteration 1"))
    return story


def unchecked(story: Story) -> list[str]:
    return [item.what for item in HostOomForecastDetector().not_checked(story.engine.job)]


def test_a_first_save_of_which_nothing_is_known_is_not_checked_rather_than_clear() -> None:
    assert unchecked(saving_job("--output_dir", "/out")) == [
        "whether the first checkpoint save fits into host memory"
    ]


def test_a_job_without_saves_one_that_saved_and_one_with_an_estimate_are_no_open_question() -> None:
    saved = saving_job("--output_dir", "/out")
    saved.tell(SaveFinished(None, "saved", "/out/checkpoint-1"))
    told = saving_job("--output_dir", "/out")
    told.tell(MemoryEstimated(None, (), (), (MemoryTerm("staged", GIB, "", ""),)))

    for story in (saving_job(), saving_job("--output_dir", "/out", "--save_strategy", "no"), saved, told):
        assert unchecked(story) == []
