"""Steps that get slower, and parts of a step that take too much of it: who and what is named, and where
nothing is said."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from diag.detectors.training.throughput import SlowDetector, ThroughputDropDetector
from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay_records
from diag.model import Finding
from diag.model.observations import GpuSample, HostMemory, Iteration, PhaseMarked, SaveFinished, SaveStarted
from tests.facts import ALL_REDUCE, DATA, TRAIN, Story, stack, tree

FORWARD = (*TRAIN, "_call_impl torch/nn/modules/module.py:1750", "forward /app/model.py:31")
CPU_ADAM = (*TRAIN, "step torch/optim/optimizer.py:500", "step deepspeed/ops/adam/cpu_adam.py:170")
SYNC = (*TRAIN, "synchronize torch/cuda/__init__.py:1000")
RUNS = Path(__file__).parents[1] / "captures" / "h200-live"

Stand = Callable[[int, random.Random], Sequence[str]]  # (rank, dice) -> stack


def mixed(rank: int, dice: random.Random) -> Sequence[str]:
    return dice.choice((FORWARD, FORWARD, ALL_REDUCE, ALL_REDUCE))


def story() -> Story:
    return Story([ThroughputDropDetector(), SlowDetector()])


def train(told: Story, steps: int, seconds: float, stand: Stand = mixed, *, gpu: tuple[float, float, int] | None = None,
          metrics: tuple[tuple[str, float], ...] = (("loss", 0.5),), seed: int = 1) -> Story:  # fmt: skip
    """`gpu`: utilisation, watts and clock of each rank's. A stack sample a rank each 5 s."""
    dice = random.Random(seed)
    first, next_sample = (told.engine.job.iteration or 0) + 1, told.now
    for step in range(first, first + steps):
        told.wait(seconds * dice.lognormvariate(0, 0.04))
        while told.now >= next_sample:
            next_sample += 5
            for rank in (0, 1):
                told.tell(tree(rank, told.now, cpu=told.now), stack(rank, told.now, stand(rank, dice)))
                if gpu is not None:
                    told.tell(
                        GpuSample(
                            None,
                            rank,
                            f"GPU-{rank}",
                            "",
                            "H200",
                            gpu[0],
                            1,
                            2,
                            gpu[1],
                            700.0,
                            gpu[2],
                            40.0,
                            0,
                        )
                    )
        told.tell(Iteration(1, step, 100_000, f"iteration {step}", metrics))
    return told


def the(told: Story) -> Finding:
    return told.the("throughput-drop")


# -- found
# ---------------------------------------------------------------------------------------------------------------


def test_steps_that_take_twice_as_long_are_said_within_two_minutes_with_both_speeds() -> None:
    told = train(train(story(), 400, 1.0), 55, 2.0)

    found = the(told)
    assert (found.severity.value, found.cause, found.ranks) == ("warning", "unknown", ())
    assert (
        told.engine.job.progress.steps.pace.drop is not None
        and abs(told.engine.job.progress.steps.pace.drop.iteration - 400) <= 6
    )
    assert "since iteration" in found.summary and "2 times the 1 s before" in found.summary
    assert "no cause was found in stacks of 2 ranks" in found.summary and found.confidence.value == "low"


def test_rank_that_holds_up_the_others_since_then_is_named() -> None:
    def slow(rank: int, dice: random.Random) -> Sequence[str]:
        return FORWARD if rank == 1 else ALL_REDUCE

    found = the(train(train(story(), 400, 1.0), 55, 2.0, slow))

    assert (found.cause, found.ranks, found.waiting_ranks) == ("straggler", (1,), (0,))
    assert found.confidence.value == "medium"


