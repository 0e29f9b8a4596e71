"""A checkpoint save that will not fit into host memory, reported before it is over; and a leak that will meet the
limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, row
from diag.knowledge.checkpoint_args import named_paths
from diag.model import Confidence, Evidence, Finding, NotChecked, Severity
from diag.state.save_memory import HOST, LimitMemory, Outlook
from diag.state.save_shape import SaveShape
from diag.state.saves import never_saves
from diag.state.view import JobView
from diag.text.units import format_bytes, format_ratio, format_seconds

_WARNS = 0.9  # probability that the save does not fit; chosen on simulated runs (tests/labs/forecast), see DECISIONS
_CRITICAL = 0.975  # the lower bound of the peak is over the limit
_LEAK_SECONDS = 1800.0
# Ours: below it, what grows is as well another program that runs next to the job (a build, a second job)
# as a leak.
_HOST_SHARE = 0.5
_STAYS = 0.05  # of the rise: less is the readings' own spread


class HostOomForecastDetector(Detector):
    name = "host-oom-forecast"

    def __init__(self) -> None:
        # the save that was critical: it stays so for as long as it is feared
        self._grave: tuple[str, int] | None = None

    def tick(self, now: float, job: JobView) -> None:
        feared = _feared(now, job)
        self._grave = _save_of(*feared) if feared is not None and self._is_grave(*feared) else None

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if job.broken or job.returncode is not None:
            return  # what happened is host-oom's
        feared = _feared(now, job)
        if feared is not None:
            yield self._of_save(now, job, *feared)
            return
        for limit in job.saves.memory.fresh():
            left = limit.seconds_to_limit(now)
            if left is not None and left < _LEAK_SECONDS and not _is_of_others(limit):
                yield self._of_leak(now, job, limit, left)
                return

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        """Steps are made, a save is to come, and what it takes is not known: silence would look like room."""
        first = job.returncode is None and job.iteration is not None and not job.saves.log.count
        named = any(path.role == "save" for path in named_paths(job.run.words))
        if first and named and not never_saves(job.run.words) and estimated(job) is None:
            yield NotChecked(
                "whether the first checkpoint save fits into host memory",
                "no save was seen yet, and what one takes does not follow from the command's arguments",
                "let --model name a folder with its config.json; `diag estimate -- CMD` shows what is missing",
            )

    def _is_grave(self, limit: LimitMemory, outlook: Outlook) -> bool:
        """A risk near the bound crosses it with each reading: what was grave stays so."""
        return outlook.risk >= _CRITICAL or self._grave == _save_of(limit, outlook)

    def _of_save(self, now: float, job: JobView, limit: LimitMemory, outlook: Outlook) -> Finding:
        after = f" after iteration {outlook.iteration}" if outlook.iteration is not None else ""
        which = f"the save that runs{after}" if outlook.running else f"the next save{after}"
        bounds = f"{format_bytes(outlook.peak)} ({format_bytes(outlook.low)} to {format_bytes(outlook.high)})"
        grave = self._is_grave(limit, outlook)
        confidence = Confidence.HIGH if grave else None
        shapes = list(limit.shapes)
        cause, why = _cause(outlook, shapes)
        return finding(
            self.name,
            cause,
            severity=Severity.CRITICAL if grave else None,
            confidence=Confidence.LOW if outlook.basis == "estimate" else confidence,
            summary=f"{which} will need {bounds} of {format_bytes(outlook.limit)} host memory of {_where(limit)} in phase "
            f"{job.phase}: it does not fit with a probability of {format_ratio(outlook.risk)}",
            words={name: row(self.name)[name] for name in ("raise", "less")},
            since=now,
            evidence=(
                Evidence(_channel(limit), why, now),
                *(Evidence("save", _shape(one), limit.starts.get(one.number, now)) for one in shapes[-3:]),
            ),
        )

    def _of_leak(self, now: float, job: JobView, limit: LimitMemory, left: float) -> Finding:
        needed = format_bytes(limit.series.points[-1].needed)
        assert limit.series.limit
        whose, look = "host memory of the job", ""
        if limit.path == HOST:
            whose = "memory of the host (of all that runs on it)"
            look = "See whose it is (`ps -eo pid,rss,comm --sort=-rss | head`): another job, or this one. "
        return finding(
            self.name,
            "leak",
            summary=f"{whose} grows from step to step in phase {job.phase}: {needed} of "
            f"{format_bytes(limit.series.limit)} of {_where(limit)} are needed, and at this rate the limit is reached in "
            f"{format_seconds(left)}",
            words={"whose": look},
            since=now,
            evidence=[Evidence(_channel(limit), f"needed {needed} at the last reading", now)],
        )


def _feared(now: float, job: JobView) -> tuple[LimitMemory, Outlook] | None:
    """The save that will not fit, by the limit that it will not fit into."""
    if job.broken or job.returncode is not None:
        return None
    found = job.saves.memory.outlook(now, job.run.words, estimated(job))
    likely = found is not None and found[1].risk >= _WARNS and not _past_the_end(job, found[1])
    return found if likely else None


def _save_of(limit: LimitMemory, outlook: Outlook) -> tuple[str, int]:
    return limit.path, outlook.number


def _is_of_others(limit: LimitMemory) -> bool:
    """Whether growth may well be that of other programs of a host which has room."""
    total = limit.series.limit
    return limit.path == HOST and total is not None and limit.series.points[-1].needed < _HOST_SHARE * total


def estimated(job: JobView) -> int | None:
    """What a save takes by the command's arguments, once the job is in its steps and its own memory is
    measured."""
    if job.machine.memory_estimate is None or never_saves(job.run.words):
        return None
    return job.machine.memory_estimate.save_bytes or None


def _past_the_end(job: JobView, outlook: Outlook) -> bool:
    """A job that has made its last save makes no other; what the arguments do not show is not guessed."""
    total = job.progress.total_iterations
    return not outlook.running and bool(total) and (job.iteration or 0) >= total


def _cause(outlook: Outlook, shapes: Sequence[SaveShape]) -> tuple[str, str]:
    """What makes it too much, and the readings that show it."""
    base = f"the job needs {format_bytes(outlook.base)} before the save"
    if outlook.basis == "estimate" or not shapes:
        return "first_save", f"{base}; what the save takes is estimated from the command's arguments"
    last = shapes[-1]
    why = f"{base}, {format_bytes(last.base)} before the last one, which took {format_bytes(last.rise)} more"
    stays = outlook.base - last.base
    if stays > _STAYS * last.rise and stays > 0.5 * (outlook.peak - last.peak) and len(shapes) > 1:
        return "kept_memory", why
    if outlook.peak - outlook.base > (1 + _STAYS) * last.fall:
        return "growing_save", why
    return "save_peak", why


def _shape(shape: SaveShape) -> str:
    how = "by the kernel's counter" if shape.exact else "by readings"
    return (
        f"save {shape.number}: {format_bytes(shape.base)} before it, {format_bytes(shape.peak)} at most "
        f"({how}), {format_bytes(shape.after)} after it"
    )


def _channel(limit: LimitMemory) -> str:
    return "host" if limit.path == HOST else "cgroup"


def _where(limit: LimitMemory) -> str:
    return "the host" if limit.path == HOST else f"cgroup {limit.path}"
