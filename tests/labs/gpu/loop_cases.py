"""The cases of `loops`: how a plain loop runs, what strikes it, and what is true then."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CASES", "Case"]


@dataclass(frozen=True, slots=True)
class Case:
    """`seconds`: how long it is watched after its fault. `rank`: to blame; None where nobody is."""

    name: str
    truth: str
    arguments: tuple[str, ...]
    seconds: float
    rank: int | None = 1
    outside: str = ""  # what strikes from outside, after some seconds of training
    quick: bool = True  # over soon after the first finding that is no information
    gpu: bool = False  # makes no sense without one


_OWN = ("--lines", "own")
_ITEM = ("--ends", "item", *_OWN)


def _at(step: int, fault: str, *more: str) -> tuple[str, ...]:
    return ("--fault", fault, "--step", str(step), *more)


# Those that matter most come first: time may be short.
CASES: tuple[Case, ...] = (
    Case(
        "late-item",
        "rank 1 sleeps before a collective; rank 0 spins in .item()",
        (*_ITEM, *_at(150, "skip-collective")),
        60,
    ),
    Case(
        "long-kernel",
        "rank 1 runs a kernel without end before its collectives; both wait in .item()",
        (*_ITEM, *_at(150, "long-kernel")),
        90,
    ),
    Case(
        "stream-thread",
        "rank 1 joins a thread that waits for its stream",
        (*_ITEM, *_at(150, "stream-thread")),
        75,
    ),
    Case("leave", "rank 1 calls destroy_process_group and ends", (*_ITEM, *_at(150, "leave")), 60),
    Case(
        "starved",
        "rank 1 shares one core with six busy loops of others",
        (*_ITEM, "--workers", "0"),
        150,
        outside="starve",
    ),
    Case(
        "log-loss-alone",
        "rank 1 makes one all_reduce more than rank 0",
        (*_ITEM, *_at(150, "log-loss-alone")),
        60,
    ),
    Case(
        "opposite-groups",
        "two groups, taken in opposite order",
        (*_ITEM, *_at(150, "opposite-groups")),
        60,
        None,
    ),
    Case("other-size", "4M elements against 3M", (*_ITEM, *_at(150, "other-size")), 45, None),
    Case("long-kernel-sync", "the same, steps end in synchronize", (*_OWN, *_at(150, "long-kernel")), 90),
    Case(
        "late-thread",
        "steps end in a joined thread",
        ("--ends", "thread", *_OWN, *_at(150, "skip-collective")),
        60,
    ),
    Case(
        "neighbour-fault",
        "another program on GPU 0 makes a wild store (Xid 31); rank 1 dies of its own StopIteration",
        (*_ITEM, *_at(400, "stop-iteration")),
        45,
        outside="neighbour-fault",
        gpu=True,
    ),
    Case(
        "neighbour",
        "nothing: another program works on GPU 0",
        _ITEM,
        60,
        None,
        outside="neighbour",
        quick=False,
        gpu=True,
    ),
    Case("healthy-item", "nothing", _ITEM, 30, None, quick=False),
    Case("healthy-thread", "nothing", ("--ends", "thread", *_OWN), 30, None, quick=False),
)
