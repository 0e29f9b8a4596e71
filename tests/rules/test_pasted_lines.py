"""What docs/howto/pasted-lines.md says of single lines is what diag reports of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.engine.replay import replay_text
from diag.model import Confidence
from diag.outputs.report import report

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "howto" / "pasted-lines.md"
_ROW = re.compile(r"^\| `(.+?)` \| `([a-z-]+)`(?: \((\w+)\))? \| .+ \|$", re.MULTILINE)
ROWS = _ROW.findall(PAGE.read_text())


def test_page_has_at_least_twenty_lines() -> None:
    assert len(ROWS) >= 20
    assert len(ROWS) == PAGE.read_text().count("\n| ") - 2  # heads and rule


def test_chinese_page_has_the_same_lines_and_findings() -> None:
    assert _ROW.findall((DOCS / "zh" / "howto" / "pasted-lines.md").read_text()) == ROWS


@pytest.mark.parametrize(("line", "finding", "cause"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_line_alone_is_named_as_the_page_says(line: str, finding: str, cause: str) -> None:
    said = report(replay_text(f"{line}\n"))

    assert (said["findings"][0]["id"], said["findings"][0]["cause"]) == (finding, cause)
    assert said["job"]["state"] in ("unknown", "failed")  # no line shows that a job starts or runs


def test_timeout_that_one_rank_reports_says_nothing_of_the_other_ranks() -> None:
    """How many there are, and what they do, is not in its line."""
    line = next(row[0] for row in ROWS if "Watchdog caught" in row[0])

    findings = report(replay_text(f"{line}\n"))["findings"]

    assert [finding["id"] for finding in findings] == ["collective-timeout"]
    assert findings[0]["confidence"] == Confidence.LOW
