"""Processes that have one rank's number between them: real ones, side by side, below each other, and one after
another."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.core.test_finder import WAIT, WORKERS, Job, a_job, finder_of, pids, torchrun


@pytest.fixture
def job() -> Iterator[Job]:
    with a_job() as started:
        yield started


def test_two_processes_of_one_program_and_one_number_are_told_once(job: Job) -> None:
    first, second = job.rank(1, "first"), job.rank(1, "second")
    finder = finder_of(job)

    found = pids(finder.scan())
    new = finder.shared
    finder.scan()

    assert found in ({1: first}, {1: second})
    assert new == [(1, tuple(sorted((first, second))))] and finder.shared == []


def test_second_that_goes_on_alone_was_there_beside_the_first(job: Job) -> None:
    both = {job.rank(0, "first"): "first", job.rank(0, "second"): "second"}
    finder = finder_of(job)
    known = pids(finder.scan())[0]
    told = finder.shared

    job.kill(both[known])

    assert pids(finder.scan()) == {0: next(pid for pid in both if pid != known)}
    assert told == [(0, tuple(sorted(both)))] and finder.shared == []


def test_workers_other_programs_and_a_rank_that_is_started_again_share_no_number(job: Job) -> None:
    job.start("rank0", [sys.executable, "-c", WORKERS, "rank0", "/dev/null"], torchrun(0))
    job.rank(1)
    job.start("service", [sys.executable, "-Bc", WAIT, "service"], torchrun(1))
    finder = finder_of(job)
    finder.scan()
    beside = finder.shared

    job.kill("rank1")
    job.rank(1, "rank1")
    finder.scan()

    assert beside == finder.shared == []
