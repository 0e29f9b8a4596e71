"""Who prints something new: a rank whose output goes on has not stopped, however long its stack shows the
same line.

What counts is that text changes, not which text: a step, a percentage, the name of a file. The same text
again do not count, nor does a clock in them: a loop that waits, a heartbeat and a bar that is drawn anew
print for as long as a job hangs. Of a pipe that all processes write to the kernel tells whose the text can
be: a launcher's lines are in no rank's count of written bytes, and a rank that hangs writes not one
byte (seen on H200 in all 13 recorded hangs, torch 2.11).
"""

from __future__ import annotations

from collections import deque

from diag.knowledge.log_prefix import without_outer
from diag.model.observations import LogLine, PlainLines, RunStarted
from diag.state.line_template import BETWEEN, CLOCK
from diag.state.rank import OWN_TRACE_SECONDS, RankState

# Channels of `RankState.moved`: text that diag saw change, and bytes of output that it cannot see (a
# terminal's, after `watch`).
PRINTED, WROTE = "printed", "wrote"

_REPEATS = 32  # ours: texts that are remembered of a rank, or of a pipe that all share; one loop prints a few
# The bar of a slower rank repeats what a faster one's showed before. No longer than a hang is waited for
# (hang/patience.py): then that rank is never called hung for it, and a line that comes again more seldom
# hides no hang.
_FORGOTTEN_SECONDS = 30.0
_LOOKS_PER_SECOND = 50  # ours: a job may print 20,000 lines a second; so many are read for what is new
_LINES = 512


class Printed:
    """Reads lines and readings of processes; marks in `RankState.moved` when each rank last printed something
    new."""

    def __init__(self) -> None:
        # text without clocks -> when it came last, oldest first
        self._seen: dict[int | None, dict[str, float]] = {}
        # of no rank in particular: when, how many characters
        self._new: deque[tuple[float, int]] = deque(maxlen=_LINES)
        self._second = (0, 0)
        self._processes = False  # of a log alone there are none to judge
        self._shown = False  # the job's output is seen by diag

    def started(self, fact: RunStarted) -> None:
        """What diag started prints through it. What a process writes beyond that are messages: a rank that asks a service
        or a queue again and again writes for as long as it hangs."""
        self._shown = not fact.attached

    def line(self, at: float, fact: LogLine, rank: RankState | None) -> None:
        """`rank`: who prints it, where the line or its file says so."""
        if fact.stream.startswith("nccl:"):
            return  # NCCL's own file: its threads write it, whatever the rank does
        self._shown = True
        self._text(at, fact.text, rank)

    def lines(self, at: float, fact: PlainLines, rank: RankState | None) -> None:
        """The same of a run of lines. Of more than are looked at in a second the others say nothing."""
        if fact.stream.startswith("nccl:"):
            return
        self._shown = True
        if self._processes:
            for text in fact.text.split("\n", _LOOKS_PER_SECOND + 1)[: _LOOKS_PER_SECOND + 1]:
                self._text(at, without_outer(text), rank)

    def _text(self, at: float, text: str, rank: RankState | None) -> None:
        if not self._processes or not self._is_new(at, text, rank):
            return
        if rank is None:
            self._new.append((at, len(text)))
        elif at - rank.asked_at > OWN_TRACE_SECONDS:
            rank.see_move(PRINTED, at)

    def _is_new(self, at: float, text: str, rank: RankState | None) -> bool:
        second, looks = self._second
        self._second = (int(at), looks + 1 if int(at) == second else 0)
        if self._second[1] > _LOOKS_PER_SECOND:
            return False
        text = BETWEEN.sub(" ", CLOCK.sub("", text[:400])).strip()
        seen = self._seen.setdefault(None if rank is None else rank.rank, {})
        before = seen.pop(text, None)
        seen[text] = at
        if len(seen) > _REPEATS:
            del seen[next(iter(seen))]
        return bool(text) and (before is None or at - before > _FORGOTTEN_SECONDS)

    def reading(self, at: float, rank: RankState) -> None:
        """A rank's process was read: were new lines its own?"""
        if rank.tree is None:
            return
        self._processes = True
        count, kept = rank.tree.main.write_chars, rank.written
        if kept and at - rank.asked_at > OWN_TRACE_SECONDS:
            (first_count, (read_at, last_count)) = kept[0][1], kept[-1]
            for when, size in reversed(self._new):
                if when <= read_at:
                    break
                # where the kernel does not show it, it may be its own
                if count is None or size <= count - first_count:
                    rank.see_move(PRINTED, when)
                    break
            if not self._shown and (count or 0) > last_count:
                rank.see_move(WROTE, at)
        kept.append((at, count or 0))
