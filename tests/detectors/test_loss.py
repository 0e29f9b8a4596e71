"""Loss and gradients as trainers print them: what is said of which series, and of how many nothing is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from diag.detectors import DETECTORS
from diag.detectors.contract import Detector
from diag.detectors.training.straggler import StragglerDetector
from diag.engine.replay import replay
from diag.model import Finding, Placement
from diag.model.observations import (
    BarMoved,
    Iteration,
    LossScaleReduced,
    MetricsLogged,
    NonFiniteReported,
    RankFound,
)
from tests.facts import TICKS, Story
from tests.facts import found as found_rank

NAN, INF = float("nan"), float("inf")
DETECTORS_OF_NUMBERS: list[type[Detector]] = [
    kind
    for kind in DETECTORS
    if kind.__module__.startswith("diag.detectors.training.") and kind is not StragglerDetector
]
LOGS = sorted((Path(__file__).parents[1] / "captures" / "logs").glob("*.log"))


def numbers_story() -> Story:
    return Story([kind() for kind in DETECTORS_OF_NUMBERS])


def train(
    values: Iterable[float | dict[str, float]], *, story: Story | None = None, first: int = 1, every: int = 1
) -> Story:
    """One line each `every` steps, as ms-swift prints it; a number alone is a loss with a healthy gradient."""
    story = story or numbers_story()
    for place, value in enumerate(values):
        numbers = (
            value if isinstance(value, dict) else {"loss": value, "grad_norm": 1.0, "learning_rate": 1e-5}
        )
        step = first + place * every
        story.tell(Iteration(None, step, 100_000, f"{numbers} 'iteration': '{step}'", tuple(numbers.items())))
        story.wait(1.0)
    return story


def falling(
    count: int, seed: int = 1, start: float = 2.0, end: float = 0.7, noise: float = 0.05
) -> list[float]:
    dice = random.Random(seed)
    return [
        end + (start - end) * math.exp(-place / (0.3 * count)) + dice.gauss(0, noise)
        for place in range(count)
    ]


def ids(story: Story) -> list[tuple[str, str]]:
    return sorted((finding.id, finding.severity.value) for finding in story.findings())


# -- nan
# -----------------------------------------------------------------------------------------------------------------


def test_loss_that_is_nan_is_said_at_once_with_its_iteration_and_the_last_good_value() -> None:
    story = train([*falling(30), {"loss": NAN, "grad_norm": NAN}])

    found = story.the("loss-nan")
    assert (
        found.severity.value == "critical" and "nan at iteration 31; the last good value was" in found.summary
    )
    assert "at iteration 30" in found.summary and "bfloat16" in found.advice
    # of the gradients that are nan with it nothing new can be said
    assert ids(story) == [("loss-nan", "critical")]


def test_megatron_names_the_loss_otherwise_and_is_understood() -> None:
    story = train([{"lm loss": 8.0, "grad norm": 1.0}, {"lm loss": INF, "grad norm": 1.0}])

    assert "the loss is inf at iteration 2" in story.the("loss-nan").summary


def test_loss_of_plain_trainer_gets_the_step_of_its_bar() -> None:
    story = numbers_story()
    for step in (10, 20):
        story.tell(BarMoved(None, step, 500, "bar"), BarMoved(None, 3, 8, "an evaluation's"))
        story.tell(
            MetricsLogged(None, (("loss", 1.0 if step == 10 else NAN), ("epoch", 0.1)), "{'loss': ...}")
        )
        story.wait(2)

    assert "at iteration 20; the last good value was 1 at iteration 10" in story.the("loss-nan").summary


def test_one_step_that_was_left_out_is_withdrawn_after_three_good_ones() -> None:
    story = train([1.0, 0.9, NAN])
    assert ids(story) == [("loss-nan", "critical")]

    train([0.9, 0.8, 0.8, 0.8], story=story, first=4)

    assert story.findings() == []


def test_rank_that_met_nan_in_its_own_gradients_is_named() -> None:
    story = train(falling(10))
    story.tell(
        NonFiniteReported(
            3, "grad", "bucket #0", "[rank3]: RuntimeError: found NaN in local grad norm for bucket #0"
        )
    )
    story.wait(2)

    found = story.the("grad-nan")
    assert (
        found.ranks == (3,)
        and "rank 3 found nan or inf in its own gradients (bucket #0) after iteration 10" in found.summary
    )


def test_under_tensor_parallelism_the_group_is_named_not_the_rank_that_printed_first() -> None:
    """2 x H200, TP 2: a parameter of rank 1 was nan, and rank 0 printed it first."""
    story = train(falling(10))
    for rank in (0, 1):
        command = "megatron rlhf --tensor_model_parallel_size 2 --expert_model_parallel_size 2"
        story.tell(replace(found_rank(rank), command=command))
    story.tell(
        NonFiniteReported(
            0, "grad", "bucket #0", "[rank0]: RuntimeError: found NaN in local grad norm for bucket #0"
        )
    )
    story.wait(2)

    found = story.the("grad-nan")
    assert found.ranks == (0, 1)
    assert "ranks 0-1, which compute on one batch together, found nan or inf" in found.summary
    assert found.advice.startswith(
        "It is the batch of these ranks, or the GPU or the parameters of one of them"
    )


def test_report_of_an_earlier_attempt_says_nothing_of_this_one() -> None:
    story = train(falling(10))
    story.tell(
        NonFiniteReported(1, "loss", "", "[rank1]: RuntimeError: found NaN in local forward loss calculation")
    )
    story.wait(2)
    assert story.the("loss-nan").ranks == (1,)

    for rank in (0, 1):
        story.tell(
            RankFound(
                rank,
                Placement(rank, rank, 2, "node-0", 5000 + rank, TICKS, 0, 2, "torchrun"),
                "python train.py",
            )
        )
    train(falling(10), story=story, first=5)

    assert story.findings() == []


def test_gradients_that_overflow_now_and_then_in_fp16_are_no_nan() -> None:
    scaled: list[dict[str, float]] = [
        {"loss": 2.0 - place / 100, "grad_norm": INF if place % 9 < 2 else 1.0, "loss scale": 65536.0}
        for place in range(60)
    ]

    assert train(scaled).findings() == []


def test_one_bad_gradient_beside_a_good_loss_is_not_said_and_two_in_a_row_are() -> None:
    bad = {"loss": 1.0, "grad_norm": NAN}

    assert train([1.1, bad, 1.0, 1.2]).findings() == []
    assert ids(train([1.1, bad, dict(bad, loss=1.01)])) == [("grad-nan", "critical")]


# -- fp16
# ----------------------------------------------------------------------------------------------------------------


def overflow(scale: float | None, *, at_minimum: bool = False) -> LossScaleReduced:
    return LossScaleReduced(0, scale, f"OVERFLOW! ... reducing to {scale}", at_minimum)


def test_scale_that_falls_at_the_start_is_how_fp16_begins() -> None:
    story = numbers_story()
    for step in range(1, 21):
        story.tell(overflow(2.0 ** (32 - step)))
        train([11.0], story=story, first=step)
    train(falling(60), story=story, first=21)

    assert story.findings() == []


def test_scale_at_its_end_is_a_warning_and_critical_when_steps_are_skipped_still() -> None:
    story = train(falling(30))
    for place in range(16):
        story.tell(overflow(max(1.0, 2.0 ** (15 - place))))
    story.wait(2)
    assert ids(story) == [("fp16-overflow", "warning")]

    for _ in range(4):
        story.tell(overflow(1.0))
    story.wait(2)

    found = story.the("fp16-overflow")
    assert (found.severity.value, found.cause) == (
        "critical",
        "minimum_scale",
    ) and "--torch_dtype bfloat16" in found.advice


def test_deepspeed_that_gives_up_is_critical() -> None:
    story = train(falling(5))
    story.tell(overflow(None, at_minimum=True))
    story.wait(2)

    assert ids(story) == [("fp16-overflow", "critical")]


def test_every_other_step_skipped_late_is_a_warning_and_one_in_twenty_is_not() -> None:
    def line(place: int, every: int) -> dict[str, float]:
        return {
            "lm loss": 3.0 + place % 7 / 50,
            "loss scale": 1024.0,
            "number of skipped iterations": float(place % every == 0),
        }

    assert train([line(place, 20) for place in range(100)]).findings() == []
    assert ids(train([line(place, 2) for place in range(100)])) == [("fp16-overflow", "warning")]


def test_loss_scale_of_1_in_bf16_is_no_end() -> None:
    assert (
        train([{"loss": value, "loss scale": 1.0, "grad norm": 1.0} for value in falling(80)]).findings()
        == []
    )


# -- collapse
# ------------------------------------------------------------------------------------------------------------


def test_dpo_that_stays_at_ln_2_without_gradient_learns_nothing() -> None:
    story = train([{"loss": 0.69314718, "grad_norm": 0.0, "rewards/margins": 0.0}] * 10)

    found = story.the("loss-collapse")
    assert (
        found.cause == "no_gradient"
        and "0.69315 in 10 lines in a row, since iteration 1 (ln 2" in found.summary
    )


def test_learning_rate_of_0_is_named() -> None:
    assert (
        train([{"loss": 1.25, "grad_norm": 3.0, "learning_rate": 0.0}] * 50).the("loss-collapse").cause
        == "no_learning_rate"
    )


def test_zero_beside_gradients_that_are_nan_is_a_hidden_nan() -> None:
    story = train([1.5, 1.4, *[{"loss": 0.0, "grad_norm": NAN, "learning_rate": 1e-5}] * 3])

    assert (story.the("loss-collapse").cause, story.the("loss-collapse").severity.value) == (
        "nan_hidden",
        "critical",
    )


def test_long_warm_up_in_bf16_that_moves_nothing_yet_is_silent_and_a_constant_after_it_is_not() -> None:
    warming: list[dict[str, float]] = [
        {"loss": 0.69314718, "grad_norm": 1.1, "learning_rate": 1e-9 * place} for place in range(1, 81)
    ]
    assert train(warming).findings() == []

    assert train([{"loss": 1.0, "grad_norm": 2.0}] * 80).findings() == []  # no rate is printed
    flat = [{"loss": 0.69314718, "grad_norm": 1.1, "learning_rate": 1e-6}] * 60
    assert train(flat).the("loss-collapse").cause == "stuck"


def test_dpo_that_has_learnt_all_and_rounds_to_zero_is_not_broken() -> None:
    learnt: list[dict[str, float]] = [
        {"loss": 0.0, "grad_norm": 0.0, "rewards/margins": 14.0 + place} for place in range(60)
    ]

    assert train(learnt).findings() == []


def test_same_step_printed_again_is_not_a_second_line() -> None:
    story = numbers_story()
    for _ in range(20):
        train([{"loss": 1.0, "grad_norm": 0.0}], story=story, first=7)

    assert story.findings() == []


# -- spike and divergence
# ------------------------------------------------------------------------------------------------


def test_loss_that_jumps_is_said_and_withdrawn_when_it_is_back() -> None:
    story = train([*falling(100), 4.0, 4.2, 3.9, 3.5])
    found = story.the("loss-spike")
    assert "jumped to 4 at iteration 101" in found.summary and found.severity.value == "warning"

    train([0.8, 0.75, 0.7, 0.72], story=story, first=105)

    assert story.findings() == []


def test_one_bad_batch_is_not_said() -> None:
    assert (
        train([*falling(100), 9.0, *falling(30, start=0.75), 9.0, 8.0, *falling(30, start=0.75)]).findings()
        == []
    )


def test_loss_that_rises_for_long_is_said_with_the_lowest_value() -> None:
    dice = random.Random(5)
    story = train([*falling(200), *(0.7 + place / 100 + dice.gauss(0, 0.05) for place in range(150))])

    found = story.the("loss-divergence")
    assert "the loss rises" in found.summary and "was the lowest (at iteration" in found.summary


def test_resumed_training_is_compared_with_itself_only() -> None:
    story = train([*falling(100)], first=1000)
    train(falling(60, start=3.0, end=2.5), story=story, first=1)

    assert [found.id for found in story.findings() if found.id == "loss-spike"] == []


Shape = Callable[[random.Random], Iterator[float]]


def pretraining(dice: random.Random) -> Iterator[float]:
    return (2.5 + 8.5 * math.exp(-place / 60) + dice.gauss(0, 0.08) for place in range(400))


def dpo(dice: random.Random) -> Iterator[float]:
    """Batches of few pairs: heavy tails upwards, nearer to zero all the time."""
    return (
        max(1e-4, 0.69 * math.exp(-place / 150) * dice.lognormvariate(0, 0.9)) if place else 0.693147
        for place in range(400)
    )


def small_batches(dice: random.Random) -> Iterator[float]:
    return (dice.gammavariate(2.0, 0.6) for _ in range(400))


def two_data_sets(dice: random.Random) -> Iterator[float]:
    return ((1.1 if place < 200 else 1.5) + dice.gauss(0, 0.1) for place in range(400))


def rewards(dice: random.Random) -> Iterator[float]:
    return (dice.gauss(0, 0.02) for _ in range(400))


@pytest.mark.parametrize("shape", [pretraining, dpo, small_batches, two_data_sets, rewards])
def test_of_forty_healthy_runs_none_is_said_to_be_ill(shape: Shape) -> None:
    said = {seed: ids(train(shape(random.Random(seed)))) for seed in range(40)}

    assert {seed: found for seed, found in said.items() if found} == {}


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.name)
def test_of_real_logs_nothing_is_said(log: Path) -> None:
    _, changes, _ = replay([log])

    of_numbers = {kind.name for kind in DETECTORS_OF_NUMBERS}
    said: list[Finding] = [change.finding for change in changes if change.finding.id in of_numbers]
    assert said == []


def test_warm_up_whose_rates_are_rounded_to_zero_is_no_collapse_before_it_lasts() -> None:
    # ms-swift rounds to 8 digits: 2.5e-10 more with each step of a long warm-up prints as 0.0 for 20 steps
    lines = [{"loss": 0.69314718, "grad_norm": 12.1, "learning_rate": 0.0}] * 20

    assert train(lines).findings() == []
    assert ids(train(lines * 3)) == [("loss-collapse", "warning")]


def test_loss_that_is_below_what_is_printed_is_an_info_where_gradients_come() -> None:
    story = train([{"loss": 0.0, "grad_norm": 0.0001, "learning_rate": 1e-6}] * 20)

    assert ids(story) == [("loss-collapse", "info")]
