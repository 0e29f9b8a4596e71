"""The job's output: how many lines it has, the last of them, and which versions it names."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from diag.knowledge.log_prefix import strip_outer
from diag.model.observations import (
    AttemptBegan,
    LogLine,
    LogsEnded,
    NcclPlainLines,
    PlainLines,
    QuietLine,
    QuietLines,
    VersionSeen,
)
from diag.state.rank_view import TAIL_LINES
from diag.state.reducer import Reducer, takes


def lines_of(run: PlainLines | QuietLines) -> Iterator[LogLine]:
    """Each by itself, for who is in the middle of something: a traceback that may go on."""
    if isinstance(run, QuietLines):
        yield from run.lines
        return
    for text in run.text.split("\n"):
        outer = strip_outer(text)
        part = outer.task if outer.local_rank is None else outer.local_rank
        yield LogLine(run.rank, run.stream, outer.text, part=part)


class Log(Reducer):
    """Owns the end of the output of all ranks together; each rank's own is in `RankState.tail`."""

    def __init__(self) -> None:
        self.lines = 0  # how many were read, bars and NCCL's included
        self._last = ("", 0)  # stream and number of the last line
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)  # the last, without bars
        self.before: AttemptBegan | None = None  # where the log holds earlier attempts
        self.ended: LogsEnded | None = None  # where plain logs were read to their end
        self.versions: dict[str, str] = {}  # of packages, as pip calls them

    @takes(LogLine, QuietLine)
    def _line(self, at: float, fact: LogLine) -> None:
        here = (fact.stream, fact.number)
        if not fact.number or here != self._last:  # a bar, and what another process wrote behind it
            self.lines += 1
        self._last = here
        if not fact.bar:
            self.tail.append(fact.text)

    @takes(AttemptBegan)
    def _attempt_began(self, at: float, fact: AttemptBegan) -> None:
        self.before = fact

    @takes(LogsEnded)
    def _logs_ended(self, at: float, fact: LogsEnded) -> None:
        self.ended = fact

    @takes(VersionSeen)
    def _version(self, at: float, fact: VersionSeen) -> None:
        self.versions[fact.package] = fact.version

    @takes(NcclPlainLines, PlainLines)
    def _plain_lines(self, at: float, fact: NcclPlainLines | PlainLines) -> None:
        self.lines += fact.count
        self.tail.extend(fact.last)
