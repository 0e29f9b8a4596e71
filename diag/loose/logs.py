"""The logs of a folder: their records, and what they tell of ranks, pids, the world's size, the end, and the last progress."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from diag.loose.files import LooseFile
from diag.loose.still import LogClock, epoch_of
from diag.model import Record
from diag.observations import (
    EpochStarted,
    Iteration,
    NcclCommunicator,
    NcclLine,
    Observation,
    SaveStarted,
    WorkerFailureReported,
    WorkerNamed,
)
from diag.sources.output import PLAIN_RUN, LineAssembler, read_text
from diag.sources.output import SOURCE as OUTPUT

__all__ = ["LooseLogs"]

_CHUNK = 1 << 20
# torch 2.11.0, NCCL 2.28.9, two H200, 2026-11-20: somebody, or something, asked for the Flight Recorder's dump
#   [rank1]:[E1120 22:48:50.873733582 ProcessGroupNCCL.cpp:1628] [PG ID 0 ...] ProcessGroupNCCL preparing to dump debug info. ...
_ASKED = "ProcessGroupNCCL preparing to dump debug info"
_TRACEBACK = re.compile(r"^(?:\[rank(\d{1,6})\]: ?)?Traceback \(most recent call last\):")
_NOT_ITS_END = re.compile(r"Exception (?:in thread|ignored)")
_MOST_RANKS = 1 << 17


class LooseLogs:
    """Reads every log once at its making, and once more for `records`."""

    def __init__(self, files: list[LooseFile]) -> None:
        self._files = files
        self.clock = LogClock()
        self.ranks: set[int] = set()
        self.pids: dict[int, int] = {}
        self.world_size = 0
        self.raised: set[int] = set()  # ranks whose own log ends with an uncaught exception
        self.failed: dict[int, int] = {}  # as torchelastic's table says: exit codes, negative for signals
        self._named: int | None = None
        self.finished = False
        self.asked_recorder = False
        self._made: set[int] = set()  # communicators of these pids were created, and destroyed in order
        self._destroyed: set[int] = set()
        for item in files:
            self._learn(item)
        self.finished = bool(self._made) and self._made <= self._destroyed and not self.raised

    def records(self) -> Iterator[tuple[float | None, Record]]:
        """With the time that the lines of a record tell: None before the first that does. Others stand with those before."""
        for item in self._files:
            at: float | None = None
            for payload in _payloads(item):
                lines: list[list[object]] = []
                for line in payload["lines"]:
                    told = epoch_of(line[0]) if line[1] != PLAIN_RUN else None
                    if told is not None and told != at:
                        if lines:
                            yield at, Record(OUTPUT, {**payload, "lines": lines}, rank=item.rank)
                        at, lines = told, []
                    lines.append(line)
                yield at, Record(OUTPUT, {**payload, "lines": lines}, rank=item.rank)

    def _learn(self, item: LooseFile) -> None:
        before = ""
        for payload in _payloads(item):
            for held, kind in payload["lines"]:
                text = held.rpartition("\n")[2] if kind == PLAIN_RUN else held  # the last of a run stands for all
                bar = bool(kind) and kind != PLAIN_RUN
                facts = list(read_text(text, item.path.name, item.rank, bar=bar))
                self.clock.see(text, facts)
                self._see_line(text, item.rank, before, facts)
                before = text

    def _see_line(self, text: str, rank: int | None, before: str, facts: list[Observation]) -> None:
        named = facts[0].rank if facts else rank
        for fact in facts:
            if isinstance(fact, WorkerNamed):
                self._named = fact.rank
            elif isinstance(fact, WorkerFailureReported) and self._named is not None and self._named < _MOST_RANKS:
                self.failed[self._named] = fact.exit_code
                self.pids[self._named] = fact.pid
            elif isinstance(fact, NcclLine) and rank is not None and fact.pid:
                self.pids.setdefault(rank, fact.pid)
            elif isinstance(fact, NcclCommunicator) and fact.stage != "topology":
                self._see_communicator(fact, rank)
        if named is not None and named < _MOST_RANKS:
            self.ranks.add(named)
        self.asked_recorder |= _ASKED in text
        if "Traceback" in text:
            match = _TRACEBACK.match(text)
            who = int(match[1]) if match and match[1] else rank
            if match and who is not None and not _NOT_ITS_END.search(before):
                self.raised.add(who)
        elif any(isinstance(fact, (Iteration, EpochStarted, SaveStarted)) for fact in facts):
            self.raised.discard(named if named is not None else -1)

    def _see_communicator(self, fact: NcclCommunicator, rank: int | None) -> None:
        if self.world_size <= fact.size < _MOST_RANKS:  # the largest communicator is the world's
            self.world_size = fact.size
            self.pids[rank if rank is not None else fact.comm_rank] = fact.line.pid
        (self._destroyed if fact.stage == "destroyed" else self._made).add(fact.line.pid)


def _payloads(item: LooseFile) -> Iterator[dict[str, Any]]:
    lines = LineAssembler(item.path.name)
    with item.path.open("rb") as file:
        while True:
            data = file.read(_CHUNK)
            payload = lines.feed(data, final=not data)
            if payload is not None:
                yield payload
            if not data:
                return
