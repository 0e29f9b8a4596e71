"""Keeps of a node's observations what goes up to the job hub: facts that need other nodes' beside them, and
samples of stacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from diag.model import Finding, NotChecked
from diag.model.observations import (
    FlightRecorder,
    NcclFact,
    Observation,
    RankFound,
    RasReading,
    RunStarted,
    StackSampleSummary,
)
from diag.model.observations.base import Event
from diag.sources.digest import FORWARDED
from diag.state.reducer import MainStackRead
from diag.state.stack_activity import Activity, format_frame, read_stack
from diag.state.view import JobView

_MOST_FACTS = 192  # of a rank: NCCL says some dozens while communicators are made
_MOST_LOOKS = 64  # of a rank between two digests
_WAITS = (Activity.COLLECTIVE, Activity.GPU_SYNC, Activity.BACKWARD)


class Collector:
    """Fed the same facts as the detectors. `looks` are kept only while `joined`: else they are not asked for."""

    name = "collector"
    listens = tuple(
        dict.fromkeys((MainStackRead, RankFound, RunStarted, FlightRecorder, RasReading, *FORWARDED))
    )

    def __init__(self) -> None:
        self.joined = False
        # of a kind that replaces itself
        self._newest: dict[tuple[str, int | None], tuple[int, Observation]] = {}
        self._facts: dict[int | None, deque[tuple[int, Observation]]] = {}
        self._looks: dict[int, deque[StackSampleSummary]] = {}
        self.stamp = 0  # grows with each fact
        self._pids: dict[int, int] = {}
        self._cwd = ""  # of the command on this node

    def observe(self, at: float, fact: Observation | Event) -> None:
        if isinstance(fact, MainStackRead):
            if self.joined:
                self._see(at, fact)
        elif isinstance(fact, RankFound):
            self._pids[fact.placement.pid] = fact.placement.rank
            if fact.rank is not None:
                self._facts.pop(fact.rank, None)  # another process has this rank now
        elif isinstance(fact, RunStarted):
            self._cwd = fact.cwd
        elif isinstance(fact, (FlightRecorder, RasReading)):
            self.stamp += 1
            self._newest[type(fact).__name__, fact.rank] = (self.stamp, fact)
        elif isinstance(fact, FORWARDED):
            rank = fact.rank
            if (
                isinstance(fact, NcclFact)
                and fact.line.rank is None
                and (rank := self._pids.get(fact.line.pid)) is not None
            ):
                # elsewhere its pid tells nothing
                fact = replace(fact, rank=rank, line=replace(fact.line, rank=rank))
            self.stamp += 1
            self._facts.setdefault(rank, deque(maxlen=_MOST_FACTS)).append((self.stamp, fact))

    def check(self, now: float, job: JobView) -> Iterable[Finding]:
        return ()

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()

    def facts(self, after: int = -1) -> list[Observation]:
        """All that a job hub which knows nothing yet needs; `after`: what has come since this stamp."""
        kept = [*(fact for facts in self._facts.values() for fact in facts), *self._newest.values()]
        return [fact for stamp, fact in kept if stamp > after]

    def take_looks(self, rank: int) -> tuple[StackSampleSummary, ...]:
        """Those since the last time."""
        return tuple(self._looks.pop(rank, ()))

    def _see(self, at: float, event: MainStackRead) -> None:
        main, reading = event.main, event.reading
        if main is None or reading is None or not main.frames:
            return
        where = reading.where or main.frames[-1]
        look = StackSampleSummary(
            at,
            read_stack(main).activity in _WAITS,  # by its frames
            reading.activity.value,
            format_frame(where, self._cwd),
            Activity.CHECKPOINT in (reading.activity, reading.context),
            "" if reading.own is None else format_frame(reading.own, self._cwd),
        )
        self._looks.setdefault(event.rank, deque(maxlen=_MOST_LOOKS)).append(look)
