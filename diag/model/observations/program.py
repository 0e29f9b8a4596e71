"""What the program's own text says of a line at which one of its threads is."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.base import Observation


@dataclass(frozen=True, slots=True)
class Block:
    """A statement whose block leads to a line: `kind` is its keyword (while, for, if, elif, else, except,
    finally, with).

    `text` is its head in one line; of an `else` that of the statement it belongs to. `last`: the block's last line.
    """

    line: int
    last: int
    kind: str
    text: str

    @property
    def is_loop(self) -> bool:
        return self.kind in ("while", "for")


@dataclass(frozen=True, slots=True)
class Leave:
    """A `break`, `continue` or `return` of the same function, under a condition. `loop`: the line of the loop that it
    leaves or goes on with, 0 for a return."""

    line: int
    word: str
    loop: int
    under: Block


@dataclass(frozen=True, slots=True)
class ProgramPlace:
    """A line of a function: its statement, the blocks around it from the innermost to the function's, and the ways past
    it."""

    file: str
    line: int
    function: str
    text: str
    around: tuple[Block, ...] = ()
    leaves: tuple[Leave, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramRead(Observation):
    """Of one process. A file that could not be read, or was written after the process had started, has no places."""

    pid: int
    places: tuple[ProgramPlace, ...]
