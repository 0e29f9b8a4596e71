"""Processes that wait in memory that they share, each for a semaphore that only the other would give back; and where one of them,
or somebody else, still may."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model import Finding
from diag.model.observations.waits import Party, Shared, Wait
from tests.detectors.test_hang_endless_waits import CHILD, ONE, RANK, SILENT, TWO, Job, Process, Thread
from tests.facts import TRAIN

# As recorded of a ring between a rank and its decoder, by ctypes (a19 of the eleventh round of first sight).
TAKES = (*TRAIN, "Ring.take /app/ring.py:38", "Ring._wait /app/ring.py:21")
PUTS = ("start /app/decode.py:33", "Ring.put /app/ring.py:31", "Ring._wait /app/ring.py:21")
MEMORY = "00:01 7204"
FILLED = Wait(
    "semaphore", "futex", path="/dev/zero (deleted)", shared=Shared(MEMORY, 32, (Party(CHILD),), True)
)
FREE = replace(FILLED, shared=Shared(MEMORY, 0, (Party(RANK),), True))
RUNS = Thread(ONE, "pump", ("run /app/pump.py:9",), SILENT)


def told(
    main: Wait = FILLED, other: Wait = FREE, *threads: Thread, beside: tuple[Thread, ...] = ()
) -> Finding:
    decoder = Process(CHILD, [Thread(CHILD, "MainThread", PUTS, other), *threads])
    return Job(TAKES, main, threads=beside, processes=[decoder]).told()


def test_both_wait_for_what_only_the_other_would_give_back() -> None:
    hang = told()

    assert (hang.id, hang.klass, hang.cause, hang.ranks) == (
        "hang",
        "lock_deadlock",
        "semaphores_in_turn",
        (1,),
    )
    assert f"(/dev/zero (deleted), in memory that pid {CHILD} has too)" in hang.summary
    said = f"pid {CHILD} waits for another one there, in Ring._wait (/app/ring.py:21) < Ring.put (/app/ring.py:31)"
    assert said in hang.summary and "give it back in a finally block" in hang.advice


def test_who_was_not_all_looked_at_proves_nothing() -> None:
    partly = replace(FILLED, shared=Shared(MEMORY, 32, (Party(CHILD),)))

    assert (told(partly).id, told(partly).cause) == ("held-up", "semaphores_in_turn")


@pytest.mark.parametrize(
    "found",
    [
        lambda: told(FILLED, FILLED),  # of one semaphore both: somebody else gives it
        lambda: told(FILLED, SILENT),  # it is at work
        lambda: told(FILLED, replace(FREE, timed=True)),
        lambda: told(replace(FILLED, timed=True)),
        lambda: told(FILLED, replace(FREE, shared=Shared("00:01 9", 0, (Party(RANK),)))),  # other memory
        lambda: told(FILLED, replace(FREE, shared=None)),
        lambda: told(FILLED, FREE, replace(RUNS, tid=TWO)),  # another thread of it may
        lambda: told(FILLED, FREE, beside=(RUNS,)),
        lambda: told(
            replace(FILLED, shared=Shared(MEMORY, 32, (Party(CHILD), Party(4711)), True))
        ),  # and this one
    ],
)
def test_where_anybody_else_may_give_it_back_it_is_no_deadlock(found: object) -> None:
    hang = found()  # type: ignore[operator]

    assert hang.cause != "semaphores_in_turn" and "another one there" not in hang.summary


def test_lock_in_memory_of_a_process_that_is_none_of_its_own_may_be_released() -> None:
    outside = replace(FILLED, shared=Shared(MEMORY, 32, (Party(4711, 0, "decoder"),), True))
    found = Job(TAKES, outside).told()

    assert (
        found.cause != "nobody_releases_lock"
        and "in memory that pid 4711 (`decoder`) has too" in found.summary
    )
