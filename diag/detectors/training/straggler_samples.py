"""Samples of ranks in steady state, at most one a step, and the exact test that separates few slow ranks from
many that wait."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from diag.model.observations import (
    GpuSample,
    MetricsLogged,
    Observation,
    PhaseMarked,
    SaveFinished,
    SaveStarted,
    StackSampleSummary,
    ThreadStack,
)
from diag.state.exact import fisher
from diag.state.own_code import own_places
from diag.state.stack_activity import Activity, Reading, format_frame, read_stack

_WINDOW = 128  # samples of a rank that are tested together
_OLDEST_SECONDS = 1800.0
_WAITS = (Activity.COLLECTIVE, Activity.GPU_SYNC, Activity.BACKWARD)
_DEEPEST = 64
# Ours: of several steps reported together that took so many times as long as those before, most of the time may have been
# that of one of them, or of something between them.
_OUT_OF_PACE = 3.0
_PACES, _FEWEST = 9, 2  # reports that show what is usual
_SHORTEST_SECONDS = 0.5  # of what a pace is taken from: buffered lines come many at once
# A GPU that spins in an NCCL kernel: 100 % busy (77 % and more as NVML's windows fall), 123-132 W of 700 W on
# an H200.
_NCCL_BUSY, _NCCL_POWER = 0.7, 0.35


@dataclass(frozen=True, slots=True)
class RankSample:
    """One sample of the thread of a rank that trains. `waits`: as its frames show; for `StepSamples.compared` also
    as the other ranks do."""

    at: float
    waits: bool
    activity: Activity
    places: tuple[str, ...]  # its frames, outermost first
    text: str
    saves: bool = False  # it writes a checkpoint, or waits in one
    own: tuple[int | None, ...] = (None,)  # of each place which is the program's own line that led to it

    def waits_for_peers(self, uses_gpus: bool) -> bool:
        """On GPUs the autograd engine issues kernels, and a rank that is slow is slow in there too; gloo's
        collectives wait in it."""
        return self.waits and not (uses_gpus and self.activity is Activity.BACKWARD)

    @property
    def spins(self) -> bool:
        """At one line on a core of its own, in C: it waits for its GPU, or computes."""
        return self.activity is Activity.GPU_SYNC and not self.waits

    @classmethod
    def of(cls, at: float, main: ThreadStack, reading: Reading, cwd: str) -> RankSample:
        where = reading.where or main.frames[-1]
        # not into the wait itself
        deepest = main.frames.index(where) + 1 if reading.activity is not Activity.OTHER else _DEEPEST
        frames = main.frames[: min(deepest, _DEEPEST)]
        places = tuple(format_frame(frame, cwd) for frame in frames)
        text = format_frame(where, cwd)
        saves = Activity.CHECKPOINT in (reading.activity, reading.context)
        waits = read_stack(main).activity in _WAITS
        return cls(at, waits, reading.activity, places, text, saves, own_places(frames))

    @classmethod
    def passed_on(cls, look: StackSampleSummary) -> RankSample:
        """As another node's hub sends it: only where it was, not by which way."""
        known = look.activity in Activity._value2member_map_
        activity = Activity(look.activity) if known else Activity.OTHER
        places, own = ((look.own, look.where), (None, 0)) if look.own else ((look.where,), (None,))
        return cls(look.at, look.waits, activity, places, look.where, look.saves, own)

    def own_line(self, place: str) -> str:
        """That led to this place; empty where the place is the program's own, and where none is."""
        found = self.own[self.places.index(place)] if place in self.places else None
        return "" if found is None else self.places[found]


@dataclass(frozen=True, slots=True)
class GpuWaitSample:
    """One sample of a rank's GPU. `waits`: busy at low power, as in a collective whose peers have not come."""

    at: float
    waits: bool
    utilization: float
    power_watts: float | None
    power_limit_watts: float | None
    sm_clock_hertz: int | None
    pids: tuple[int, ...]

    @classmethod
    def of(cls, at: float, sample: GpuSample) -> GpuWaitSample | None:
        if sample.utilization_ratio is None:
            return None
        power, limit = sample.power_watts, sample.power_limit_watts
        low = power is not None and bool(limit) and power <= _NCCL_POWER * (limit or 0.0)
        waits = sample.utilization_ratio >= _NCCL_BUSY and low
        return cls(at, waits, sample.utilization_ratio, power, limit, sample.sm_clock_hertz, sample.pids)


