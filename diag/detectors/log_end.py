"""What only plain logs leave open: a launcher that failed before any rank, and a job whose end is not known."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

from diag.detectors.contract import Detector
from diag.detectors.findings import finding
from diag.detectors.remedies import remedy
from diag.model import Evidence, Finding, NotChecked
from diag.state.view import JobView
from diag.text.units import format_seconds

# torch 1.9-2.13, distributed/elastic/multiprocessing/api.py, raised where somebody signals torchrun:
#   torch.distributed.elastic.multiprocessing.api.SignalException: Process 30529 got signal: 15
_SIGNALLED = re.compile(r"SignalException: Process \d{1,10} got signal: (\d{1,2})$")
_NAMES = {member.value: f" ({member.name})" for member in signal.Signals}


def _told(lines: Sequence[str], exception: str) -> str:
    """What the form of its exception says; of the rendezvous the catalogue says more."""
    return "" if "RendezvousConnection" in exception else remedy(lines, exception, general=False)


def _may_have_ended(job: JobView) -> bool:
    """All but a known trainer amid its steps: an unknown one, and a program that makes no steps (an evaluation, a
    conversion), print no line by which their end is known."""
    planned, made = job.progress.total_iterations, job.iteration
    return bool(job.progress.where) or made is None or 0 < planned <= made


class LogEndDetector(Detector):
    """A log that just stops is not judged: nothing in it distinguishes a job that hangs from one that is killed or goes
    on."""

    name = "log-end"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        logs = job.log.ended
        if logs is None or not logs.error or any(rank.failed for rank in job.ranks.values()):
            return
        cause, summary = (
            "launcher_failed",
            f'the launcher failed before any rank is known to have failed: "{logs.exception}"',
        )
        if match := _SIGNALLED.search(logs.exception):
            number = int(match[1])
            cause = "launcher_signalled"
            summary = f"somebody ended the launcher by signal {number}{_NAMES.get(number, '')}"
        yield finding(
            "rank-died",
            cause,
            summary=summary,
            advice=(cause == "launcher_failed" and _told(logs.error, logs.exception)) or None,
            since=logs.error_at,
            evidence=(Evidence("output", "\n".join(logs.error), logs.error_at),),
        )

    def not_checked(self, job: JobView) -> Iterator[NotChecked]:
        logs = job.log.ended
        ended = job.returncode is not None or any(rank.failed for rank in job.ranks.values())
        if logs is None or logs.hung or ended:
            return
        if job.phases.since is None and job.iteration is None:
            yield NotChecked(
                "progress of the job",
                "no line of a trainer, launcher or NCCL that diag knows was seen",
                "give the log with the trainer's own lines (stdout and stderr of all ranks)",
            )
            return
        last = f"the log stops in phase {job.phase}"
        if job.iteration is not None:
            last += f" after {job.progress.step_words()}"
            last += f" of {job.progress.total_iterations}" if job.progress.total_iterations else ""
        quiet = logs.quiet_seconds
        if (
            logs.ended is not None and job.progress.log_moved_at is not None
        ):  # steps of an unknown trainer too
            quiet = min(quiet, logs.ended - job.progress.log_moved_at)
        if quiet >= 1.0:
            last += f", {format_seconds(quiet)} before its last line"
        yield NotChecked(
            "hang",
            f"{last}, without an error: it {'has ended, ' if _may_have_ended(job) else ''}hangs, was killed, or still runs",
            "while it runs: `diag dump --all-ranks` or `py-spy dump` of each rank; later: exit code, scheduler's log, dmesg",
        )
