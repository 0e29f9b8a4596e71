"""Has the loss, or have the gradients, become nan or inf?"""

from __future__ import annotations

from collections.abc import Iterator

from diag.detectors.contract import Detector
from diag.detectors.echoed_errors import failed_soon, only_quoted
from diag.detectors.findings import finding, row, who
from diag.detectors.training.losses import HEALED, Losses, PrintedLosses
from diag.detectors.training.numbers import digits
from diag.knowledge.flags import ranks_of_one_batch
from diag.model import Confidence, Evidence, Finding
from diag.model.observations import (
    AttemptBegan,
    LossPrinted,
    LossScaleReduced,
    NonFiniteReported,
    PlainLines,
    RankFound,
)
from diag.state.points import Point, format_iteration
from diag.state.view import JobView

_FEW_LINES = 20  # an excerpt, of which a single line counts. Ours.
_MOST_RANKS = 64
_MOST_KEPT = 16
_WATCHED_SECONDS = 10.0  # ranks that report so soon after the first: who was first is not known among them


class LossNanDetector(Detector):
    name = "loss-nan"
    listens = (Point, NonFiniteReported, RankFound, LossPrinted, PlainLines, AttemptBegan)

    def __init__(self) -> None:
        self._losses = Losses()
        self._printed = PrintedLosses()
        self._checks = _ReportedByChecks("loss")

    def observe(
        self,
        at: float,
        fact: Point | NonFiniteReported | RankFound | LossPrinted | PlainLines | AttemptBegan,
    ) -> None:
        if isinstance(fact, (NonFiniteReported, RankFound)):
            self._checks.observe(at, fact)
            return
        if isinstance(fact, (LossPrinted, PlainLines, AttemptBegan)):
            self._printed.observe(at, fact)
            return
        if fact.loss is not None:
            self._checks.step(at, good=fact.finite_loss)
            self._losses.add(fact)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        losses, checks, guessed = self._losses, self._checks.heard(job), None
        if losses.is_empty and not checks.reports:  # whose line it is nobody knows
            guessed = Confidence.MEDIUM
            losses = self._printed.bad(few_lines=job.log.lines <= _FEW_LINES)
        first = losses.first
        if first is None and not checks.reports:
            return
        before = ""
        if losses.before is not None:
            before = f"; the last good value was {digits(losses.before.loss)} {losses.before.where}"
        if first is not None:
            more = f", and in {losses.count} lines in all" if losses.count > 1 else ""
            summary = f"the loss is {digits(first.loss)} {first.where}{more}{before}"
            if checks.ranks:
                summary += f"; {checks.whose()} had it first"
        else:
            summary = f"{checks.whose()} found nan or inf in its own loss {_after(job)}{before}"
        evidence = [*checks.evidence(), *([first.evidence()] if first is not None else [])]
        yield finding(
            self.name,
            confidence=guessed,
            summary=summary,
            since=min(item.at for item in evidence),
            ranks=checks.ranks,
            evidence=evidence,
        )


