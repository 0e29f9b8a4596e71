"""When a job's steps are said to have become slower: never of thousands of healthy series, soon of one that
did."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from diag.state.pace import Drop, Lap, Pace

Series = Callable[[random.Random], Iterator[float]]  # seconds of each step, for ever


def steady(median: float, spread: float) -> Series:
    def made(dice: random.Random) -> Iterator[float]:
        while True:
            yield median * dice.lognormvariate(0, spread)

    return made


def heavy_tails(dice: random.Random) -> Iterator[float]:
    while True:
        yield 0.8 * (1 + 0.05 * dice.paretovariate(1.5))


def saves_that_nothing_tells_of(dice: random.Random) -> Iterator[float]:
    every = dice.choice((20, 50, 200))
    for step in itertools.count(1):
        yield 1.2 * dice.lognormvariate(0, 0.05) + (
            20 * dice.lognormvariate(0, 0.3) if step % every == 0 else 0
        )


def drift(dice: random.Random) -> Iterator[float]:
    """5 % in half an hour."""
    passed = 0.0
    while True:
        step = 1.5 * (1 + 0.05 * min(1.0, passed / 1800)) * dice.lognormvariate(0, 0.05)
        passed += step
        yield step


def hiccups(dice: random.Random) -> Iterator[float]:
    while True:
        yield 0.5 * dice.lognormvariate(0, 0.1) * (dice.choice((3, 10, 40)) if dice.random() < 0.02 else 1)


def lengths_of_all_kinds(dice: random.Random) -> Iterator[float]:
    while True:
        yield 6 * dice.uniform(0.4, 1.6)


def lengths_sorted_in_batches(dice: random.Random) -> Iterator[float]:
    """transformers' group_by_length: 50 batches at a time, the longest first."""
    while True:
        yield from sorted((3 * dice.uniform(0.4, 1.6) for _ in range(50)), reverse=True)


def noise_that_lasts(dice: random.Random) -> Iterator[float]:
    state = 0.0
    while True:
        state = 0.95 * state + dice.gauss(0, 0.1 * (1 - 0.95**2) ** 0.5)
        yield 2.0 * max(0.1, 1 + state) * dice.lognormvariate(0, 0.03)


def slow_start(dice: random.Random) -> Iterator[float]:
    passed = 0.0
    while True:
        step = 0.9 * dice.lognormvariate(0, 0.05) * (2.5 if passed < 120 else 1)
        passed += step
        yield step


def neighbour_for_half_a_minute(dice: random.Random) -> Iterator[float]:
    passed = 0.0
    while True:
        step = 1.1 * dice.lognormvariate(0, 0.05) * (1.6 if passed % 600 > 570 else 1)
        passed += step
        yield step


HEALTHY: dict[str, Series] = {
    "steady": steady(0.7, 0.05),
    "noisy": steady(0.7, 0.3),
    "long and noisy": steady(8.0, 0.35),
    "heavy tails": heavy_tails,
    "saves that nothing tells of": saves_that_nothing_tells_of,
    "drift": drift,
    "hiccups": hiccups,
    "lengths of all kinds": lengths_of_all_kinds,
    "lengths sorted in batches": lengths_sorted_in_batches,
    "noise that lasts": noise_that_lasts,
    "slow start": slow_start,
    "neighbour for half a minute": neighbour_for_half_a_minute,
}


def laps(steps: Iterator[float], hours: float, lines_every: int = 1) -> Iterator[Lap]:
    """As `StepTimes` makes them of lines that come each `lines_every` steps."""
    now = began = 0.0
    count = 0
    for step, seconds in enumerate(steps, 1):
        now += seconds
        count += 1
        if step % lines_every == 0 and now - began >= 5.0:
            yield Lap(began, now, step, count, (now - began) / count)
            began, count = now, 0
        if now > 3600 * hours:
            return


def first_drop(made: Iterator[Lap], *, any_drop: bool = False) -> tuple[float, Drop] | None:
    pace = Pace()
    for lap in made:
        pace.lap(lap)
        if pace.drop is not None and (any_drop or pace.drop.matters):
            return lap.at, pace.drop
    return None


@pytest.mark.parametrize("kind", HEALTHY)
def test_of_healthy_series_none_is_said_to_be_slower(kind: str) -> None:
    """100 of each kind, half an hour each: 600 hours. 5,000 hours: `python -m tests.core.test_pace`, see
    DECISIONS."""
    alarms = [
        seed
        for seed in range(100)
        if first_drop(laps(HEALTHY[kind](random.Random(seed)), 0.5, 1 + 9 * (seed % 2)))
    ]

    assert alarms == []


def slower_from(at: float, factor: float, spread: float, median: float) -> Series:
    def made(dice: random.Random) -> Iterator[float]:
        passed = 0.0
        while True:
            step = median * dice.lognormvariate(0, spread) * (factor if passed >= at else 1)
            passed += step
            yield step

    return made


@pytest.mark.parametrize(
    ("factor", "spread", "within"),
    [(1.35, 0.05, 360), (1.5, 0.05, 100), (2.0, 0.05, 90), (5.0, 0.05, 90), (1.5, 0.3, 350), (2.0, 0.3, 120)],
)
def test_steps_that_stay_slower_are_said_soon(factor: float, spread: float, within: float) -> None:
    for seed in range(20):
        found = first_drop(laps(slower_from(1200, factor, spread, 0.7)(random.Random(seed)), 1.0))

        assert found is not None, seed
        at, drop = found
        assert at - 1200 < within
        assert abs(drop.since - 1200) < 40
        assert drop.before == pytest.approx(0.7, rel=0.15) and drop.ratio == pytest.approx(factor, rel=0.2)


def test_drop_is_over_when_the_steps_are_quick_again() -> None:
    pace = Pace()
    for lap in laps((2.0 if 1000 <= step < 1300 else 1.0 for step in range(2000)), 1.0):
        pace.lap(lap)
        if 1200 < lap.iteration <= 1300:
            assert pace.drop is not None and pace.drop.iteration == pytest.approx(1000, abs=6)
        if lap.iteration > 1340:
            assert pace.drop is None


def test_few_slow_steps_and_a_short_history_say_nothing() -> None:
    assert first_drop(laps((3.0 if 500 <= step < 515 else 1.0 for step in range(1000)), 1.0)) is None
    assert first_drop(laps((3.0 if step >= 100 else 1.0 for step in range(130)), 1.0)) is None


def _measure() -> None:
    total = hours = 0.0
    for kind, series in HEALTHY.items():
        each = 10_000 // len(HEALTHY) + 1
        found = [
            first_drop(laps(series(random.Random(seed)), 0.5, 1 + 9 * (seed % 2)), any_drop=any_drop)
            for seed in range(each)
            for any_drop in (False, True)
        ]
        alarms, infos = (sum(one is not None for one in found[part::2]) for part in (0, 1))
        total, hours = total + alarms, hours + 0.5 * each
        print(f"{kind}: {alarms} of {each} (with info: {infos})", flush=True)
    print(f"{total:.0f} alarms in {hours:.0f} hours")
    for spread in (0.05, 0.3):
        for factor in (1.3, 1.5, 2.0, 5.0):
            found = [
                first_drop(laps(slower_from(1200, factor, spread, 0.7)(random.Random(seed)), 2.0))
                for seed in range(100)
            ]
            delays = sorted(each[0] - 1200 for each in found if each is not None)
            middle, last = (delays[len(delays) // 2], delays[-1]) if delays else (float("nan"),) * 2
            print(
                f"x{factor} spread {spread}: {len(delays)} of 100, median {middle:.0f} s, longest {last:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    _measure()
