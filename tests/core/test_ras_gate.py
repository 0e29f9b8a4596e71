"""Which NCCL may be asked over RAS, how often, and when never."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from diag.agent.samplers.ras import (
    APART_SECONDS,
    MOST_QUESTIONS,
    PATIENCE_SECONDS,
    REST_SECONDS,
    Budget,
    creating,
    refusal,
)
from diag.model.observations import (
    PhaseMarked,
)
from tests.rasjobs import COMPLETE, START, job_of, say, stand

# --- the gate of versions


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


# --- the budget


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


def test_line_of_an_unfinished_init_forbids_asking_until_it_is_complete() -> None:
    job = job_of(566, 567)
    assert creating(job) is None

    say(job, START)
    refused = creating(job)
    assert refused is not None and "rank 0" in refused.reason
    assert job.nccl.being_made(566) == 30.0 and job.nccl.being_made(567) is None

    say(job, COMPLETE, 31.0)
    assert creating(job) is None


def test_real_log_ends_with_no_communicator_under_way_and_tells_version_and_address() -> None:
    job = job_of(566)
    lines = (
        (Path(__file__).parents[1] / "captures" / "logs" / "nccl" / "healthy_rank0.log")
        .read_text()
        .splitlines()
    )
    made = []
    for line in lines:
        say(job, line)
        made.append(job.nccl.being_made(566) is not None)

    assert (job.nccl.version, job.nccl.ras_address) == ("2.28.9", "127.0.0.1<28028>")
    assert any(made) and not made[-1]


def test_stack_in_a_rendezvous_or_in_the_making_of_a_communicator_forbids_asking() -> None:
    job = job_of(1, 2)
    stand(job, 1, "main /app/train.py:5", "new_group torch/distributed/distributed_c10d.py:5000")
    assert creating(job) is not None

    stand(job, 1, "main /app/train.py:5", "all_reduce torch/distributed/distributed_c10d.py:3173")
    assert creating(job) is None


@pytest.mark.parametrize("phase", ["rendezvous", "comm_init"])
def test_early_phase_forbids_asking(phase: str) -> None:
    job = job_of(1, 2, steps=0)
    job.observe(40.0, PhaseMarked(None, phase, "a line"))
    refused = creating(job)
    assert refused is not None and phase in refused.reason


def test_first_step_of_a_job_whose_nccl_says_nothing_forbids_asking() -> None:
    job = job_of(566, 567)
    job.observe(40.0, PhaseMarked(None, "first_step", "a line"))
    assert creating(job) is not None

    say(job, "gpu-node-0:566:566 [0] NCCL INFO NCCL version 2.28.9+cuda13.0")
    assert creating(job) is None


def test_other_nodes_leave_it_to_the_node_of_rank_0() -> None:
    assert creating(job_of(1, 2, node_rank=1, first=2)) is not None
    assert creating(job_of(1, 2, node_rank=0)) is None
