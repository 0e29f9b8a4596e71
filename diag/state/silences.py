"""How long this job stood still, phase by phase, and then went on by itself: what its next silence is
measured by."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from diag.model.observations import NodeDigest
from diag.state.reducer import AttemptBegan, PhaseChanged, Reducer, Taken, takes

# Ours: shorter ones are below every patience and would only fill the history.
_SHORTEST_SECONDS = 5.0
_MOST_KEPT = 64
# Ours: one silence without its like may have been a fault that healed; it must not buy a later hang many
# minutes.
_LONE_SECONDS = 120.0
# Ours: work that comes back every N steps was seen first within N steps, and comes again within N.
_LONE_STEPS_RATIO, _LONE_STEPS = 2, 10
# Readings come every second or two; after a gap like this diag itself was not looking.
_BLIND_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class _Silence:
    seconds: float
    iteration: int | None
    stirred: bool  # ended by no more than a child or a file that moved


class Silences(Reducer):
    """Owns the silences by phase. A silence is the time in which no channel of any rank and no line of the log moved."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[_Silence]] = {}  # by phase
        self._phase_seconds: dict[str, float] = {}  # the longest of each phase that came to its end
        self._elsewhere: dict[str, float] = {}  # what other nodes came through
        self._first_iteration: int | None = None  # when silences were first looked for
        self._moved_at: float | None = None  # when the job last moved
        self._read_at: float | None = None  # when a reading last came
        self._disturbed = False  # the time since the last move is not the job's own
        self._any_stirred = False  # some silence was ended by no more than a child or a file

    @takes(Taken)
    def taken(self, at: float, event: Taken) -> None:
        """A reading came. What it ends counts if it was the job's own: no rank was stopped, and diag was
        reading all the while."""
        if event.stopped or (self._read_at is not None and at - self._read_at > _BLIND_SECONDS):
            self._disturbed = True
        self._read_at = at
        if not event.moved:
            return
        if self._moved_at is not None and not self._disturbed:
            self.ended(event.phase, at - self._moved_at, event.iteration, event.stirred)
        if not event.stirred:
            self._come_through()
        self._moved_at, self._disturbed = at, False

    @takes(PhaseChanged)
    def _phase_changed(self, at: float, event: PhaseChanged) -> None:
        if event.since is not None:
            self.phase_ended(event.before, at - event.since)

    @takes(NodeDigest)
    def _digest(self, at: float, fact: NodeDigest) -> None:
        """Another node's hub: its own ranks were silent so long in such a phase, and went on."""
        self._elsewhere[fact.phase] = max(self._elsewhere.get(fact.phase, 0.0), fact.silence_seconds)
        self.phase_ended(fact.phase, fact.phase_seconds)

    @takes(AttemptBegan)
    def _attempt_began(self, at: float, event: AttemptBegan) -> None:
        """Another attempt of the job begins: the time between the two is no rhythm of the job."""
        self._disturbed = True

    def ended(self, phase: str, seconds: float, iteration: int | None, stirred: bool = False) -> None:
        """The job moves again after so long."""
        if self._first_iteration is None:
            self._first_iteration = iteration
        if seconds >= _SHORTEST_SECONDS:
            self._kept.setdefault(phase, deque(maxlen=_MOST_KEPT)).append(
                _Silence(seconds, iteration, stirred)
            )
            self._any_stirred |= stirred

    def _come_through(self) -> None:
        """The job itself moves: what a stir ended was no hang, as where data workers read before their rank's
        next stack."""
        if not self._any_stirred:
            return
        self._any_stirred = False
        for kept in self._kept.values():
            for place, silence in enumerate(kept):
                kept[place] = replace(silence, stirred=False)

    def phase_ended(self, phase: str, seconds: float) -> None:
        self._phase_seconds[phase] = max(self._phase_seconds.get(phase, 0.0), seconds)

    def longest_phase(self, phase: str) -> float:
        """Seconds of the longest such phase that came to its end; 0 before the first."""
        return self._phase_seconds.get(phase, 0.0)

    def longest(self, phase: str, iteration: int | None) -> float:
        """The longest silence of that phase that is no freak: one with its like, or one whose return is still
        to be seen. What only a stir ended was come through when the job itself moved after it, or the step
        after it was made."""
        elsewhere = self._elsewhere.get(phase, 0.0)
        kept = self._kept.get(phase, ())
        over = [one for one in kept if not one.stirred or iteration is None or one.iteration != iteration]
        seconds = sorted(over, key=lambda silence: -silence.seconds)
        for place, silence in enumerate(seconds):
            if place + 1 < len(seconds) and seconds[place + 1].seconds >= silence.seconds / 2:
                return max(elsewhere, silence.seconds)
            if not self._is_forgotten(silence, iteration):
                return max(elsewhere, min(silence.seconds, _LONE_SECONDS))
        return elsewhere

    def _is_forgotten(self, silence: _Silence, iteration: int | None) -> bool:
        """It did not come back in twice the steps in which it was seen first."""
        if silence.iteration is None or iteration is None or self._first_iteration is None:
            return False
        before = max(1, silence.iteration - self._first_iteration)
        return iteration - silence.iteration > _LONE_STEPS_RATIO * before + _LONE_STEPS
