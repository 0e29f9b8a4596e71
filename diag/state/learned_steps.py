"""Steps of jobs whose trainer diag does not know, learned from their own log: which of its counters counts steps.

A counter that grows (`Counters`) counts steps where the job's stacks were seen in parts of a training step while it
grew, and something tells it from a timer and from a retry: a result beside it that changes (a loss), or a rhythm that is
no timer's, towards a total or for long. Where no stack can be read, as in a log on disk, the result has to be enough.
A bar on its way to its total that is no timer moves the log, whatever it counts. All other numbers say nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from diag.knowledge.log_prefix import without_outer
from diag.model.observations import Iteration, LinesWritten, LogLine, LogsEnded, PlainLines, QuietLine
from diag.state.counters import Counters, Grown, Series
from diag.state.line_template import read
from diag.state.ranks import TRAINING_ACTIVITIES, Ranks
from diag.state.reducer import AttemptBegan, CounterGrew, MainStackRead, Reducer, Tell, takes
from diag.state.rhythm import Rhythm
from diag.state.stack_activity import Activity, steps

_LOOKS = 50  # ours, a second: a job may print 20,000 lines in it, and a step's line comes again
_LINES = 500  # of a log on disk as many of so many lines
_ALONE_GROWTHS = 8  # ours: of a counter with neither result nor total
_TOGETHER = (Activity.COLLECTIVE, Activity.BACKWARD, Activity.GPU_SYNC)
_LEAST_LEFT = 2  # ours: once a start-up's barrier is left too
_KEPT = 8
_MOST_KEPT = 64
_STILL_SECONDS = 30.0  # a timer counts on for so long though no stack moves: it counts no steps


@dataclass(frozen=True, slots=True)
class _Stacks:
    """What the ranks' stacks showed since a moment."""

    at: float  # until then
    seen: bool  # any was read
    train: bool
    moved_at: float


