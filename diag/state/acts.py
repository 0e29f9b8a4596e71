"""What `diag run --on` did to the job, and the attempts that it ended to start the command again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from diag.model.observations import Acted, PastAttempt, StartedAgain
from diag.state.reducer import Reducer, takes

_MOST = 200


@dataclass(frozen=True, slots=True)
class Step:
    at: float
    fact: Acted


class Acts(Reducer):
    """Owns both."""

    def __init__(self) -> None:
        self.attempt = 1
        self.earlier: tuple[PastAttempt, ...] = ()
        self.steps: deque[Step] = deque(maxlen=_MOST)  # of this attempt

    @property
    def ends_the_job(self) -> str:
        """The action that has ended it, or is about to; empty where none is."""
        return next((step.fact.action for step in reversed(self.steps) if step.fact.what == "term"), "")

    @takes(Acted)
    def _acted(self, at: float, fact: Acted) -> None:
        self.steps.append(Step(at, fact))

    @takes(StartedAgain)
    def _started_again(self, at: float, fact: StartedAgain) -> None:
        self.attempt, self.earlier = fact.number, fact.earlier

    def to_json(self) -> dict[str, Any]:
        """`actions` and `attempts` of a report, each only where there are any."""
        found: dict[str, Any] = {}
        if self.steps:
            found["actions"] = [
                {
                    "at": step.at, "what": step.fact.what, "action": step.fact.action, "text": step.fact.text,
                    "finding": step.fact.finding, "class": step.fact.klass, "ranks": list(step.fact.culprits),
                    "iteration": step.fact.step, **({"lease": step.fact.lease} if step.fact.lease else {}),
                }
                for step in self.steps
            ]  # fmt: skip
        if self.attempt > 1:
            found["attempts"] = [
                {
                    "number": one.number, "began": one.began, "ended": one.ended, "action": one.action,
                    "finding": one.finding, "class": one.klass, "ranks": list(one.culprits), "iteration": one.step,
                    "resumed": one.resumed, "evidence": one.evidence,
                    "steps": [{"at": at, "text": text} for at, text in zip(one.steps_at, one.steps, strict=False)],
                }
                for one in self.earlier
            ]  # fmt: skip
        return found
