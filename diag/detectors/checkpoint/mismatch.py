"""A checkpoint was read, but does not fit the model or the layout that the job's arguments ask for."""

from __future__ import annotations

from collections.abc import Iterator

from diag.detectors.checkpoint.lines import LineDetector, ended_quietly, failed_by, line_finding
from diag.model import Finding
from diag.state.view import JobView


class CheckpointArgsMismatchDetector(LineDetector):
    name = "checkpoint-args-mismatch"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        quiet = ended_quietly(job)
        fatal = [line for line in self._lines.found if failed_by(job, line) or (quiet and line.ends_with_0)]
        if fatal:
            quietly = "; the job ended with status 0 all the same" if job.returncode == 0 else ""
            text = f"{{who}} could not load the checkpoint: {fatal[0].match[1].strip()[:240]}{quietly}"
            yield line_finding(self.name, fatal[0].cause, fatal, text)
