"""The plan of growing-save: the save that it says meets the limit does, no other, and a plan that fits leaves
its room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag_job.faults.growing_plan import SAVES, limit_of, plan_of, rises

MIB = 1 << 20
UNIT, OWN = 700 * MIB, 24 * MIB


@given(st.integers(min_value=1, max_value=500), st.integers(min_value=700, max_value=1300))
def test_the_limit_lies_between_the_last_save_that_fits_and_the_first_that_does_not(
    seed: int, needed: int
) -> None:
    plan = plan_of(seed, fits=False)
    limit = limit_of(plan, needed * MIB, UNIT, OWN)

    peaks = [needed * MIB + OWN + UNIT * rise for rise in rises(plan)]

    assert plan.fails_at is not None
    assert max(peaks[: plan.fails_at - 1]) < limit < peaks[plan.fails_at - 1]


@given(st.integers(min_value=1, max_value=500), st.integers(min_value=100, max_value=5000))
def test_a_plan_that_fits_leaves_three_to_fifteen_parts_in_a_hundred(seed: int, needed: int) -> None:
    plan = plan_of(seed, fits=True)
    limit = limit_of(plan, needed * MIB, UNIT, OWN)

    peak = max(needed * MIB + OWN + UNIT * rise for rise in rises(plan))

    assert 0.029 <= 1 - peak / limit <= 0.151


@pytest.mark.parametrize("fits", [True, False])
def test_plans_are_of_every_kind_and_follow_from_the_seed(fits: bool) -> None:
    plans = [plan_of(seed, fits=fits) for seed in range(1, 101)]

    assert len({plan.kind for plan in plans}) == (6 if fits else 5)
    assert {plan.fails_at for plan in plans} == ({None} if fits else {2, 3, 4, 5})
    assert all(len(plan.saves) == SAVES for plan in plans)
    assert plans == [plan_of(seed, fits=fits) for seed in range(1, 101)]
