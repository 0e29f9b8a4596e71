"""The job's state as it is observed: each observation goes to the reducers that take it.

Everything follows from the observations and their times, so live and replay hold the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from diag.model.observations import (
    BarMoved,
    EpochStarted,
    Iteration,
    LogLine,
    MetricsLogged,
    Observation,
    PhaseMarked,
    ProcessTree,
    QuietLine,
    SaveFinished,
    SaveStarted,
    StackSample,
    StepsPlanned,
)
from diag.model.observations.base import Event
from diag.state.rank_view import STRONG
from diag.state.reducer import Taken
from diag.state.view import JobView

# Observations that can show that something moved: the channels by which a silence is measured.
_MOVES = frozenset({
    ProcessTree, StackSample, PhaseMarked, EpochStarted, Iteration, BarMoved, MetricsLogged, StepsPlanned, SaveStarted,
    SaveFinished,
})  # fmt: skip


class JobState(JobView):
    """`JobView` as the engine alone holds it. Only `observe` writes."""

    def __init__(self) -> None:
        super().__init__(self._tell)
        self._events: list[Event] = []  # that the observation at hand led to
        # Each observation is taken in this order.
        self._reducers = (
            self.run, self.acts, self.log, self.sources, self.machine, self.network, self.nccl, self.nccl_processes,
            self.cluster, self.ranks, self.learned, self.phases, self.progress, self.points, self.saves, self.silences, self.residence,
            self.gpu_faults, self.gpu_past, self.program, self.own_logs, self.software, self.ray,
        )  # fmt: skip
        self._takers: dict[type, tuple[Callable[[float, Any], None], ...]] = {}  # by the type of the fact

    @property
    def urgent(self) -> int:
        """Counts readings that are to be judged at once, not at the next second."""
        return self.saves.memory.steep

    def observe(self, at: float, fact: Observation) -> Sequence[Event]:
        """What it led to, in order."""
        self._events = []
        phase, line_at = self.phase, self.progress.log_moved_at
        self._tell(at, fact)
        # Of lines only one that shows a counter grown.
        if type(fact) in _MOVES or (
            type(fact) in (LogLine, QuietLine) and self.progress.log_moved_at != line_at
        ):
            self._tell(at, self._taken(at, fact, phase))
        return self._events

    def _tell(self, at: float, fact: object) -> None:
        """An observation or an event, to each reducer that takes it."""
        if isinstance(fact, Event):
            self._events.append(fact)
        takers = self._takers.get(type(fact))
        if takers is None:
            handlers = [reducer.handler(type(fact)) for reducer in self._reducers]
            takers = self._takers[type(fact)] = tuple(one for one in handlers if one is not None)
        for take in takers:
            take(at, fact)

    def _taken(self, at: float, fact: Observation, phase: str) -> Taken:
        rank = self.ranks.get(fact.rank) if fact.rank is not None else None
        line = self.progress.log_moved_at == at
        moved = line or (rank is not None and rank.alive and rank.last_moved() == at)
        stopped = rank is not None and (rank.stopped or rank.traced)
        # In a save bytes are the work: the stack of who writes them stays in one call all the while.
        stirred = not line and rank is not None and rank.last_moved(STRONG) != at and phase != "ckpt_save"
        return Taken(moved, stopped, stirred, phase, self.iteration)
