"""What the fault growing-save does, drawn from its seed alone: how much each save stages and keeps, and where
the limit is.

Sizes are in units of the first save's staging, all ranks together. No torch, no memory is taken here: tests
write the plan down before the run begins.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SAVES = 5
KINDS = ("linear", "exponential", "step", "noisy", "leak", "flat")

_OVER = 0.04  # of the limit: the least by which a save that must not fit is over it
_ROOM = (0.03, 0.15)  # of the limit, left by the greatest save that must fit
_NOMINAL_JOB = 1.4  # units that the job itself needs; the real figure is measured in the run
_MOST = 2.5  # units over the job: of the saves that are reached
_STEPS = 5  # between two saves, where no other number is told


@dataclass(frozen=True, slots=True)
class SavePlan:
    """One save: units staged, seconds of the staging, units that stay behind when it is over."""

    staged: float
    seconds: float
    kept: float


@dataclass(frozen=True, slots=True)
class Plan:
    """`fails_at`: the save (from 1) that meets the limit; None: all fit. `place`: what grows, the staging or
    what is kept."""

    seed: int
    kind: str
    place: str
    pace: str  # rate: a greater save takes longer; time: each takes the same
    fails_at: int | None
    saves: tuple[SavePlan, ...]
    leak: float  # units a step
    room: float  # of the limit, if all fit
    position: float  # 0-1: where between the last save that fits and the first that does not the limit lies
    cache: bool  # page cache fills what the limit leaves

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_of(seed: int, *, fits: bool) -> Plan:
    """
    >>> plan_of(3, fits=False) == plan_of(3, fits=False)
    True
    >>> plan_of(3, fits=True).fails_at is None
    True
    """
    rnd = random.Random(f"growing-save/{seed}/{fits}")
    while (
        True
    ):  # until the save that must not fit stands out from those before it, and the machine can bear them
        plan = _drawn(rnd, seed, fits)
        if max(rises(plan)[: plan.fails_at]) < _MOST and (fits or _gap(plan) >= _OVER + _ROOM[0] + 0.01):
            return plan


def _drawn(rnd: random.Random, seed: int, fits: bool) -> Plan:
    fails_at = None if fits else rnd.randint(2, SAVES)
    kind = rnd.choice(KINDS if fits else KINDS[:-1])
    place = "steps" if kind == "leak" else "none" if kind == "flat" else rnd.choice(("staged", "kept"))
    pace, seconds = rnd.choice(("rate", "time")), rnd.uniform(1.0, 6.0)
    size, sizes = 1.0, []
    growth, jump_at = rnd.uniform(0.08 if fits else 0.2, 0.45), fails_at or rnd.randint(2, SAVES)
    for number in range(1, SAVES + 1):
        if number > 1:
            if kind == "linear":
                size += growth
            elif kind == "exponential":
                size *= 1 + growth
            elif kind == "step" and number == jump_at:
                size += 2 * growth
            elif kind == "noisy":
                size = max(0.5, size + rnd.gauss(growth / 2, 0.15))
        sizes.append(size)
    saves = []
    for i, size in enumerate(sizes):
        kept = max(0.0, sizes[i + 1] - size) if place == "kept" and i + 1 < SAVES else 0.0
        staged = (size if place == "staged" else 1.0) * rnd.uniform(0.985, 1.015)
        saves.append(SavePlan(staged, seconds * (staged if pace == "rate" else rnd.uniform(0.9, 1.1)), kept))
    leak = rnd.uniform(0.01, 0.08) if kind == "leak" else 0.0
    return Plan(
        seed,
        kind,
        place,
        pace,
        fails_at,
        tuple(saves),
        leak,
        rnd.uniform(*_ROOM),
        rnd.random(),
        rnd.random() < (0.4 if fits else 0.2),
    )


def rises(plan: Plan, steps: int = _STEPS) -> list[float]:
    """Units by which each save's peak is over what the job needs one step after the first save.

    The first save stands there as the others do, less what it and the steps up to then left behind.
    """
    made = [plan.saves[0].staged - plan.saves[0].kept - plan.leak]
    kept = 0.0
    for number, save in enumerate(plan.saves[1:], 2):
        made.append(kept + plan.leak * ((number - 1) * steps - 1) + save.staged)
        kept += save.kept
    return made


def _gap(plan: Plan) -> float:
    peaks = [_NOMINAL_JOB + rise for rise in rises(plan)]
    assert plan.fails_at is not None
    return 1 - max(peaks[: plan.fails_at - 1]) / peaks[plan.fails_at - 1]


def limit_of(plan: Plan, needed: int, unit: int, own: int, steps: int = _STEPS) -> int:
    """The limit for a job that needs `needed` one step after its first save; `own` is what a save takes
    without the fault.

    >>> plan = plan_of(1, fits=True)
    >>> limit_of(plan, 10, 100, 0) > 10 + 100 * max(rises(plan))
    True
    """
    peaks = [needed + own + unit * rise for rise in rises(plan, steps)]
    if plan.fails_at is None:
        return int(max(peaks) / (1 - plan.room))
    low, high = _between(peaks, plan.fails_at)
    return int(low + plan.position * (high - low))


def _between(peaks: Sequence[float], fails_at: int) -> tuple[float, float]:
    low, high = max(peaks[: fails_at - 1]) / (1 - _ROOM[0]), peaks[fails_at - 1] / (1 + _OVER)
    return (low, high) if low < high else ((low + high) / 2,) * 2