@dataclass(frozen=True, slots=True)
class Excess:
    """The place in which the slow ranks are found more often than the others."""

    where: str
    slow: int
    slow_of: int
    others: int
    others_of: int
    activity: Activity
    own: str = ""  # the program's own line that led there, when that is in a library


@dataclass(slots=True)
class StepSamples:
    """Samples count when the step that they were taken in was reported as made, as many a rank as steps were."""

    listens: ClassVar[tuple[type[Observation], ...]] = (SaveStarted, SaveFinished, PhaseMarked, MetricsLogged)

    stacks: dict[int, deque[RankSample]] = field(default_factory=dict)
    gpus: dict[int, deque[GpuWaitSample]] = field(default_factory=dict)
    _pending_stacks: dict[int, list[RankSample]] = field(default_factory=dict)
    _pending_gpus: dict[int, list[GpuWaitSample]] = field(default_factory=dict)
    _other_work: bool = False  # an evaluation or a save since the last step was reported
    _paces: deque[float] = field(default_factory=lambda: deque(maxlen=_PACES))  # seconds a step
    _paced_at: float | None = None
    _steps: int = 0  # reported since then

    def see_stack(self, rank: int, look: RankSample) -> None:
        if look.saves:
            self._other_work = True
        pending = self._pending_stacks.setdefault(rank, [])
        if len(pending) < 2 * _WINDOW:
            pending.append(look)

    def see_gpu(self, index: int, look: GpuWaitSample | None) -> None:
        pending = self._pending_gpus.setdefault(index, [])
        if look is not None and len(pending) < 2 * _WINDOW:
            pending.append(look)

    def observe(self, at: float, fact: SaveStarted | SaveFinished | PhaseMarked | MetricsLogged) -> None:
        match fact:
            case SaveStarted() | SaveFinished():
                self._other_work = True
            case PhaseMarked(_, phase, _):
                self._other_work |= phase != "steady"
            case MetricsLogged(_, metrics, _):
                self._other_work |= any(name.startswith("eval_") for name, _ in metrics)

    def steps_made(self, at: float, steps: int) -> None:
        """What was seen since the last report belongs to the steps made since."""
        out_of_pace = self._is_out_of_pace(at, steps)
        steps = 0 if self._other_work or (out_of_pace and steps > 1) else steps
        _keep(self._pending_stacks, self.stacks, steps, at)
        _keep(self._pending_gpus, self.gpus, steps, at)
        self._other_work = False

    def _is_out_of_pace(self, at: float, steps: int) -> bool:
        self._steps += steps
        if self._paced_at is None or at - self._paced_at < _SHORTEST_SECONDS or self._steps < 1:
            self._paced_at = at if self._paced_at is None else self._paced_at
            return False
        pace = (at - self._paced_at) / self._steps
        known = len(self._paces) >= _FEWEST
        found = known and pace > _OUT_OF_PACE * statistics.median(self._paces)
        self._paces.append(pace)
        self._paced_at, self._steps = at, 0
        return found

    def compared(self) -> dict[int, list[RankSample]]:
        """The samples of stacks that count. Where no rank is found waiting by its frames, one that spins waits for its
        GPU at a line that the others come to as well: at a line of its own it works."""
        looks = {rank: list(seen) for rank, seen in self.stacks.items()}
        shown = any(4 * sum(look.waits for look in seen) >= len(seen) > 0 for seen in looks.values())
        if shown or not any(look.spins for seen in looks.values() for look in seen):
            return looks
        ranks_at = Counter(text for seen in looks.values() for text in {look.text for look in seen})
        return {
            rank: [
                replace(look, waits=True) if look.spins and ranks_at[look.text] > 1 else look for look in seen
            ]
            for rank, seen in looks.items()
        }

    def start_over(self) -> None:
        for store in (self.stacks, self.gpus, self._pending_stacks, self._pending_gpus):
            store.clear()
        self._paces.clear()
        self._paced_at, self._steps = None, 0

    def since(self, ranks: Sequence[int], now: float) -> float:
        """When the oldest of the samples was taken that the verdict on these ranks rests on."""
        times = [self.stacks[rank][0].at for rank in ranks if self.stacks.get(rank)]
        return min(times or [looks[0].at for looks in self.gpus.values() if looks], default=now)

    def excess(self, slow: Sequence[int], others: Sequence[int]) -> Excess | None:
        """The innermost frame that accounts for nearly all of the difference in where the two kinds of ranks
        stand."""
        mine = [look for rank in slow for look in self.stacks.get(rank, ())]
        theirs = [look for rank in others for look in self.stacks.get(rank, ())]
        if not mine or not theirs:
            return None
        here = Counter(place for look in mine for place in set(look.places))
        there = Counter(place for look in theirs for place in set(look.places))
        more = {place: count / len(mine) - there[place] / len(theirs) for place, count in here.items()}
        most = max(more.values(), default=0.0)
        if most < 0.1:
            return None
        depth = {place: index for look in mine for index, place in enumerate(look.places)}
        where = max(
            (place for place, excess in more.items() if excess >= 0.8 * most),
            key=lambda place: (depth[place], place),
        )
        there_too = [look for look in mine if where in look.places]
        kind = Counter(look.activity for look in there_too).most_common(1)[0][0]
        own = Counter(look.own_line(where) for look in there_too).most_common(1)[0][0]
        return Excess(where, here[where], len(mine), there[where], len(theirs), kind, own)


