"""The checkpoint saves of the job so far: when each began and ended, and how we know. Judges nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["Save", "SaveLog"]

_KEPT = 256


@dataclass(slots=True)
class Save:
    """One save. `began` and `ended` are told times at which we saw it; the save itself may have begun a little before.

    `after` is the last moment known to be before it (a step's line): the save began between the two.
    """

    number: int  # from 1, over the whole run
    iteration: int | None  # the last that was reported before it
    began: float
    after: float
    told_by: str  # log: a line; stacks: a rank was found in it; end: only its end was told
    ended: float | None = None
    path: str = ""
    cut_off: bool = False  # the job or a rank ended in it

    @property
    def seconds(self) -> float | None:
        return None if self.ended is None else self.ended - self.began


class SaveLog:
    """Told by `Progress`; read by detectors."""

    def __init__(self) -> None:
        self.saves: deque[Save] = deque(maxlen=_KEPT)
        self.count = 0

    @property
    def current(self) -> Save | None:
        """The save that is under way."""
        return self.saves[-1] if self.saves and self.saves[-1].ended is None else None

    @property
    def finished(self) -> list[Save]:
        return [save for save in self.saves if save.ended is not None and not save.cut_off]

    def began(self, at: float, iteration: int | None, after: float, told_by: str, path: str = "") -> None:
        current = self.current
        if current is not None:
            current.path = current.path or path
            return
        self.count += 1
        self.saves.append(Save(self.count, iteration, at, min(after, at), told_by, path=path))

    def ended(self, at: float, iteration: int | None, after: float, path: str = "", *, cut_off: bool = False) -> None:
        """The phase is over, or a line says so. Lines about one checkpoint (weights, then safetensors) are one save."""
        current = self.current
        if current is not None:
            current.ended, current.cut_off, current.path = at, cut_off, current.path or path
        elif path and (not self.saves or self.saves[-1].path != path):
            if self.saves and not self.saves[-1].path and self.saves[-1].iteration == iteration:
                self.saves[-1].path = path  # the stacks left the save before the line came
                return
            self.began(at, iteration, after, "end", path)
            self.saves[-1].ended = at
