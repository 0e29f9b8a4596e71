"""Processes that put into one queue: joined before that is read, or ended in the middle of a message; and where neither is
said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from diag.model import Finding
from diag.model.observations.waits import Party, Wait
from tests.detectors.test_hang_endless_processes import READS, WORKS
from tests.detectors.test_hang_endless_waits import (
    CHILD,
    EVENT,
    FEED,
    LIB,
    LOCK,
    MP_GET,
    ONE,
    PEER,
    RANK,
    SEMAPHORE,
    SIBLING,
    SILENT,
    TWO,
    Job,
    Process,
    Thread,
)
from tests.facts import TRAIN

# -- a child that is joined before its queue is read ------------------------------------------------------------

JOINS = (*TRAIN, "main /app/learner.py:89", f"Popen.poll {LIB}/multiprocessing/popen_fork.py:27")
PUTS = ("act /app/learner.py:35", f"Queue.put {LIB}/multiprocessing/queues.py:89")
OF_CHILD = Wait("child", "wait4", others=(Party(CHILD),))
FULL_PIPE = Wait("pipe_write", "write", 12, "pipe:[9]", others=(Party(RANK),))


def joined(main: Wait = OF_CHILD, put: Wait = SEMAPHORE, feed: Wait = FULL_PIPE, *threads: Thread) -> Finding:
    feeder = Thread(TWO, "QueueFeederThread", FEED, feed)
    actor = Process(CHILD, [Thread(CHILD, "MainThread", PUTS, put), feeder], forked=False)
    return Job(JOINS, main, threads=threads, processes=[actor]).told()


def test_child_at_a_full_queue_that_only_who_joins_it_could_read_never_ends() -> None:
    hang = joined()

    assert (hang.id, hang.klass, hang.cause) == ("hang", "peer_not_joined", "joined_before_drained")
    assert (
        f"pid {CHILD} waits in Queue.put, in act (/app/learner.py:35) for room in a full queue"
        in hang.summary
    )
    assert f"writes to a full pipe that only pid {RANK} could read" in hang.summary
    assert "before the join" in hang.advice and "subprocess" not in hang.advice


@pytest.mark.parametrize(
    ("main", "put", "feed", "threads"),
    [
        (replace(OF_CHILD, timed=True), SEMAPHORE, FULL_PIPE, ()),
        (OF_CHILD, replace(SEMAPHORE, timed=True), FULL_PIPE, ()),
        (
            OF_CHILD,
            SEMAPHORE,
            replace(FULL_PIPE, others=(Party(RANK), Party(PEER))),
            (),
        ),  # a sibling reads too
        (OF_CHILD, SEMAPHORE, LOCK, ()),  # its pipe has room
        (OF_CHILD, SEMAPHORE, FULL_PIPE, (Thread(ONE, "drain", ("drain /app/learner.py:50",), SILENT),)),
    ],
)
def test_child_whose_queue_somebody_may_read_is_only_waited_for(
    main: Wait, put: Wait, feed: Wait, threads: tuple[Thread, ...]
) -> None:
    assert joined(main, put, feed, *threads).cause != "joined_before_drained"


LEAVES = (f"_exit_function {LIB}/multiprocessing/util.py:363", f"Thread.join {LIB}/threading.py:1147")
THREE = 90_007


def left_with_a_turn(other: Wait = FULL_PIPE, *threads: Thread) -> Finding:
    """The child that is joined first waits for the other's turn at their queue to end."""
    join = Wait("join", "futex", others=(Party(CHILD, TWO),))
    turn = Thread(TWO, "QueueFeederThread", FEED[:1], SEMAPHORE)
    judges = [
        Process(CHILD, [Thread(CHILD, "MainThread", LEAVES, join), turn]),
        Process(
            SIBLING,
            [Thread(SIBLING, "MainThread", LEAVES, LOCK), Thread(THREE, "QueueFeederThread", FEED, other)],
        ),
    ]
    return Job(JOINS, OF_CHILD, threads=threads, processes=judges).told()


