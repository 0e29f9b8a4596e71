"""Lines of a log that say that a checkpoint could not be written or loaded, with what stood around them. This
package's own."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from diag.detectors.echoed_errors import failed_soon, is_traced, only_quoted
from diag.model import Evidence
from diag.model.observations import LogLine
from diag.state.view import JobView

_MOST = 64
_MOST_RANKS = 4096
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
# megatron-core 0.16.1 on two ranks, 2026-11-21: rank 0 tells the error of rank 1
#   [rank0]: Traceback (most recent call last): (RANK 1)
_OF_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,7})\)")


@dataclass(frozen=True, slots=True)
class Rule:
    """`cause` of the finding, where `pattern` is found in a line."""

    cause: str
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class QuotedLine:
    """`rank` is the one that it happened to; `saving`: frames of a save stood right above it, `traced`: those
    of any call."""

    at: float
    rank: int | None
    text: str
    cause: str
    match: re.Match[str]
    saving: bool
    traced: bool = False

    def evidence(self) -> Evidence:
        return Evidence("output", self.text.strip()[:500], self.at, self.rank)


class QuotedLines:
    """The first lines of each cause. `words`: one of them stands in every line that a rule could match."""

    def __init__(self, rules: Sequence[Rule], words: tuple[str, ...], without: tuple[str, ...] = ()) -> None:
        self._rules = rules
        self._words = words
        self._without = without
        self._frames: dict[int | None, float] = {}
        self._told_of: dict[int | None, tuple[float, int]] = {}
        self._above: dict[int | None, deque[str]] = {}
        self.said: list[QuotedLine] = []

    def observe(self, at: float, fact: LogLine) -> None:
        if fact.bar:
            return
        text = fact.text
        if fact.rank in self._above or len(self._above) < _MOST_RANKS:
            self._above.setdefault(fact.rank, deque(maxlen=8)).append(text)
        if 'File "' in text and _SAVE_FRAME.search(text):
            self._frames[fact.rank] = at
        elif "(RANK " in text and (named := _OF_RANK.search(text)):
            self._told_of[fact.rank] = (at, int(named[1]))
        if not any(word in text for word in self._words) or any(word in text for word in self._without):
            return
        if len(self.said) >= _MOST:  # what was said long ago and survived makes room for what it dies of
            self.said = [item for item in self.said if item.saving or at - item.at <= _BEFORE_DEATH_SECONDS]
            if len(self.said) >= _MOST:
                return
        for rule in self._rules:
            match = rule.pattern.search(text)
            if match:
                of = self._told_of.get(fact.rank, (-_NEAR_SECONDS, 0))
                rank = of[1] if at - of[0] < _NEAR_SECONDS else fact.rank
                saving = at - self._frames.get(fact.rank, -_NEAR_SECONDS) < _NEAR_SECONDS
                traced = saving or is_traced(self._above.get(fact.rank, ()))
                self.said.append(QuotedLine(at, rank, text, rule.cause, match, saving, traced))
                return


def in_a_save(job: JobView, said: QuotedLine) -> bool:
    """By the frames above the line, or by the time at which it came."""
    return said.saving or any(
        save.began - 2.0 <= said.at and (save.ended is None or said.at <= save.ended + 10.0)
        for save in job.saves.log.saves
    )


def failed_by(job: JobView, said: QuotedLine) -> bool:
    """Whether it is what the job, or a rank, failed of: soon after it, and not of something else by its own
    last words."""
    return failed_at(job, said.at) and (said.saving or not only_quoted(job, said.text))


def failed_at(job: JobView, at: float) -> bool:
    """Whether the job, or a rank, failed soon after this moment: what a program survives is no failure."""
    return failed_soon(job, at)


def ranks_of(said: Sequence[QuotedLine]) -> tuple[int, ...]:
    return tuple(sorted({item.rank for item in said if item.rank is not None}))
