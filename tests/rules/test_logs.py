"""Whole logs of real failures and of healthy jobs, most of them recorded here (tests/labs/log_lab): the cause is
read first, in the healthy ones nothing is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from diag.engine.replay import replay
from diag.model import found
from diag.outputs.report import report

LOGS = Path(__file__).parents[1] / "captures" / "logs"


def cases() -> list[Any]:
    return [
        pytest.param(
            path.parent / case["log"],
            case,
            id=f"{path.parent.name}/{case['log']}",
            marks=[pytest.mark.xfail(reason=case["gap"], strict=True)] if "gap" in case else [],
        )
        for path in sorted(LOGS.glob("*/cases.yaml"))
        for case in yaml.safe_load(path.read_text())
    ]


CASES = cases()
FAILING = [case for case in CASES if case.values[1]["expect"] != "none"]
HEALTHY = [case for case in CASES if case.values[1]["expect"] == "none"]


def test_there_are_logs_of_many_kinds() -> None:
    assert len(FAILING) >= 60 and len(HEALTHY) >= 30


@pytest.mark.parametrize(("path", "case"), FAILING)
def test_cause_is_read_first(path: Path, case: dict[str, Any]) -> None:
    engine, _, _ = replay([path])

    findings = [finding for finding in report(engine)["findings"] if finding["severity"] != "info"]
    assert findings, case["why"]
    first = findings[0]
    told = [(one["id"], one["summary"]) for one in findings]
    assert first["id"] in {case["expect"], *case.get("also", ())}, f"{case['why']}; found {told}"
    if case.get("ranks"):
        assert first["ranks"] == case["ranks"], first["summary"]


@pytest.mark.parametrize(("path", "case"), HEALTHY)
def test_healthy_log_raises_nothing(path: Path, case: dict[str, Any]) -> None:
    engine, _, _ = replay([path])

    assert not found(report(engine)), [(one["id"], one["summary"]) for one in report(engine)["findings"]]