def test_child_whose_turn_another_has_at_the_queue_of_who_joins_it_never_ends() -> None:
    hang = left_with_a_turn()

    assert (hang.id, hang.cause, hang.ranks) == ("hang", "joined_before_drained", (1,))
    assert (
        f"pid {CHILD} has still to write what it put into a queue, and thread QueueFeederThread (tid {THREE}) of pid "
        f"{SIBLING}, whose turn it is, writes to a full pipe that only pid {RANK} could read, which waits for pid {CHILD}"
        in hang.summary
    )
    assert "before the join" in hang.advice


@pytest.mark.parametrize(
    "tell",
    [
        lambda: left_with_a_turn(replace(FULL_PIPE, others=(Party(PEER),))),
        lambda: left_with_a_turn(LOCK),
        lambda: left_with_a_turn(FULL_PIPE, Thread(ONE, "drain", ("drain /app/learner.py:50",), SILENT)),
    ],
    ids=["another reads", "nobody writes", "the rank may read"],
)
def test_child_whose_turn_may_come_is_only_waited_for(tell: Callable[[], Finding]) -> None:
    assert tell().cause != "joined_before_drained"


# -- a message whose writer was ended ----------------------------------------------------------------------------

EPISODE = (
    *TRAIN,
    "episode /app/pool.py:30",
    MP_GET,
    f"Connection._recv {LIB}/multiprocessing/connection.py:395",
)
OF_ACTORS = Wait("pipe_read", "read", 9, "pipe:[4]", others=(Party(CHILD), Party(SIBLING)))
PLAYS = ("play /app/actor.py:14", f"Queue.put {LIB}/multiprocessing/queues.py:89")


def reading(*actors: Process, ended: tuple[int, ...] = (4711,), wait: Wait = OF_ACTORS) -> Finding:
    return Job(EPISODE, wait, processes=actors, ended=ended).told()


def actor(pid: int, wait: Wait = SEMAPHORE, *more: Thread, lines: tuple[str, ...] = PLAYS) -> Process:
    return Process(pid, [Thread(pid, "MainThread", lines, wait), *more], forked=False)


@pytest.mark.parametrize("turn", [False, True])
def test_message_whose_writer_was_ended_never_comes_whole(turn: bool) -> None:
    """The others wait for a place in the queue, or for the turn to write to it."""
    idle = ("sleep_on /app/actor.py:9", *EVENT)
    feeder = Thread(TWO, "QueueFeederThread", FEED[:1], SEMAPHORE)
    other = actor(SIBLING, LOCK, feeder, lines=idle) if turn else actor(SIBLING)
    held = reading(actor(CHILD), other)

    assert (held.cause, held.ranks) == ("lock_holder_ended", (1,))
    assert (
        "each of the 2 processes that could write to it waits to put into a queue itself, and nothing comes: its child "
        "process pid 4711 ended" in held.summary
    )
    assert "Do not terminate a process that shares a queue" in held.advice


@pytest.mark.parametrize(
    "tell",
    [
        lambda: reading(actor(CHILD), actor(SIBLING), ended=()),
        lambda: reading(actor(CHILD), actor(SIBLING, SILENT, lines=("play /app/actor.py:12",))),
        lambda: reading(actor(CHILD), actor(SIBLING, replace(SEMAPHORE, timed=True))),
        lambda: reading(
            actor(CHILD), actor(SIBLING, SEMAPHORE, Thread(TWO, "send", ("send /app/actor.py:30",), SILENT))
        ),
        lambda: reading(
            actor(CHILD), actor(SIBLING), wait=replace(OF_ACTORS, others=(Party(CHILD), Party(PEER)))
        ),
        lambda: reading(actor(CHILD), actor(SIBLING), actor(PEER, READS, lines=(*WORKS, MP_GET))),
    ],
    ids=["none ended", "one is at work", "tries again", "a thread is at work", "a stranger", "another reads"],
)
def test_queue_that_somebody_may_still_write_to_is_not_said_to_be_cut_off(
    tell: Callable[[], Finding],
) -> None:
    assert tell().cause != "lock_holder_ended"
