"""Where in its log a line is that a finding quotes: what people search for is the number of the line."""

from __future__ import annotations

from collections.abc import Iterable

from diag.detectors.contract import Detector
from diag.model import Finding
from diag.model.observations import LogLine, QuietLine
from diag.state.view import JobView

_MOST = 50_000  # lines that are remembered: the last
_KEY = 200  # characters
_STEPS = ("{'loss'", " iteration ", "%|")  # reports of steps are most of what is read, and no error


class LineIndex(Detector):
    """Given facts like a detector that finds nothing."""

    name = "line-index"
    listens = (LogLine, QuietLine)

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, int]] = {}

    def observe(self, at: float, fact: LogLine | QuietLine) -> None:
        if not fact.number or fact.bar or any(mark in fact.text for mark in _STEPS):
            return
        key = fact.text.strip()[:_KEY]
        if key and key not in self._places:
            if len(self._places) >= _MOST:
                del self._places[next(iter(self._places))]
            self._places[key] = (fact.stream, fact.number)

    def check(self, now: float, job: JobView) -> Iterable[Finding]:
        return ()

    def find(self, excerpt: str) -> str:
        """`train.log:1234` of the last line of the excerpt that is known and names an error, else of the last
        known, or ""."""
        lines = [line.strip()[:_KEY] for line in reversed(excerpt.splitlines())]
        for line in (*(line for line in lines if "rror" in line or "xception" in line), *lines):
            place = self._places.get(line)
            if place is not None:
                return f"{place[0]}:{place[1]}"
        return ""
