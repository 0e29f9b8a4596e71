"""What a rank wrote into a log of its own before it stood still is quoted where nobody is left that would end its wait, and
only where it tells of a failure."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from diag.model import Finding
from diag.model.observations import LastLines
from tests.detectors.test_hang_endless_waits import GET, Job
from tests.facts import TRAIN, Story

NEXT = (*TRAIN, "Prefetcher.next /app/reader.py:33", *GET)
SAID = "12:00:01 up upload: 403 QuotaExceeded: step160.pt"


@dataclass
class Logged(Job):
    lines: tuple[str, ...] = ()
    ago: float = 9.0

    def begun(self, story: Story) -> None:
        story.tell(LastLines(1, "rank1.log", self.lines, story.now - self.ago))


def told(*lines: str, ago: float = 9.0) -> Finding:
    return Logged(NEXT, left=("prefetch",), lines=lines, ago=ago).told()


def test_last_line_that_tells_of_a_failure_is_quoted_with_its_time() -> None:
    hang = told("12:00:00 up uploaded step140.pt", SAID)

    assert hang.cause == "nobody_puts"
    assert (
        f'it wrote into rank1.log: "{SAID}", ' in hang.summary and "before it stopped moving" in hang.summary
    )
    assert any(one.kind == "output" and SAID in one.excerpt for one in hang.evidence)


def test_line_that_others_follow_has_no_time() -> None:
    hang = told("ERROR upload: disk full", "12:00:02 loss 1.5")

    assert 'it wrote into rank1.log: "ERROR upload: disk full"' in hang.summary
    assert 'disk full", ' not in hang.summary


@pytest.mark.parametrize(
    ("line", "ago"),
    [("12:00:01 step 400 loss 1.5", 9.0), ("12:00:01 uploaded step160.pt", 9.0), (SAID, 900.0)],
)
def test_line_of_no_failure_and_one_of_long_before_are_not_quoted(line: str, ago: float) -> None:
    assert "it wrote into" not in told(line, ago=ago).summary