def _keep(
    pending: dict[int, list[RankSample]] | dict[int, list[GpuWaitSample]], kept: object, steps: int, at: float
) -> None:
    for key, looks in pending.items():
        store = kept.setdefault(key, deque(maxlen=_WINDOW))  # type: ignore[attr-defined]
        if steps >= len(looks):
            store.extend(looks)
        elif steps > 0:  # of one step's many samples as many as there were steps, spread evenly
            store.extend(looks[int((place + 0.5) * len(looks) / steps)] for place in range(steps))
        looks.clear()
        while store and at - store[0].at > _OLDEST_SECONDS:
            store.popleft()


@dataclass(frozen=True, slots=True)
class Split:
    """Few ranks that hardly wait, and the others that do. `share`: of their time, what the others wait more."""

    slow: tuple[int, ...]
    waiting: tuple[int, ...]
    slow_ratio: float
    waiting_ratio: float
    chance: float

    @property
    def share(self) -> float:
        return self.waiting_ratio - self.slow_ratio


def split(
    waits: Mapping[int, Sequence[bool]], false_alarm: float, share: float, most_own: float
) -> Split | None:
    """The ranks that stand apart, when the most waiting of them and the least waiting of the others differ
    beyond chance.

    `share`: by how much of all samples at least; `most_own`: how often the slow may wait, as a part of how
    often the others do.
    """
    if len(waits) < 2 or any(not seen for seen in waits.values()):
        return None
    ratios = {rank: sum(seen) / len(seen) for rank, seen in waits.items()}
    order = sorted(ratios, key=lambda rank: (ratios[rank], rank))
    most_slow = max(1, (len(order) - 1) // 3)  # one of up to six, two of seven ...
    gaps = [(ratios[order[count]] - ratios[order[count - 1]], count) for count in range(1, most_slow + 1)]
    gap, count = max(gaps)
    if gap < share:
        return None
    slow, others = order[:count], order[count:]
    # Many ranks have the same counts, and the most waiting of the slow ones and the least waiting of the
    # others mostly decide.
    few = list(dict.fromkeys((sum(waits[rank]), len(waits[rank])) for rank in reversed(slow)))
    many = list(dict.fromkeys((sum(waits[rank]), len(waits[rank])) for rank in others))
    chance = 0.0
    for one in few:
        for other in many:
            chance = max(chance, fisher(*one, *other))
            if chance * len(waits) > false_alarm:
                return None
    slow_ratio = sum(ratios[rank] for rank in slow) / len(slow)
    waiting_ratio = sum(ratios[rank] for rank in others) / len(others)
    if slow_ratio > most_own * waiting_ratio:
        return None
    return Split(tuple(sorted(slow)), tuple(sorted(others)), slow_ratio, waiting_ratio, chance)
