"""The save of a checkpoint as stacks of ms-swift 4.6 show it (swift/megatron/trainers/base.py), with the work
given to it."""

from __future__ import annotations

from collections.abc import Callable


def save_checkpoint(work: Callable[[], None]) -> None:
    save_mcore_checkpoint(work)


def save_mcore_checkpoint(work: Callable[[], None]) -> None:
    work()