def test_others_that_wait_half_of_the_time_do_not_make_it_communication() -> None:
    """As seen live (two gloo ranks, rank 1 sleeps 0.7 s a step): after a minute rank 0 was found waiting in 6
    of 12 samples."""

    def slow(rank: int, dice: random.Random) -> Sequence[str]:
        return FORWARD if rank == 1 or dice.random() < 0.4 else ALL_REDUCE

    told = train(train(story(), 400, 1.0, lambda rank, dice: FORWARD), 35, 2.0, slow)
    assert the(told).cause in ("unknown", "straggler")

    train(told, 60, 2.0, slow, seed=2)

    assert (the(told).cause, the(told).ranks, the(told).waiting_ranks) == ("straggler", (1,), (0,))


def test_ranks_that_all_wait_longer_for_each_other_point_at_the_network() -> None:
    before, after = (FORWARD, FORWARD, FORWARD, ALL_REDUCE), (FORWARD, ALL_REDUCE, ALL_REDUCE, ALL_REDUCE)
    told = train(story(), 400, 1.0, lambda rank, dice: dice.choice(before))

    assert the(train(told, 60, 2.0, lambda rank, dice: dice.choice(after))).cause == "communication"


def test_batches_that_come_late_on_all_ranks_are_the_cause() -> None:
    found = the(
        train(
            train(story(), 400, 1.0),
            55,
            2.0,
            lambda rank, dice: dice.choice((DATA, DATA, FORWARD, ALL_REDUCE)),
        )
    )

    assert (found.cause, found.ranks) == ("data_loading", ()) and "--dataloader_num_workers" in found.advice


def test_gpu_clocks_that_fell_are_the_cause() -> None:
    told = train(story(), 400, 1.0, gpu=(0.95, 600, 1_980_000_000))
    found = the(train(told, 55, 2.0, gpu=(0.97, 300, 1_100_000_000)))

    assert found.cause == "gpu_clocks" and "fell from 1980 MHz to 1100 MHz" in found.summary


def test_memory_pressure_of_the_host_is_the_cause() -> None:
    told = train(story(), 400, 1.0)
    for _ in range(20):
        train(told, 3, 2.0)
        told.tell(HostMemory(None, 1 << 40, 1 << 30, pressure_full_ratio=0.4))

    assert the(told).cause == "memory_pressure"


def test_steps_that_are_quick_again_end_it() -> None:
    told = train(train(story(), 400, 1.0), 60, 2.0)
    assert the(told)

    train(told, 60, 1.0)

    assert told.findings() == []


def test_megatron_tells_its_own_times_and_saves_do_not_count() -> None:
    """Lines that come 20 s apart because of saves, each saying that its steps took 1 s."""
    told = story()
    for step in range(0, 2000, 10):
        told.wait(10.0 if step < 1000 else 30.0)
        told.tell(
            Iteration(
                1,
                step + 10,
                5000,
                "iteration",
                (("elapsed time per iteration (ms)", 1000.0), ("lm loss", 2.0)),
            )
        )

    assert told.findings() == []
    assert told.engine.job.progress.steps.median() == pytest.approx(1.0)


# -- silent
# --------------------------------------------------------------------------------------------------------------


def test_little_that_is_slower_for_a_short_time_is_an_info() -> None:
    told = train(train(story(), 400, 1.0), 110, 1.32)

    assert (the(told).severity.value, the(told).cause) == ("info", "unknown")


def test_saves_and_evaluations_are_no_steps() -> None:
    told = train(story(), 300, 1.0)
    for _ in range(30):
        told.tell(SaveStarted(0, "saving checkpoint", "/out"))
        told.wait(9)
        told.tell(SaveFinished(0, "saved", "/out"))
        train(told, 6, 1.0)
        told.tell(PhaseMarked(0, "eval", "Evaluating on 160 samples"))
        told.wait(8)
        train(told, 6, 1.0)

    assert told.findings() == []
    assert told.engine.job.progress.steps.median() == pytest.approx(1.0, rel=0.05)
    assert told.engine.job.progress.steps.left_out > 50