class GradNanDetector(Detector):
    name = "grad-nan"
    listens = (Point, LossScaleReduced, NonFiniteReported, RankFound)

    def __init__(self) -> None:
        self._row: list[Point] = []  # the first of those that are bad, in a row up to now
        self._length = 0
        self._before: Point | None = None
        self._scaled = False
        self._checks = _ReportedByChecks("grad")

    def observe(self, at: float, fact: Point | LossScaleReduced | NonFiniteReported | RankFound) -> None:
        if isinstance(fact, (NonFiniteReported, RankFound)):
            self._checks.observe(at, fact)
            return
        if isinstance(fact, LossScaleReduced):
            self._scaled = True
            return
        point = fact
        self._checks.step(at, good=not point.bad_grad and (point.loss is None or point.finite_loss))
        self._scaled |= (point.scale or 0.0) > 1
        if point.bad_grad:
            if self._length == 0:
                self._row.clear()
            self._length += 1
            if len(self._row) < _MOST_KEPT:
                self._row.append(point)
        elif point.grad is not None:
            self._length, self._before = 0, point

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        checks = self._checks.heard(job)
        # loss-nan reports it then
        lost = any(point.loss is not None and not point.finite_loss for point in self._row)
        in_row = self._length >= (10 if self._scaled else 2) and not lost
        if not in_row and not checks.reports:
            return
        evidence = list(checks.evidence())
        if checks.reports:
            where = f" ({checks.where})" if checks.where else ""
            summary = f"{checks.whose()} found nan or inf in its own gradients{where} {_after(job)}"
        else:
            first = self._row[0]
            since = format_iteration(first.iteration).removeprefix("at ")
            norm = digits(first.grad)
            summary = f"the gradient norm is {norm} since {since}, in {self._length} lines in a row"
            evidence.append(first.evidence())
        if self._before is not None:
            summary += f"; the last good value was {digits(self._before.grad)} {format_iteration(self._before.iteration)}"
        known = row(self.name)
        own = known["shared"] if checks.shared else known["named"] if checks.ranks else ""
        yield finding(
            self.name,
            summary=summary,
            since=min(item.at for item in evidence),
            advice=own + known["advice"],
            ranks=checks.ranks,
            evidence=evidence,
        )


def _after(job: JobView) -> str:
    done = job.iteration is not None
    return f"after {job.progress.step_words()}" if done else "before the first step was reported"


class _ReportedByChecks:
    """What checks inside the program reported, until another attempt of the job begins."""

    listens = (NonFiniteReported, RankFound)

    def __init__(self, what: str) -> None:
        self._what = what
        self.reports: list[tuple[float, NonFiniteReported]] = []
        self._pids: dict[int, int] = {}
        self._together = 1  # ranks that compute on one batch: numbered one after the other
        self._good = 0

    def step(self, at: float, *, good: bool) -> None:
        """Such a check ends the rank, or the step is made anew: lines that good steps come after were of
        neither."""
        if not good or (self.reports and at - self.reports[-1][0] <= _WATCHED_SECONDS):
            self._good = 0
            return
        self._good += 1
        if self._good >= HEALED:
            self.reports.clear()

    def observe(self, at: float, fact: NonFiniteReported | RankFound) -> None:
        if isinstance(fact, RankFound):
            known = self._pids.get(fact.placement.rank)
            if known is not None and known != fact.placement.pid:
                self.reports.clear()
            self._pids[fact.placement.rank] = fact.placement.pid
            together = ranks_of_one_batch(fact.command)
            self._together = together if fact.placement.world_size % together == 0 else 1
            return
        soon = not self.reports or at - self.reports[0][0] <= _WATCHED_SECONDS
        if fact.what == self._what and len(self.reports) < _MOST_RANKS and soon:
            self.reports.append((at, fact))

    def heard(self, job: JobView) -> _ReportedByChecks:
        """Itself, or nothing where no rank ended of it: the line may be in the data. torch's prefix shows
        an end."""
        ends = any(
            fact.text.startswith("[rank") or (failed_soon(job, at) and not only_quoted(job, fact.text))
            for at, fact in self.reports
        )
        return self if ends else _ReportedByChecks(self._what)

    @property
    def ranks(self) -> tuple[int, ...]:
        """With those that they share their batch with: nan passes between them within the step, and who printed
        it first shows nothing."""
        named = {fact.rank // self._together for _, fact in self.reports if fact.rank is not None}
        return tuple(one * self._together + place for one in sorted(named) for place in range(self._together))

    @property
    def shared(self) -> bool:
        """Which of `ranks` it began on is not known."""
        return self._together > 1 and bool(self.ranks)

    @property
    def where(self) -> str:
        return next((fact.where for _, fact in self.reports if fact.where), "")

    def whose(self) -> str:
        group = ", which compute on one batch together," if self.shared else ""
        return who(self.ranks, "a rank that is not named") + group

    def evidence(self) -> Iterator[Evidence]:
        for at, fact in self.reports[:3]:
            yield Evidence("output", fact.text[:500], at, fact.rank)
