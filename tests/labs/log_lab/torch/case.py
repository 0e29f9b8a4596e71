"""What one log is made from: the command, what was done to it, and what a reader should find in it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Case"]


@dataclass(frozen=True, slots=True)
class Case:
    """`command` is run by bash in a folder of its own, with `script` beside it under the name train.py.

    In `command` and `setup`: {port} is a free port, {python} the interpreter, {lab} the folder of the
    scripts.
    """

    name: str
    command: str
    expect: str  # a finding id, or none
    why: str
    script: str = ""
    launcher: str = "torchrun"
    nproc: int = 2
    ranks: tuple[int, ...] = ()  # the culprits, where the log tells them
    also: tuple[str, ...] = ()  # other ids that are as right
    setup: str = ""  # bash before the command; its output is not in the log
    mounts: bool = False  # in a mount namespace of its own (root)
    tty: bool = False  # on a pseudo terminal: colours and bars as on a screen
    needs: tuple[str, ...] = ()  # modules the interpreter must have
    cuda_build: bool | None = None  # only with a torch built with, or without, CUDA
    since: tuple[int, int] = (0, 0)  # torch versions, both inclusive
    until: tuple[int, int] = (99, 0)
    timeout: float = 240
    runs_on: bool = False  # it does not end by itself: the log is what it had printed by the timeout