class LearnedSteps(Reducer):
    """Owns the counters of the log. Announces each that moves."""

    def __init__(self, ranks: Ranks, tell: Tell) -> None:
        self._ranks, self._tell = ranks, tell
        self._counters = Counters()
        self._looks = (0, 0)  # in which second, how many
        self._lines = 0  # of a log on disk
        self._unread: deque[tuple[int, str, int | None]] = deque(
            maxlen=_LOOKS
        )  # the last of it, by their numbers
        self._trainer_known = False  # a trainer that diag knows reports its steps
        self._steps: Series | None = None  # the counter that counts them
        self._steps_growths = 0  # of any other, since it grew
        self._trained: dict[int, float] = {}  # by rank: when its stack last showed a part of a training step
        self._together: dict[int, tuple[str, ...]] = {}  # where each was last found with its peers or its GPU
        self._left: deque[float] = deque(maxlen=_KEPT)  # when any of them had left such a place
        self._stacks: dict[Series, _Stacks] = {}  # while each of them grew, as last looked at

    @property
    def rhythm(self) -> Rhythm | None:
        """Of the lines that report steps."""
        return None if self._steps is None else self._steps.rhythm

    # -- the log ------------------------------------------------------------------------------------------

    @takes(LogLine, QuietLine)
    def _line(self, at: float, fact: LogLine) -> None:
        if self._trainer_known or fact.stream.startswith("nccl:"):
            self._lines += bool(fact.number)
            return
        if not fact.number:
            if self._has_time(int(at)):
                self._look(at, fact.text, fact.rank)
        else:
            self._on_disk(at, 1, (fact.text,), fact.rank)

    @takes(PlainLines)
    def _plain_lines(self, at: float, fact: PlainLines) -> None:
        if self._trainer_known or fact.stream.startswith("nccl:"):
            self._lines += fact.count if fact.number else 0
            return
        if fact.number:
            self._on_disk(at, fact.count, fact.last, fact.rank)
            return
        for text in fact.text.split("\n", _LOOKS)[:_LOOKS]:
            if not self._has_time(int(at)):
                return
            self._look(at, without_outer(text), fact.rank)

    def _on_disk(self, at: float, count: int, last: tuple[str, ...], rank: int | None) -> None:
        """Of a log on disk the first lines of each some hundred are read, and at its end the last."""
        self._lines += count
        shown = last[-_LOOKS:]
        for number, text in enumerate(shown, self._lines - len(shown) + 1):
            if self._has_time(self._lines // _LINES):
                self._look(at, text, rank, number)
            else:
                self._unread.append((number, text, rank))

    def _has_time(self, part: int) -> bool:
        """For another line in this second, or of these lines."""
        self._looks = (part, self._looks[1] + 1 if self._looks[0] == part else 1)
        return self._looks[1] <= _LOOKS

    @takes(LinesWritten)
    def _written(self, at: float, fact: LinesWritten) -> None:
        """Seen some seconds later; of each form of line the last was written then."""
        if self._trainer_known:
            return
        last = {line.template: (line, text) for text in fact.lines if (line := read(text)) is not None}
        for line, text in last.values():
            grown = self._counters.next(fact.written_at, line)
            if grown is not None:
                self._grew(at, grown, text)

    @takes(LogsEnded)
    def _ended(self, at: float, fact: LogsEnded) -> None:
        for number, text, rank in () if self._trainer_known else tuple(self._unread):
            self._look(at, text, rank, number)

    def _look(self, at: float, text: str, rank: int | None, number: int = 0) -> None:
        """`number`: of the line in a log on disk, whose moment here says nothing of when it was written."""
        line = read(text)
        grown = None if line is None else self._counters.next(at, line, timed=not number)
        if grown is not None:
            self._grew(at, grown, text, number)

    def _grew(self, at: float, grown: Grown, text: str, number: int = 0) -> None:
        series = grown.series
        total = series.total if not series.laps and series.outer is None else 0
        if not self._counts_steps(at, grown):
            towards_end = grown.line.drawn and series.total > 0 and not grown.like_timer
            if towards_end or (grown.template.has_results() and not grown.by_timer):
                self._tell(at, CounterGrew(series.position, total, text, grown.where, steps=False))
            return
        is_new = self._steps is None
        if series is self._steps:
            self._steps_growths = 0
        elif self._steps is not None:
            # Another part of the training, or an evaluation: that has fewer steps than what it evaluates.
            self._steps_growths += 1
            is_new = (
                self._steps_growths >= _ALONE_GROWTHS and series.all_growths > self._steps.all_growths // 2
            )
            if not is_new and self._steps.at == at and grown.template.holds(self._steps):
                series, grown = self._steps, replace(grown, series=self._steps)  # it grew with the finer one
                total = series.total if not series.laps and series.outer is None else 0
        if is_new:
            self._steps, self._steps_growths = series, 0
        of_steps = series is self._steps
        before = tuple(series.recent) if is_new else ()
        self._tell(
            at, CounterGrew(series.position, total, text, grown.where, of_steps, is_new, before, number)
        )

    @takes(Iteration)
    def _trainer_tells(self, at: float, fact: Iteration) -> None:
        if not fact.text:
            return  # another node's word, which may have learned it too
        self._trainer_known = True
        self._counters.start_over()
        self._steps = None

    @takes(AttemptBegan)
    def _attempt_began(self, at: float, event: AttemptBegan) -> None:
        self._counters.start_over()
        self._trained.clear()
        self._left.clear()
        self._together.clear()
        self._steps = None

    # -- what tells steps from other counters --------------------------------------------------------------

    @takes(MainStackRead)
    def _stack(self, at: float, event: MainStackRead) -> None:
        activity = event.reading.activity if event.reading is not None else None
        if activity in TRAINING_ACTIVITIES:
            self._trained[event.rank] = at
        path = steps(event.main) if event.main is not None else ()
        if self._together.pop(event.rank, path) != path:
            self._left.append(at)
        if activity in _TOGETHER:
            self._together[event.rank] = path

    def _counts_steps(self, at: float, grown: Grown) -> bool:
        series, results = grown.series, grown.template.has_results()
        stacks = self._look_at_stacks(at, series)
        if not stacks.seen:
            # Of a log on disk what is known to count steps goes on to: epochs may be as regular as a timer, a loss flat.
            known = self._lines > 0 and series is self._steps
            return known or (results and not grown.by_timer)
        if not stacks.train:
            return False
        if results:
            return not grown.by_timer or at - stacks.moved_at < _STILL_SECONDS
        if grown.like_timer or series.rhythm.backs_off() or stacks.moved_at < series.began:
            return False
        return series.total > 0 or series.all_growths >= _ALONE_GROWTHS

    def _look_at_stacks(self, at: float, series: Series) -> _Stacks:
        """Anew each second: of very many ranks it takes a while."""
        kept = self._stacks.get(series)
        if kept is None or not 0 <= at - kept.at < 1.0:
            if len(self._stacks) >= _MOST_KEPT:
                self._stacks.clear()
            kept = self._stacks[series] = self._stacks_since(at, series.began)
        return kept

    def _stacks_since(self, at: float, began: float) -> _Stacks:
        seen = [rank for rank in self._ranks.alive() if rank.stack is not None]
        for number in self._ranks.training:  # of other nodes the stacks come with their reports
            self._trained[number] = max(self._trained.get(number, 0.0), self._ranks[number].stack_at)
        # While one rank prepares the data all others may wait for it in a collective: they do not leave it.
        train = sum(left >= began for left in self._left) >= _LEAST_LEFT or all(
            self._trained.get(rank.rank, -1.0) >= began for rank in seen
        )
        return _Stacks(
            at, bool(seen), train, max((rank.moved.get("stack", 0.0) for rank in seen), default=0.0)
        )
