"""What the engine asks of a detector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from diag.model import Finding, NotChecked
from diag.model.observations import Observation
from diag.state.job import JobState

__all__ = ["WHOLE_JOB", "Detector"]

# Findings that only who sees all ranks can be right about.
WHOLE_JOB = frozenset({"hang", "rank-died", "straggler", "transport-mismatch"})


class Detector(Protocol):
    """One judgement. `observe` changes its state and says nothing; `check` says and changes nothing."""

    name: str

    def observe(self, at: float, fact: Observation) -> None: ...

    def check(self, now: float, job: JobState) -> Iterable[Finding]: ...

    def not_checked(self, job: JobState) -> Iterable[NotChecked]: ...
