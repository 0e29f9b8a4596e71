"""Cases for the gates: one in which all are open, and ways to close each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diag.agent.act.gates import Case
from diag.launch.actions import Rule
from diag.model import Confidence, Finding, Severity
from diag.model.observations import PastAttempt


def hang(klass: str = "data_loading", ranks: tuple[int, ...] = (3,), **more: Any) -> Finding:
    given: dict[str, Any] = {
        "id": "hang", "subject": "job", "severity": Severity.CRITICAL, "confidence": Confidence.HIGH,
        "summary": "", "advice": "", "since": 900.0, "klass": klass, "ranks": ranks,
    }  # fmt: skip
    return Finding(**{**given, **more})


def past(**more: Any) -> PastAttempt:
    given: dict[str, Any] = {
        "number": 1, "began": 0.0, "ended": 500.0, "action": "restart:3", "finding": "hang",
        "klass": "data_loading", "culprits": (3,), "step": 7,
    }  # fmt: skip
    return PastAttempt(**{**given, **more})


OPEN = Case(
    Rule.read("hang=restart:3"),
    hang(),
    now=1300.0,
    after=300.0,
    stood_since=1000.0,
    phase="steady",
    saving=False,
    runs=True,
    step=12,
    earlier=(past(),),
    evidence="/runs/1/dumps/dump.tar.gz",
)


def case(**more: Any) -> Case:
    return replace(OPEN, **more)
