"""The checkpoint saves of the job so far: when each began and ended, and how we know."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from diag.knowledge.checkpoint_args import iteration_of
from diag.knowledge.flags import flag_values

_KEPT = 256
# Upper bounds of the histogram of durations: a LoRA adapter takes a second, a 700B model on a slow file
# system an hour.
SAVE_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_GROWTH = 16


def switched_on(argv: Sequence[str], flag: str) -> bool:
    """Whether a command has a flag, and does not switch it off.

    >>> switched_on(["--async_save", "true"], "async-save"), switched_on(["--async_save=false"], "async-save")
    (True, False)
    """
    value = next(flag_values(argv, flag.replace("-", "_")), "no")
    return value.lower() not in ("false", "0", "no", "none")


def never_saves(argv: Sequence[str]) -> bool:
    """Whether the command says so: transformers' and ms-swift's --save_strategy no. Any other saves at its
    end at the latest.

    >>> never_saves(["swift", "sft", "--save_strategy", "no"]), never_saves(["swift", "sft", "--save_strategy=steps"])
    (True, False)
    """
    return [*flag_values(argv, "save_strategy")][-1:] == ["no"]


@dataclass(slots=True)
class Save:
    """One save. `began` and `ended` are times at which we saw the ranks in it; it may have begun a
    little before.

    `after` is the last moment known to be before it (a step's line): the save began between the two. An
    asynchronous save has ended when the ranks train on, and is `written` when a line says that it is on disk,
    steps later.
    """

    number: int  # from 1, over the whole run
    iteration: int | None  # the last that was reported before it
    began: float
    after: float
    told_by: str  # log: a line; stacks: a rank was found in it; end: only its end was seen
    ended: float | None = None
    path: str = ""
    cut_off: bool = False  # the job or a rank ended in it
    written: float | None = None
    # bytes on disk, when they changed
    growth: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_GROWTH))

    @property
    def bytes_per_second(self) -> float | None:
        """How fast the folder grew while it was looked at."""
        (began, least), (ended, most) = (self.growth[0], self.growth[-1]) if self.growth else ((0.0, 0),) * 2
        return max(0.0, (most - least) / (ended - began)) if ended > began else None

    @property
    def seconds(self) -> float | None:
        """How long the ranks were in it; None while they are, and where only its end was seen."""
        return None if self.ended is None or self.told_by == "end" else self.ended - self.began


class SaveLog:
    """The saves so far, as `Saves` reports them."""

    def __init__(self) -> None:
        self.saves: deque[Save] = deque(maxlen=_KEPT)  # the last of them, oldest first
        self.count = 0  # of all
        self.asynchronous = False  # the job's arguments or its log say so
        self._lines = False  # the log of this node tells of saves
        # the histogram of those that `saves` has no room for
        self._forgotten = ([0] * (len(SAVE_SECONDS) + 1), 0.0)

    @property
    def current(self) -> Save | None:
        """The save that is under way."""
        return self.saves[-1] if self.saves and self.saves[-1].ended is None else None

    @property
    def finished(self) -> list[Save]:
        return [save for save in self.saves if save.ended is not None and not save.cut_off]

    @property
    def unwritten(self) -> Save | None:
        """The asynchronous save that still goes on behind the training, as far as is known."""
        if not self.asynchronous or (self.count > 1 and not self._lines):
            return None  # rank 0 prints it, and that may be on another node
        last = self.saves[-1] if self.saves else None
        return last if last and last.ended is not None and last.written is None and not last.cut_off else None

    def began(self, at: float, iteration: int | None, after: float, told_by: str, path: str = "") -> None:
        current = self.current
        if current is not None:
            current.path = current.path or path
            return
        last = self.saves[-1] if self.saves else None
        same = last is not None and iteration is not None and last.iteration == iteration
        if last is not None and same and not last.cut_off and (not path or last.path in ("", path)):
            last.ended = None  # weights first, then safetensors: one save in two parts
            return
        self.count += 1
        if len(self.saves) == _KEPT and (seconds := self.saves[0].seconds) is not None:
            self._forgotten = _histogram([seconds], self._forgotten)
        self.saves.append(Save(self.count, iteration, at, min(after, at), told_by, path=path))

    def ended(
        self,
        at: float,
        iteration: int | None,
        after: float,
        path: str = "",
        *,
        cut_off: bool = False,
        written: bool = True,
    ) -> None:
        """The phase is over, or a line says so. Lines about one checkpoint (weights, then safetensors) are
        one save.

        `written` False: the line is about a part of it, and the rest is still written behind the training.
        """
        current = self.current
        self._lines |= bool(path)
        if current is not None:
            current.ended, current.cut_off, current.path = at, cut_off, current.path or path
            if path and written and not cut_off:
                current.written = at
        elif path:
            save = self._of(path, iteration)
            if save is None:
                self.began(at, iteration, after, "end", path)
                self.saves[-1].ended = at
                save = self.saves[-1]
            save.path = save.path or path
            if written:
                save.written = save.written or at

    def grew(self, at: float, size: int) -> bool:
        """The newest checkpoint on disk has so many bytes now. Whether that is movement of the save under
        way."""
        save = self.current or self.unwritten
        if save is None or (save.growth and save.growth[-1][1] == size):
            return False
        save.growth.append((at, size))
        return len(save.growth) > 1

    def usual_seconds(self) -> float | None:
        """The median of the finished saves; None before the first."""
        known = sorted(seconds for save in self.finished if (seconds := save.seconds) is not None)
        return known[len(known) // 2] if known else None

    def histogram(self) -> tuple[list[int], float]:
        """How many saves took at most so long, for each of SAVE_SECONDS and for all; and the sum."""
        return _histogram(
            [seconds for save in self.finished if (seconds := save.seconds) is not None], self._forgotten
        )

    def _of(self, path: str, iteration: int | None) -> Save | None:
        """The save that ended before the line about it came: stacks left it, or it is asynchronous and took
        some steps more."""
        named = iteration_of(path)
        for save in reversed(self.saves):
            if save.path == path and (
                named is not None or save.written is None or save.iteration == iteration
            ):
                return save
            if not save.path and save.iteration == (iteration if named is None else named):
                return save
        return None


def _histogram(durations: Sequence[float], before: tuple[list[int], float]) -> tuple[list[int], float]:
    counts = [sum(seconds <= bound for seconds in durations) for bound in (*SAVE_SECONDS, float("inf"))]
    return [some + more for some, more in zip(before[0], counts, strict=True)], before[1] + sum(durations)
