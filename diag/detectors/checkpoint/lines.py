"""Lines of a log that report that a checkpoint could not be written or loaded, with what was printed around
them, and the detectors that judge by nothing else. Their patterns are in lines.yaml."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from diag.detectors.contract import Detector
from diag.detectors.echoed_errors import failed_soon, is_traced, only_quoted
from diag.detectors.findings import finding, load, row, who
from diag.model import Confidence, Evidence, Finding, Severity
from diag.model.observations import LogLine, PlainLines, QuietLines
from diag.state.view import JobView
from diag.text.words import has_any

_MOST = 64
_MOST_RANKS = 4096
_ABOVE = 8  # lines: the frames of a traceback
_NEAR_SECONDS = 5.0  # between a traceback's frames and its last line
_BEFORE_DEATH_SECONDS = 120.0  # ranks that fail wait for each other, then torchelastic ends them

# A frame of a save, in any of the writers (torch 2.13, megatron-core 0.16.1, transformers 4.57, ms-swift
# 4.6.0):
#   [rank0]:   File ".../megatron/core/dist_checkpointing/strategies/state_dict_saver.py", line 258, in
#       save_state_dict_async_finalize
#     File ".../torch/serialization.py", line 1012, in save
#     File ".../swift/megatron/trainers/base.py", line 828, in save_checkpoint
_SAVE_FRAME = re.compile(
    r'File "[^"\n]{1,400}", line \d{1,7}, in (?:_?save\w{0,60}|write_preloaded_data\w{0,20}|retrieve_write_results|'
    r"write_data|_write_\w{1,40}|serialize_file)\b"
)
# megatron-core 0.16.1 on two ranks, 2026-11-21: rank 0 prints the error of rank 1
#   [rank0]: Traceback (most recent call last): (RANK 1)
_OF_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,7})\)")


@dataclass(frozen=True, slots=True)
class _Rule:
    """A row of lines.yaml: `cause` of the finding, where `pattern` is found in a line."""

    cause: str
    pattern: re.Pattern[str]
    ends_with_0: bool


@lru_cache
def _rules(finding: str) -> tuple[tuple[_Rule, ...], tuple[str, ...]]:
    """The rules of a finding, and words one of which is in every line that a rule could match."""
    rows = load("checkpoint/lines.yaml")[finding]
    rules = [_Rule(row["cause"], re.compile(row["pattern"]), row.get("ends_with_0", False)) for row in rows]
    return tuple(rules), tuple({word: None for row in rows for word in row["words"]})


@dataclass(frozen=True, slots=True)
class QuotedLine:
    """`rank` is the one that it happened to; `saving`: frames of a save are right above it, `traced`: those of
    any call. `ends_with_0`: the program that prints it ends with exit status 0 all the same."""

    at: float
    rank: int | None
    text: str
    cause: str
    match: re.Match[str]
    saving: bool
    traced: bool
    ends_with_0: bool

    def evidence(self) -> Evidence:
        return Evidence("output", self.text.strip()[:500], self.at, self.rank)


class QuotedLines:
    """The lines that rules of a finding match, but for those that have one of the words `without`."""

    def __init__(self, finding: str, without: tuple[str, ...] = ()) -> None:
        self._rules, self._words = _rules(finding)
        self._without = without
        self._frames: dict[int | None, float] = {}
        self._reported_for: dict[int | None, tuple[float, int]] = {}
        self._above: dict[int | None, deque[str]] = {}
        self.found: list[QuotedLine] = []

    def observe(self, at: float, fact: LogLine | PlainLines | QuietLines) -> None:
        if isinstance(fact, (PlainLines, QuietLines)):
            self._keep_above(fact.rank, fact.last[-_ABOVE:])
            return
        if fact.bar:
            return
        text = fact.text
        self._keep_context(at, fact.rank, text)
        if not has_any(text, self._words) or has_any(text, self._without):
            return
        if len(self.found) >= _MOST:  # what was printed long ago and survived makes room for what it dies of
            self.found = [item for item in self.found if item.saving or at - item.at <= _BEFORE_DEATH_SECONDS]
            if len(self.found) >= _MOST:
                return
        found = next(((rule, match) for rule in self._rules if (match := rule.pattern.search(text))), None)
        if found is None:
            return
        rule, match = found
        reported, of = self._reported_for.get(fact.rank, (-_NEAR_SECONDS, 0))
        rank = of if at - reported < _NEAR_SECONDS else fact.rank
        saving = at - self._frames.get(fact.rank, -_NEAR_SECONDS) < _NEAR_SECONDS
        traced = saving or is_traced(self._above.get(fact.rank, ()))
        self.found.append(QuotedLine(at, rank, text, rule.cause, match, saving, traced, rule.ends_with_0))

    def _keep_above(self, rank: int | None, lines: Iterable[str]) -> None:
        if rank in self._above or len(self._above) < _MOST_RANKS:
            self._above.setdefault(rank, deque(maxlen=_ABOVE)).extend(lines)

    def _keep_context(self, at: float, rank: int | None, text: str) -> None:
        self._keep_above(rank, (text,))
        if 'File "' in text and _SAVE_FRAME.search(text):
            self._frames[rank] = at
        elif "(RANK " in text and (named := _OF_RANK.search(text)):
            self._reported_for[rank] = (at, int(named[1]))


class LineDetector(Detector):
    """One that finds its lines, and needs nothing else to be handed."""

    without: ClassVar[tuple[str, ...]] = ()
    listens = (LogLine, PlainLines, QuietLines)

    def __init__(self) -> None:
        self._lines = QuotedLines(self.name, self.without)

    def observe(self, at: float, fact: LogLine | PlainLines | QuietLines) -> None:
        self._lines.observe(at, fact)


def in_a_save(job: JobView, line: QuotedLine) -> bool:
    """By the frames above the line, or by the time at which it came."""
    return line.saving or any(
        save.began - 2.0 <= line.at and (save.ended is None or line.at <= save.ended + 10.0)
        for save in job.saves.log.saves
    )


def failed_by(job: JobView, line: QuotedLine) -> bool:
    """Whether it is what the job, or a rank, failed of: soon after it, and not of something else by its own
    last lines."""
    return failed_soon(job, line.at) and (line.saving or not only_quoted(job, line.text))


def ended_quietly(job: JobView) -> bool:
    """With exit status 0, before any step: so some programs end that cannot load a checkpoint."""
    return job.returncode == 0 and job.iteration is None


def sharpest(lines: Sequence[QuotedLine]) -> list[QuotedLine]:
    """Those that name a cause, or else all: the others show only that a write failed."""
    return [line for line in lines if line.cause != "write_failed"] or list(lines)


def line_finding(name: str, cause: str, lines: Sequence[QuotedLine], summary: str, **given: Any) -> Finding:
    """A finding by these lines, of the ranks that they are of; `{who}` in its summary is those."""
    ranks = tuple(sorted({line.rank for line in lines if line.rank is not None}))
    return finding(
        name,
        cause,
        summary=summary.replace("{who}", who(ranks), 1),
        since=lines[0].at,
        evidence=[line.evidence() for line in lines[:3]],
        ranks=ranks,
        **given,
    )


def after_iteration(job: JobView) -> str:
    """` after iteration 7`, or nothing before the first."""
    return "" if job.iteration is None else f" after {job.progress.step_words()}"


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


class CheckpointArgsMismatchDetector(LineDetector):
    name = "checkpoint-args-mismatch"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        quiet = ended_quietly(job)
        fatal = [line for line in self._lines.found if failed_by(job, line) or (quiet and line.ends_with_0)]
        if fatal:
            quietly = "; the job ended with status 0 all the same" if job.returncode == 0 else ""
            text = f"{{who}} could not load the checkpoint: {fatal[0].match[1].strip()[:240]}{quietly}"
            yield line_finding(self.name, fatal[0].cause, fatal, text)
