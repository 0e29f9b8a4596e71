"""Which versions of NCCL are asked, and how often."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from diag.agent.samplers.ras import (
    APART_SECONDS,
    MOST_QUESTIONS,
    PATIENCE_SECONDS,
    REST_SECONDS,
    Budget,
    refusal,
)


@pytest.mark.parametrize(
    ("version", "auto", "force"),
    [
        ("2.18.3", False, False),
        ("2.23.4", False, False),  # no RAS there
        ("2.24.3", False, True),
        ("2.26.5", False, True),
        ("2.27.7", False, True),
        ("2.28.6", False, True),
        ("2.28.7", True, True),
        ("2.28.9", True, True),
        ("2.30.7", True, True),
        ("3.0.0", True, True),
        ("", False, True),
        ("2.28", False, True),
    ],
)
def test_version_decides_unless_forced_and_off_is_off(version: str, auto: bool, force: bool) -> None:
    assert (refusal(version, "auto") is None, refusal(version, "force") is None) == (auto, force)
    assert refusal(version, "off") is not None


def test_refusal_says_what_would_let_it_be_asked() -> None:
    refused = refusal("2.26.5", "auto")
    assert refused is not None
    assert "2.26.5" in refused.reason and "2.28.7" in refused.remedy and "--ras force" in refused.remedy


def questions(
    suspicious: Callable[[float], bool], seconds: float, *, answered: bool = True, takes: float = 0.3
) -> list[float]:
    """When questions are put if somebody looks each second."""
    budget = Budget()
    asked = []
    for now in range(int(seconds)):
        budget.note(now, suspicious(now))
        if budget.due(now):
            asked.append(now)
            budget.spend(now + takes, answered)
    return asked


def test_suspicion_is_asked_about_twice_5_s_apart_after_8_s_and_never_again() -> None:
    asked = questions(lambda now: now >= 100, 100_000)
    assert asked == [100 + PATIENCE_SECONDS, 100 + PATIENCE_SECONDS + APART_SECONDS + 1]
    assert len(asked) == MOST_QUESTIONS


def test_slow_steps_of_seven_seconds_are_never_asked_about() -> None:
    assert questions(lambda now: now % 12 >= 12 - PATIENCE_SECONDS, 100_000) == []


def test_job_that_is_suspected_again_and_again_is_not_polled() -> None:
    asked = questions(lambda now: now % 30 >= 10, 3600)
    rests = [later - earlier for earlier, later in itertools.pairwise(asked) if later - earlier > 10]
    assert min(rests) >= REST_SECONDS
    assert len(asked) <= 2 * 3600 / REST_SECONDS


def test_who_does_not_answer_is_not_asked_again_in_that_suspicion() -> None:
    assert len(questions(lambda now: now >= 10, 10_000, answered=False)) == 1
