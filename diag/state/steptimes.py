"""How long training steps take, by the arrival of the lines that report them.

Time in which something else happened than steps (a save, an evaluation, a rank that was stopped) belongs to
no step. What came before the first report (set-up, the first step with its compilation) is never counted.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diag.state.pace import Lap, Pace
from diag.text.units import format_seconds

# Ours: lines arrive in bursts (a pipe's buffer, the relay's look at the file), so that the time of one quick
# step is not to be had; over so long the error is below 4 %.
_LAP_SECONDS = 5.0
_SHORTEST_SECONDS = 0.1
# Of lines that were not read in time: files are read each half second, in pieces of a MiB.
_BUNCH_SECONDS = 2.0
_KEPT = 4096
_RECENT_SECONDS = 60.0
_MOST = 1e9  # a line may say inf
# By a line's own clock, which has whole seconds: the error is below 10 %, and half of that on the average.
_CLOCK_SECONDS = 10.0
# Lines that came in a tenth of the time that their clock says they took were not read as they were written: a log
# without times, or one that is buffered.
_BUNCHED_SECONDS, _BUNCHED_SHARE = 10.0, 0.1
# Megatron-LM and ms-swift 3.7-3.12 say what a step took, less saves and evaluations (timer interval-time);
# BigScience's fork in (s).
_TOLD = (("elapsed time per iteration (ms)", 0.001), ("elapsed time per iteration (s)", 1.0))


@dataclass(slots=True)
class _Interval:
    """Steps between two reports that are far enough apart."""

    least: float
    began: float
    steps: int = 0
    reported: float = 0.0  # seconds, as the log reports them
    reported_steps: int = 0
    disturbed: bool = False

    def add(self, at: float, steps: int, reported: float | None, *, late: bool) -> tuple[int, float] | None:
        """(steps, seconds of all) once they are enough; then it begins anew. Not at a line that comes late."""
        self.steps += steps
        if reported is not None:
            self.reported += reported * steps
            self.reported_steps += steps
        by_log = self.reported_steps == self.steps
        passed = self.reported if by_log else at - self.began
        disturbed = self.disturbed and not by_log
        if (late and not by_log) or (passed < self.least and not disturbed):
            return None
        done = None if disturbed else (self.steps, passed)
        self.began, self.steps, self.reported, self.reported_steps, self.disturbed = at, 0, 0.0, 0, False
        return done


class StepTimes:
    """`pace` is given every lap: some seconds of undisturbed steps."""

    def __init__(self) -> None:
        self.pace = Pace()  # whether they became slower
        self.counted = 0  # steps that were measured
        self.left_out = 0  # steps in which something else happened
        self.samples_per_step: float | None = None  # the global batch, where the log reports it
        # at, last iteration, steps, seconds each
        self._seen: deque[tuple[float, int, int, float]] = deque(maxlen=_KEPT)
        self._short: _Interval | None = None  # since the last report that was measured
        self._lap: _Interval | None = None  # and the lap under way, for the pace
        self._iteration = 0  # the last that was reported
        self._late_until = 0.0  # lines up to then were not read in time
        self._clock: tuple[float, float] | None = None  # arrival and own clock of the first line that has one
        self._by_clock = False  # lines came in a bunch, so that their clock counts
        self._lap_arrived = 0.0  # when the line came with which the lap under way began

    # -- observing ---------------------------------------------------------------------------------------

    def start_over(self) -> None:
        """Another attempt, or another training in the same processes: its pace is its own."""
        self._short = self._lap = None
        self._clock, self._by_clock = None, False
        self.pace = Pace()

    def forget(self) -> None:
        """Other lines are those that report steps: what was measured before were none."""
        self.start_over()
        self._seen.clear()
        self.counted = self.left_out = 0

    def looked_away(self, at: float) -> None:
        """diag did not run for a while until now: the lines of that time come in a bunch, and only all of
        them together took as long as it was."""
        self._late_until = at + _BUNCH_SECONDS

    def comes_late(self, at: float) -> bool:
        return at < self._late_until

    def disturbed(self) -> None:
        """Something else than steps took time since the last report, or stopped a rank."""
        for interval in (self._short, self._lap):
            if interval is not None:
                interval.disturbed = True

    def reported(
        self, at: float, iteration: int, metrics: Mapping[str, float], clock: float | None = None
    ) -> None:
        """`clock`: seconds since the training began, as the line says."""
        by_clock, arrived = self._by_clock, at
        at = self._when(at, clock)
        if self._by_clock and not by_clock:
            self._begin_anew(iteration)
        batch = metrics.get("global batch size")
        if batch is not None and 0 < batch < _MOST:
            self.samples_per_step = batch
        if self._short is None or self._lap is None or iteration <= self._iteration:
            least = (_CLOCK_SECONDS, _CLOCK_SECONDS) if self._by_clock else (_SHORTEST_SECONDS, _LAP_SECONDS)
            self._short, self._lap = (_Interval(seconds, at) for seconds in least)
            self._iteration, self._lap_arrived = iteration, arrived
            return
        steps, self._iteration = iteration - self._iteration, iteration
        reported = next(
            (metrics[name] * unit for name, unit in _TOLD if 0 < metrics.get(name, 0.0) < _MOST), None
        )
        was = self._short.disturbed and reported is None
        late = self.comes_late(arrived)
        done = self._short.add(at, steps, reported, late=late)
        if done is not None:
            self.counted += done[0]
            self._seen.append((arrived, iteration, done[0], done[1] / done[0]))
        elif was:
            self.left_out += steps
        began = self._lap_arrived if self._by_clock else self._lap.began
        lap = self._lap.add(at, steps, reported, late=late)
        if lap is not None:
            self.pace.lap(Lap(began, arrived, iteration, lap[0], lap[1] / lap[0]))
            self._lap_arrived = arrived

    def _when(self, at: float, clock: float | None) -> float:
        """When a line was written: as it arrived, or, where lines came in bunches, by its own clock."""
        if clock is None:
            return at
        if self._clock is None or clock < self._clock[1]:
            self._clock, self._by_clock = (at, clock), False
        arrived, told = self._clock
        if not self._by_clock and clock - told >= _BUNCHED_SECONDS:
            self._by_clock = at - arrived < _BUNCHED_SHARE * (clock - told)
        return arrived + clock - told if self._by_clock else at

    def _begin_anew(self, iteration: int) -> None:
        """What was measured by another clock cannot be compared."""
        if self._short is not None and self._short.disturbed:
            self.left_out += max(0, iteration - self._iteration)
        self._short = self._lap = None
        self._seen.clear()
        self.counted = 0

    # -- reading ------------------------------------------------------------------------------------------

    def now(self) -> float | None:
        """Seconds a step takes now: the median of the last minute, at least of the last eight reports."""
        if not self._seen:
            return None
        latest = self._seen[-1][0]
        recent = sum(latest - at <= _RECENT_SECONDS for at, *_ in self._seen) if not self._by_clock else 0
        return statistics.median(seconds for *_, seconds in [*self._seen][-max(recent, 8) :])

    def seconds(self, since: float, until: float) -> list[float]:
        """What a step took, of each report of steps that were all made between these moments."""
        return [
            seconds for at, _, steps, seconds in self._seen if since <= at - steps * seconds and at <= until
        ]

    @property
    def last(self) -> tuple[float, float] | None:
        """When the last step that was measured was reported, and how long it took."""
        return (self._seen[-1][0], self._seen[-1][3]) if self._seen else None

    def median(self) -> float | None:
        return statistics.median(seconds for *_, seconds in self._seen) if self._seen else None

    def p95(self) -> float | None:
        seconds = [seconds for *_, seconds in self._seen]
        return statistics.quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else None

    def quantiles(self) -> dict[str, float] | None:
        """How the times of steps are spread; None before the second."""
        seconds = [seconds for *_, seconds in self._seen]
        if len(seconds) < 2:
            return None
        of_twenty = statistics.quantiles(seconds, n=20, method="inclusive")
        return {"p5": of_twenty[0], "median": of_twenty[9], "p95": of_twenty[-1]}

    def slowest(self, count: int = 3) -> list[tuple[int, float]]:
        """(iteration, seconds) of the slowest reports, the slowest first."""
        order = sorted(self._seen, key=lambda item: -item[3])[:count]
        return [(iteration, seconds) for _, iteration, _, seconds in order]

    def to_json(self) -> dict[str, Any] | None:
        """None before the first step was measured."""
        if not self._seen:
            return None
        drop = self.pace.drop
        return {
            "count": self.counted,
            "left_out": self.left_out,
            "seconds_now": _round(self.now()),
            "seconds_median": _round(self.median()),
            "seconds_p95": _round(self.p95()),
            "slowest": [{"iteration": step, "seconds": _round(seconds)} for step, seconds in self.slowest()],
            "samples_per_second": _round(self.samples_per_second()),
            "slower_since": drop
            and {"iteration": drop.iteration, "at": drop.since, "ratio": _round(drop.ratio)},
        }

    def samples_per_second(self) -> float | None:
        now = self.now()
        return self.samples_per_step / now if now and self.samples_per_step else None


def steps_sentence(steps: Mapping[str, Any]) -> str:
    """What `to_json` gave, in a line.

    >>> steps_sentence({"count": 30, "seconds_median": 0.71, "seconds_p95": 0.83, "slowest": [{"iteration": 12, "seconds": 2.1}]})
    '30 steps measured, median 0.71 s, p95 0.83 s, slowest 2.1 s (iteration 12)'
    """
    text = f"{steps['count']} step{'' if steps['count'] == 1 else 's'} measured, median {format_seconds(steps['seconds_median'])}"
    text += f", p95 {format_seconds(steps['seconds_p95'])}" if steps.get("seconds_p95") is not None else ""
    slowest = [
        f"{format_seconds(each['seconds'])} (iteration {each['iteration']})"
        for each in steps.get("slowest", ())
        if each["seconds"] > 1.5 * (steps["seconds_median"] or 0.0)
    ]
    text += f", slowest {', '.join(slowest)}" if slowest else ""
    return text + (
        f", {steps['samples_per_second']:.3g} samples/s" if steps.get("samples_per_second") else ""
    )


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