def test_save_of_which_only_the_end_is_told_is_left_out() -> None:
    told = train(story(), 100, 1.0)
    for number in range(40):
        told.wait(20)
        told.tell(SaveFinished(0, "Successfully saved Megatron model weights", f"/out/checkpoint-{number}"))
        train(told, 12, 1.0)

    assert told.findings() == []
    assert max(seconds for _, seconds in told.engine.job.progress.steps.slowest()) < 2


def test_lines_that_come_each_fifty_steps_instead_of_each_change_nothing() -> None:
    told = train(story(), 400, 1.0)
    for step in range(450, 1500, 50):
        told.wait(50.0)
        told.tell(Iteration(1, step, 100_000, "iteration", (("loss", 0.5),)))

    assert told.findings() == []


def test_rank_that_was_stopped_and_goes_on_is_no_slowness() -> None:
    told = train(story(), 300, 1.0)
    for _ in range(5):
        for second in range(20):
            told.tell(tree(1, told.now, state="T" if second else "S"))
            told.wait(1)
        told.tell(tree(1, told.now))
        train(told, 8, 1.0)

    assert told.findings() == []


def test_new_attempt_is_measured_by_itself() -> None:
    told = train(story(), 400, 1.0)
    told.tell(
        PhaseMarked(0, "teardown", "[after training is done]"), PhaseMarked(0, "first_step", "***** Running")
    )
    train(told, 200, 2.5)

    assert told.findings() == []


@pytest.mark.parametrize("name", ["healthy", "healthy-again", "loop-slow"])
def test_of_real_runs_on_gpus_nothing_is_said_and_steps_are_measured(name: str) -> None:
    engine, changes = replay_records(JournalReader(segments(RUNS / name)))

    assert [change.finding.id for change in changes if change.finding.id in ("throughput-drop", "slow")] == []
    steps = engine.job.progress.steps
    assert steps.median() == pytest.approx(0.2 if name == "loop-slow" else 0.67, rel=0.06)
    assert steps.counted >= 29


# -- slow
# ----------------------------------------------------------------------------------------------------------------


def test_every_rank_that_waits_for_its_data_from_the_start_is_slow() -> None:
    stands = (DATA, DATA, FORWARD, ALL_REDUCE)
    told = train(story(), 260, 1.0, lambda rank, dice: dice.choice(stands), gpu=(0.4, 300, 1_980_000_000))

    found = told.the("slow")
    assert (found.cause, found.severity.value, found.confidence.value) == ("data_loading", "warning", "high")
    assert "every rank waits for its batches" in found.summary
    assert "the busiest GPU is in use for 40 % of the time" in found.summary
    assert "data" in found.evidence[0].excerpt


def test_optimizer_on_the_cpu_is_an_info() -> None:
    stands = (CPU_ADAM, CPU_ADAM, FORWARD, SYNC)
    told = train(story(), 260, 1.0, lambda rank, dice: dice.choice(stands), gpu=(0.3, 200, 1_980_000_000))

    assert (told.the("slow").cause, told.the("slow").severity.value) == ("cpu_optimizer", "info")


@pytest.mark.parametrize(
    ("stand", "gpu"),
    [
        (lambda rank, dice: dice.choice((DATA, DATA, FORWARD)), (0.97, 600, 1_980_000_000)),  # ahead of a GPU that has its work
        (lambda rank, dice: DATA if rank == 0 and dice.random() < 0.6 else FORWARD, (0.5, 300, 1_980_000_000)),  # one rank only
        (lambda rank, dice: dice.choice((DATA, FORWARD, FORWARD, ALL_REDUCE, ALL_REDUCE, SYNC)), (0.5, 300, 1_980_000_000)),
    ],
)  # fmt: skip
def test_data_that_are_not_beyond_doubt_what_costs_the_time_are_not_said(
    stand: Stand, gpu: tuple[float, float, int]
) -> None:
    assert train(story(), 260, 1.0, stand, gpu=gpu).findings() == []


def test_few_samples_say_nothing() -> None:
    assert train(story(), 150, 1.0, lambda rank, dice: DATA).findings() == []
