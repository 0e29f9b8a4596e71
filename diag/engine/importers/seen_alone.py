"""How much a line counts in a log whose end is not known: an excerpt, a paste, a log that was cut off.

Nothing in it tells whether the job ended of the error that it shows. What the program did afterwards does: steps
mean that it got over it, usual output that it went on; what comes after a scheduler's word that it ended the job is
only how the job is taken down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from diag.detectors.contract import Detector
from diag.engine.importers.line_index import LineIndex
from diag.engine.importers.tracebacks import USUAL_LEVELS, goes_on
from diag.knowledge.tracebacks import BY_SCHEDULER
from diag.model import Confidence, Finding, Severity
from diag.model.observations import LogLine, MetricsLogged, PlainLines, QuietLine
from diag.state.reducer import StepMade
from diag.state.view import JobView
from diag.text.words import ShapeWords

_USUAL_RUN = 30  # lines in one piece that no reader cares about: the program's ordinary output. Ours.
_UNKNOWN = "whether the job ended of it, the log does not tell"
_WENT_ON = "the program went on after it"
_STEPS = 2  # a peer may report one more step after a rank has raised


class SeenAlone(Detector):
    """Given facts like a detector that finds nothing; `weigh` is for the findings of the others."""

    name = "seen-alone"
    listens = (LogLine, QuietLine, PlainLines, MetricsLogged, StepMade)

    def __init__(self, lines: LineIndex) -> None:
        self._index = lines
        self._last: tuple[str, int] = ("", 0)  # stream and number of the line that was read last
        self._usual: dict[str, int] = {}  # by stream, the last line of the program's ordinary output
        self._ended: set[str] = set()  # streams in which a scheduler has said that it ended the job
        self._steps: deque[tuple[str, int]] = deque(maxlen=_STEPS)

    def observe(self, at: float, fact: LogLine | QuietLine | PlainLines | MetricsLogged | StepMade) -> None:
        if isinstance(fact, (MetricsLogged, StepMade)):
            if self._last not in self._steps:  # one line may tell of both
                self._steps.append(self._last)
        elif isinstance(fact, PlainLines):
            if fact.count >= _USUAL_RUN and fact.stream not in self._ended:
                self._usual[fact.stream] = self._last[1] + fact.count
        elif fact.number:
            self._last = (fact.stream, fact.number)
            if " CANCELLED AT " in fact.text or "job killed" in fact.text:
                if BY_SCHEDULER.search(fact.text):
                    self._ended.add(fact.stream)
            elif fact.stream not in self._ended and not fact.bar and _is_usual(fact):
                self._usual[fact.stream] = fact.number

    def check(self, now: float, job: JobView) -> Iterable[Finding]:
        return ()

    def weigh(self, finding: Finding) -> Finding | None:
        """The finding as it counts where only the excerpt tells of it; None where the job got over it."""
        if not finding.severity.counts:
            return finding
        stream, number = self._place(finding)
        if number and len(self._steps) == _STEPS and self._steps[0] > (stream, number):
            return None
        went_on = bool(number) and self._usual.get(stream, 0) > number
        severity = Severity.INFO if went_on else Severity.WARNING
        summary = f"{finding.summary}; {_WENT_ON if went_on else _UNKNOWN}"
        if finding.rule and any(BY_SCHEDULER.search(item.excerpt) for item in finding.evidence):
            summary = finding.summary  # it says itself that the job ended, and of what
        return replace(
            finding, severity=severity, confidence=Confidence.LOW, summary=summary, seen_alone=True
        )

    def _place(self, finding: Finding) -> tuple[str, int]:
        for item in finding.evidence:
            stream, colon, number = self._index.find(item.excerpt).rpartition(":")
            if colon:
                return stream, int(number)
        return "", 0


_USUAL = ShapeWords(*USUAL_LEVELS)


def _is_usual(line: LogLine) -> bool:
    if isinstance(line, QuietLine) and not _USUAL.may_be_in(line.shape):
        return False
    return any(level in line.text for level in USUAL_LEVELS) and goes_on(line.text)
