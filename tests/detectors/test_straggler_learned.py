"""Loops whose trainer is not known: the straggler is named by the steps that were learned from their lines, by waits
that only the rank's own history shows, and by a main thread that gets no core; and when nothing is said."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from diag.detectors.training.straggler import StragglerDetector
from diag.detectors.training.throughput import ThroughputDropDetector
from diag.engine.replay import replay
from diag.model import Finding
from diag.model.observations import GpuSample, LogLine, ProcessTree
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, Story, stack, tree

CAPTURES = Path(__file__).parents[1] / "captures"
STRUCK_AT = 1795445531.5
BEFORE_ALL_REDUCE = (*TRAIN, "forward /app/model.py:31")
SPIN = (*TRAIN, "train_step /app/train.py:79", "loss_of /app/train.py:98")
BUSY = ((4242, "sh -c while :; do :; done"), (4243, "sh -c while :; do :; done"))

Stand = Callable[[int, random.Random], Sequence[str]]  # (rank, dice) -> stack


class Loop:
    """Two ranks that print lines of their own. A rank spins on a core where it gets one."""

    def __init__(self, *, on_gpu: bool = True) -> None:
        self.story = Story([StragglerDetector(), ThroughputDropDetector()])
        self.dice = random.Random(7)
        self.steps = 0
        self.cpu: Counter[int] = Counter()
        self.delay: Counter[int] = Counter()
        if on_gpu:
            gpu = GpuSample(
                None, 0, "GPU-0", "", "NVIDIA H100", 1.0, 1, 2, 300.0, 700.0, 1_980_000_000, 40.0, 0
            )
            self.story.tell(gpu)

    def train(
        self, steps: int, stand: Stand, *, seconds: float = 2.0, ready: tuple[float, float] = (0.0, 0.0)
    ) -> Loop:
        """`ready`: how much of the time each is without a core."""
        for _ in range(steps):
            took = seconds * self.dice.uniform(0.9, 1.1)
            self.story.wait(took)
            for rank in (0, 1):
                self.delay[rank] += took * ready[rank]  # type: ignore[assignment]
                self.cpu[rank] += took * (1 - ready[rank])  # type: ignore[assignment]
                self.story.tell(self._thread(rank, ready[rank]))
                lines = stand(rank, self.dice)
                waits = lines in (ALL_REDUCE, SPIN)
                self.story.tell(stack(rank, self.story.now, lines, owns_gil=not waits))
            self.steps += 1
            loss = self.dice.uniform(0.3, 2)
            self.story.tell(LogLine(None, "both", f"step {self.steps}/10000 loss: {loss:.4f}"))
        return self

    def _thread(self, rank: int, ready: float) -> ProcessTree:
        return dataclasses.replace(
            tree(rank, self.story.now, state="R", cpu=self.cpu[rank]),
            main_thread_cpu_seconds=self.cpu[rank],
            run_delay_seconds=self.delay[rank],
            cores="15",
            beside=BUSY if ready else (),
        )

    def said(self) -> list[Finding]:
        return self.story.findings()


def alike(rank: int, dice: random.Random) -> Sequence[str]:
    return dice.choice((ALL_REDUCE, BEFORE_ALL_REDUCE))


def in_item(rank: int, dice: random.Random) -> Sequence[str]:
    return SPIN


def each_for_itself(rank: int, dice: random.Random) -> Sequence[str]:
    return dice.choice((BEFORE_ALL_REDUCE, (*BEFORE_ALL_REDUCE, "layer /app/model.py:50")))


# -- by samples of stacks


def test_straggler_of_a_loop_whose_steps_were_learned_is_named() -> None:
    def late(rank: int, dice: random.Random) -> Sequence[str]:
        return alike(rank, dice) if dice.random() < 0.1 else (ALL_REDUCE, SLEEP)[rank]

    (found,) = Loop(on_gpu=False).train(60, late).said()

    assert (found.id, found.ranks, found.waiting_ranks, found.cause) == ("straggler", (1,), (0,), "own_code")
    assert "wait_for_leader" in found.summary and "of each step of" in found.summary


def test_rank_that_spins_at_a_line_that_the_slow_one_comes_to_as_well_waits_for_it() -> None:
    def late(rank: int, dice: random.Random) -> Sequence[str]:
        return SPIN if rank == 0 or dice.random() < 0.2 else SLEEP

    (found,) = Loop().train(60, late).said()

    assert (found.ranks, found.waiting_ranks) == ((1,), (0,))
    assert (
        "they are found waiting in 100 % of samples, it in 0 %" in found.summary
        and "wait_for_leader" in found.summary
    )


def test_rank_that_spins_at_a_line_of_its_own_works_and_is_what_the_others_wait_for() -> None:
    def works(rank: int, dice: random.Random) -> Sequence[str]:
        return (ALL_REDUCE, SPIN)[rank]

    (found,) = Loop().train(60, works).said()

    assert (found.ranks, found.waiting_ranks, found.cause) == ((1,), (0,), "own_code")


def test_ranks_with_work_of_their_own_hold_up_nobody() -> None:
    """One spins where the other never is: nothing shows that either waits."""

    def apart(rank: int, dice: random.Random) -> Sequence[str]:
        return SPIN if rank == 0 else each_for_itself(rank, dice)

    assert Loop().train(30, alike).train(90, apart).said() == []


# -- by the core that the main thread gets


def test_recorded_rank_that_shares_its_core_with_six_loops_is_named_by_that_and_the_slower_steps() -> None:
    """H100, two ranks that spin in `.item()`; without the Flight Recorder nothing else tells them apart."""
    engine, changes, _ = replay([CAPTURES / "gpu-loops" / "starved"])

    (change,) = [change for change in changes if change.kind.value == "opened"]
    found = change.finding
    assert change.at - STRUCK_AT < 30.0
    assert (found.id, found.cause, found.severity.value) == ("straggler", "cpu_contention", "warning")
    assert (found.ranks, found.waiting_ranks, found.confidence.value) == ((1,), (0,), "medium")
    assert "a step takes 0.23 s, 4 times the 58 ms before" in found.summary
    assert "it may use core 15, where pid 1275 (`sh -c while :; do :; done`)" in found.summary
    assert abs(found.since - STRUCK_AT) < 2.0
    assert engine.job.progress.step_words() == "step 782"


@pytest.mark.parametrize("stand", [in_item, alike])
def test_starved_rank_with_slower_steps_since_is_a_warning(stand: Stand) -> None:
    loop = Loop().train(30, alike).train(30, stand, seconds=5.0, ready=(0.0, 0.8))

    found = next(one for one in loop.said() if one.id == "straggler")
    assert (found.cause, found.severity.value, found.ranks) == ("cpu_contention", "warning", (1,))
    assert " times the 2 s before" in found.summary and "pid 4242" in found.summary


def test_starved_from_the_start_is_an_info_for_want_of_steps_to_compare_with() -> None:
    (found,) = Loop().train(60, alike, ready=(0.0, 0.8)).said()

    assert (found.cause, found.severity.value) == ("cpu_contention", "info")
    assert (found.ranks, found.waiting_ranks) == ((1,), ())
    assert "is not known: no steps were measured before" in found.summary


@pytest.mark.parametrize(
    ("stand", "seconds", "ready"),
    [
        (alike, 5.0, (0.8, 0.8)),  # a crowded machine: all alike
        (alike, 5.0, (0.3, 0.8)),  # nor does the other get what it asks for
        (alike, 2.0, (0.0, 0.8)),  # steps take what they took
        (alike, 5.0, (0.0, 0.2)),  # slower by something else
        (each_for_itself, 5.0, (0.0, 0.8)),  # nobody waits for it
    ],
)
def test_less_than_that_says_nothing_of_cores(
    stand: Stand, seconds: float, ready: tuple[float, float]
) -> None:
    loop = Loop().train(30, alike).train(30, stand, seconds=seconds, ready=ready)

    assert [found for found in loop.said() if found.id == "straggler"] == []


def test_rank_that_gets_its_core_back_is_no_longer_named() -> None:
    loop = Loop().train(30, alike).train(30, alike, seconds=5.0, ready=(0.0, 0.8)).train(40, alike)

    assert [found for found in loop.said() if found.id == "straggler"] == []


# -- slower than before


def test_steps_that_were_learned_and_get_slower_are_a_drop() -> None:
    loop = Loop(on_gpu=False).train(150, alike)
    assert loop.said() == []

    (found,) = loop.train(60, alike, seconds=4.0).said()
    assert found.id == "throughput-drop" and "2 times the 2 s before" in found.summary
