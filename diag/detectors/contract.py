"""What the engine asks of a detector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from diag.model import Finding, NotChecked
from diag.model.observations import Observation
from diag.model.observations.base import Event
from diag.state.view import JobView


class Detector(Protocol):
    """One judgement. `check` reports and changes nothing.

    One that `listens` to observations, or to events that the job's state announces (a step was made, whoever reported
    it), is a `Listener`, whose `observe` changes its state and reports nothing. One whose answer depends on its last
    answer has `tick(now, job)` too, which is called once before each check.
    """

    name: str

    @property
    def listens(self) -> tuple[type[Observation | Event], ...]:
        """The facts that `observe` is given."""
        return ()

    def check(self, now: float, job: JobView) -> Iterable[Finding]: ...

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        """What could not be checked of this job, and why."""
        return ()
