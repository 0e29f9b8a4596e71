"""The models behind the forecast of a save: shapes of saves, what they say of the next, pace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.state.memory_series import MemoryPoint, MemorySeries, slope
from diag.state.save_shape import (
    Component,
    Mixture,
    Running,
    SaveShape,
    before_save,
    in_save,
    quicker,
    shape_of,
)

MIB = 1 << 20
sizes = st.integers(min_value=0, max_value=1 << 44)


def save(number: int, base: int, staged: int, kept: int = 0, seconds: float = 10.0) -> SaveShape:
    curve = tuple((seconds * i / 20, staged * i * MIB // 20) for i in range(21))
    return SaveShape(
        number,
        number * 10,
        base * MIB,
        (base + staged) * MIB,
        (base + kept) * MIB,
        (staged - kept) * MIB,
        curve,
    )


def running(base: int, staged: int, seconds: float, rest: float = 0.0) -> Running:
    points = tuple(
        MemoryPoint(i * 0.5, (base + int(staged * i * 0.5 / seconds)) * MIB)
        for i in range(int(seconds * 2) + 1)
    )
    return Running(base * MIB, points, points[-1].at + rest)


def peak(mixture: Mixture) -> int:
    return round(mixture.quantile(0.5) / MIB)


def test_equal_saves_tell_an_equal_one() -> None:
    told = before_save([save(n, 1000, 500) for n in (1, 2, 3)], 1000 * MIB)

    assert peak(told) == pytest.approx(1500, rel=0.02)


def test_what_is_kept_is_told_from_what_is_taken_again() -> None:
    leak = [save(n, 1000 + 200 * n, 500, kept=200) for n in (0, 1, 2)]
    pinned = [save(1, 1000, 500, kept=450), save(2, 1450, 50), save(3, 1450, 50)]

    assert peak(before_save(leak, 1600 * MIB)) == pytest.approx(2100, rel=0.03)
    assert peak(before_save(pinned, 1450 * MIB)) == pytest.approx(1500, rel=0.03)


def test_a_linear_growth_is_gone_on_with() -> None:
    told = before_save([save(n, 1000, 500 + 100 * n) for n in (0, 1, 2, 3)], 1000 * MIB)

    assert peak(told) == pytest.approx(1900, rel=0.03)


def test_one_jump_does_not_make_the_next_prediction_worthless() -> None:
    told = before_save(
        [*(save(n, 1000, 500) for n in (1, 2, 3)), *(save(n, 1000, 900) for n in (4, 5, 6))], 1000 * MIB
    )

    assert peak(told) == pytest.approx(1900, rel=0.05)


def test_a_save_that_rises_on_over_all_others_will_need_more_than_it_has() -> None:
    told = in_save([save(n, 1000, 500) for n in (1, 2, 3)], running(1000, 800, 16.0))

    assert peak(told) > 1800


def test_a_save_that_stands_has_reached_its_peak() -> None:
    told = in_save([save(n, 1000, 500) for n in (1, 2, 3)], running(1000, 480, 10.0, rest=4.0))

    assert peak(told) == pytest.approx(1480, rel=0.02)
    assert told.quantile(0.95) < 1600 * MIB


def test_a_save_that_is_quicker_tells_that_it_is_larger_but_not_beyond_belief() -> None:
    saves = [save(n, 1000, 500) for n in (1, 2, 3)]
    usual, larger, absurd = (
        peak(in_save(saves, running(1000, int(factor * 250), 5.0))) for factor in (1.0, 1.4, 1.9)
    )

    assert usual <= larger
    assert absurd < 2500


def test_pace_is_compared_over_the_same_part_and_not_across_gaps() -> None:
    gap = [(0.0, 0.0), (30.0, 100.0), (30.5, 200.0)]

    assert quicker([(0.0, 50.0), (1.0, 100.0)], gap, 200.0) is None
    assert quicker([(0.0, 0.0), (1.0, 1.0)], [(0.0, 0.0), (1.0, 100.0)], 100.0) is None


def test_a_peak_between_two_readings_is_told_by_the_counter() -> None:
    points = [MemoryPoint(t, 1000 * MIB, 50 * MIB, counter * MIB) for t, counter in ((1, 1600), (2, 1600))]

    shape = shape_of(1, 10, MemoryPoint(0, 1000 * MIB, 50 * MIB, 1050 * MIB), points)

    assert (shape.peak, shape.exact) == (1550 * MIB, True)


def test_a_counter_that_page_cache_drove_tells_no_peak() -> None:
    points = [
        MemoryPoint(1, 1100 * MIB, 800 * MIB, 1900 * MIB),
        MemoryPoint(2, 1000 * MIB, 800 * MIB, 1900 * MIB),
    ]

    shape = shape_of(1, 10, MemoryPoint(0, 1000 * MIB, 0, 1000 * MIB), points)

    assert (shape.peak, shape.exact) == (1100 * MIB, False)


def test_the_reading_that_holds_is_the_last_one_before() -> None:
    series = MemorySeries()
    for at in (1.0, 2.0, 9.0):
        series.add(MemoryPoint(at, int(at)), None)

    held = series.at(5.0)
    assert held is not None and held.at == 2.0
    assert series.at(0.5) is None
    assert [point.at for point in series.between(2.0, 9.0)] == [2.0, 9.0]


@given(st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=8), sizes)
def test_any_saves_tell_bounds_in_order_and_a_risk_that_falls_with_the_limit(
    past: list[tuple[int, int, int]], base: int
) -> None:
    shapes = []
    for number, (low, rise, kept) in enumerate(past):
        stays = min(rise, kept)
        shapes.append(SaveShape(number, number, low, low + rise, low + stays, rise - stays, ()))
    told = before_save(shapes, float(base))

    low, mid, high = (told.quantile(share) for share in (0.025, 0.5, 0.975))
    risks = [told.above(limit) for limit in (low, mid, high, 1e16)]
    assert low <= mid <= high
    assert all(0.0 <= risk <= 1.0 for risk in risks)
    assert risks == sorted(risks, reverse=True)


@given(st.lists(sizes, min_size=1, max_size=20), st.floats(min_value=0.0, max_value=1e6))
def test_a_save_under_way_never_needs_less_than_it_has(needed: list[int], later: float) -> None:
    points = tuple(MemoryPoint(i * 0.5, value) for i, value in enumerate(needed))

    told = in_save([save(1, 1000, 500)], Running(needed[0], points, points[-1].at + later))

    assert told.quantile(0.025) >= max(needed)


@given(st.lists(st.integers(min_value=0, max_value=1 << 40), min_size=2, max_size=100))
def test_slope_of_what_only_grows_is_not_negative(values: list[int]) -> None:
    assert slope([MemoryPoint(float(i), value) for i, value in enumerate(sorted(values))]) >= 0


def test_what_was_reached_is_certain() -> None:
    told = Mixture((Component(1.0, 100.0, 10.0),), reached=150.0)

    assert told.above(149.0) == 1.0
    assert told.quantile(0.025) >= 150.0
