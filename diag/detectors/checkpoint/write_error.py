"""A checkpoint could not be written, for another reason than a full disk."""

from __future__ import annotations

from collections.abc import Iterator

from diag.detectors.checkpoint.lines import (
    LineDetector,
    after_iteration,
    failed_by,
    in_a_save,
    line_finding,
    sharpest,
)
from diag.detectors.findings import row
from diag.model import Confidence, Finding, Severity
from diag.state.view import JobView


class CheckpointWriteErrorDetector(LineDetector):
    name = "checkpoint-write-error"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if any(line.cause == "full" for line in self._lines.found):
            return
        lines = sharpest([line for line in self._lines.found if in_a_save(job, line)])
        if not lines:
            return
        first = lines[0]
        path = next((line.match[1] for line in lines if line.match.lastindex and line.match[1]), "")
        what = row(self.name, first.cause)["what"] + (f" ({path})" if path else "")
        yield line_finding(
            self.name,
            first.cause,
            lines,
            f"{{who}} could not write a checkpoint{after_iteration(job)}: {what}",
            severity=Severity.CRITICAL if failed_by(job, first) else Severity.WARNING,
            confidence=Confidence.HIGH if first.saving else Confidence.MEDIUM,
        )
