"""Calls of two threads in one group, and of destructors: told where stacks and recorders show them, and not elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from diag.model import Finding
from diag.model.observations import (
    CollectiveEntry,
    CollectiveGroup,
    FlightRecorder,
    ProgramRead,
    Statement,
    ThreadStack,
)
from tests.detectors.test_hang import steady
from tests.facts import ALL_REDUCE, TRAIN, Story, frames, pid_of, stack, tree

BARRIER = "barrier torch/distributed/distributed_c10d.py:5356"
SAVES = (
    "Thread._bootstrap /usr/lib/python3.11/threading.py:1002",
    "Snapshots._write /app/snapshot.py:35",
    BARRIER,
)
WRITES = (*SAVES[:1], "Snapshots._write /app/snapshot.py:31")
FREES = (*TRAIN, "ShardWriter.__del__ /app/collect.py:35", "ShardWriter.close /app/collect.py:32", BARRIER)
FINALIZES = (
    *TRAIN,
    "finalize.__call__ /usr/lib/python3.11/weakref.py:590",
    "close_shard /app/collect.py:12",
    BARRIER,
)
CLOSES = (*TRAIN, "ShardWriter.close /app/collect.py:32", BARRIER)

Call = tuple[str, int, str]  # operation, number, group


def recorded(story: Story, rank: int, *calls: Call, over: int = 0) -> None:
    """`over`: so many of the first ones have ended."""
    groups = tuple(
        CollectiveGroup(
            "gloo", name, "", tuple(range(story.world)), max(c[1] for c in calls if c[2] == name), 80
        )
        for name in sorted({call[2] for call in calls})
    )
    entries = tuple(
        CollectiveEntry(
            "gloo", name, "", seq, seq, False, op, ((8,),), ((8,),), ("Float",),
            "completed" if at < over else "scheduled", at < over, at >= over, seq, 0.0,
        )
        for at, (op, seq, name) in enumerate(calls)
    )  # fmt: skip
    story.tell(FlightRecorder(rank, story.now, "2.10", ("gloo",), groups, entries, pid_of(rank)))


def hang_of(
    stacks: Mapping[int, Sequence[str]],
    calls: Mapping[int, Sequence[Call]],
    threads: Mapping[int, Sequence[str]] | None = None,
) -> Finding:
    story = steady(len(stacks))
    for at in range(24):
        if at % 7 == 0:
            for rank, made in calls.items():
                recorded(story, rank, *made)
        for rank, lines in stacks.items():
            more = (threads or {}).get(rank)
            others = [ThreadStack(90_000 + rank, "snapshot", frames(*more))] if more else []
            story.tell(
                tree(rank, story.now, wchan="futex_wait_queue"), stack(rank, story.now, lines, *others)
            )
        story.wait(2.0)
    return story.hang()


BOTH = {
    0: (("all_reduce", 82, "0"), ("barrier", 83, "0")),
    1: (("barrier", 82, "0"), ("all_reduce", 83, "0")),
}
MAIN = {0: ALL_REDUCE, 1: ALL_REDUCE}


def test_two_threads_of_each_rank_in_one_group_blame_no_rank() -> None:
    hang = hang_of(MAIN, BOTH, {0: SAVES, 1: SAVES})

    assert (hang.id, hang.klass, hang.cause) == ("hang", "collective_mismatch", "two_threads_use_one_group")
    assert (hang.ranks, hang.waiting_ranks) == ((), (0, 1))
    assert (
        "rank 0's main thread in all_reduce (from train, /app/train.py:200) and thread snapshot in barrier"
        in hang.summary
    )
    assert "a process group of its own" in hang.advice


@pytest.mark.parametrize(
    ("calls", "threads"),
    [
        (BOTH, {0: SAVES}),  # of one rank alone
        (BOTH, {0: WRITES, 1: WRITES}),  # the other thread is elsewhere
        (BOTH, None),
        # that thread's call may be of the other group
        ({rank: (*made, ("barrier", 9, "1")) for rank, made in BOTH.items()}, {0: SAVES, 1: SAVES}),
    ],
)
def test_where_another_thread_or_group_may_explain_it_two_threads_are_not_blamed(
    calls: Mapping[int, Sequence[Call]], threads: Mapping[int, Sequence[str]] | None
) -> None:
    assert hang_of(MAIN, calls, threads).cause != "two_threads_use_one_group"


CROSSED = {
    0: (("all_reduce", 66, "0"),),
    1: (("barrier", 2, "1"),),
    2: (("barrier", 2, "1"),),
}


@pytest.mark.parametrize(
    ("frees", "where"),
    [(FREES, "ShardWriter.__del__ (/app/collect.py:35)"), (FINALIZES, "close_shard (/app/collect.py:12)")],
)
def test_call_of_a_destructor_on_some_ranks_is_named(frees: Sequence[str], where: str) -> None:
    hang = hang_of({0: ALL_REDUCE, 1: frees, 2: frees}, CROSSED)

    assert hang.id == "hang" and hang.cause == "call_in_destructor" and hang.ranks == (0,)
    assert f"ranks 1-2 wait in a call that {where} makes, which no line calls" in hang.summary


def test_one_rank_that_alone_has_freed_the_object_is_the_odd_one() -> None:
    calls = {0: CROSSED[0], 1: CROSSED[1], 2: CROSSED[0]}
    hang = hang_of({0: ALL_REDUCE, 1: FREES, 2: ALL_REDUCE}, calls)

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("call_in_destructor", (1,), (0, 2))


@pytest.mark.parametrize(
    "stacks",
    [
        {0: ALL_REDUCE, 1: CLOSES, 2: CLOSES},  # a line of the program calls it
        {0: FREES, 1: FREES, 2: FREES},  # on all alike
    ],
)
def test_call_that_no_destructor_makes_or_all_ranks_come_to_there_is_none_of_its_kind(
    stacks: Mapping[int, Sequence[str]],
) -> None:
    assert hang_of(stacks, CROSSED).cause != "call_in_destructor"


TWICE = {
    0: (("barrier", 59, "0"), ("all_reduce", 60, "0")),
    1: (("barrier", 59, "0"), ("barrier", 60, "0")),
    2: (("barrier", 59, "0"), ("barrier", 60, "0")),
}
OPENS = (*TRAIN, "Window.__init__ /app/windows.py:18", BARRIER)
CLOSE = Statement(
    "in_destructor", "/app/windows.py", 30, "close", "dist.barrier()", "barrier", ("__del__",), (36,)
)


@pytest.mark.parametrize(
    ("calls", "statement", "cause"),
    [
        (TWICE, CLOSE, "call_in_destructor"),
        (TWICE, None, "calls_differ"),  # no destructor makes a call
        (TWICE, replace(CLOSE, key="all_gather"), "calls_differ"),  # another one
        (
            {rank: made[1:] for rank, made in TWICE.items()},
            CLOSE,
            "calls_differ",
        ),  # not known what came before
        (
            {rank: (("all_reduce", 59, "0"), made[1]) for rank, made in TWICE.items()},
            CLOSE,
            "calls_differ",
        ),  # nobody has made it once more
    ],
)
def test_destructor_that_made_a_call_is_told_by_the_text_when_ranks_have_gone_on(
    calls: Mapping[int, Sequence[Call]], statement: Statement | None, cause: str
) -> None:
    """The call of one rank's destructor met another call of its peers, which is over: nobody is in it any more."""
    story = steady(3)
    for at in range(24):
        if at % 7 == 0:
            for rank, made in calls.items():
                recorded(story, rank, *made, over=len(made) - 1)
            story.tell(ProgramRead(1, pid_of(1), (), (statement,) if statement is not None else ()))
        for rank in range(3):
            lines = OPENS if rank else ALL_REDUCE
            story.tell(tree(rank, story.now, wchan="futex_wait_queue"), stack(rank, story.now, lines))
        story.wait(2.0)
    hang = story.hang()

    assert (hang.cause, hang.ranks) == (cause, (0,))
    said = "ranks 1-2 have called barrier twice in a row and rank 0 once"
    assert (said in hang.summary) == (cause == "call_in_destructor")
    assert (
        "`dist.barrier()` (/app/windows.py:30), which `__del__` calls (/app/windows.py:36)" in hang.summary
    ) == (cause == "call_in_destructor")


IN_TURN = {0: (("all_reduce", 168, "0"),), 1: (("barrier", 3, "1"),), 2: (("barrier", 3, "1"),)}
POOL = "_worker /usr/lib/python3.11/concurrent/futures/thread.py:81"
AWAITS = (*TRAIN, "Snapshots.save /app/snapshot.py:22", "wait /usr/lib/python3.11/concurrent/futures/_base.py:305",
          "Condition.wait /usr/lib/python3.11/threading.py:327")  # fmt: skip


def test_task_of_a_thread_that_ended_without_its_call_is_no_order_of_groups() -> None:
    threads = {0: (*SAVES[:1], POOL), 1: SAVES, 2: SAVES}
    hang = hang_of({0: ALL_REDUCE, 1: AWAITS, 2: AWAITS}, IN_TURN, threads)

    assert (hang.id, hang.cause, hang.ranks) == ("hang", "task_ended_without_call", (0,))
    assert "thread snapshot of rank 0 is done with its task, and waits for the next one" in hang.summary
    assert "a Future keeps its exception" in hang.advice and "order" not in hang.summary


def test_thread_that_still_works_is_only_held_up() -> None:
    hang = hang_of({0: ALL_REDUCE, 1: AWAITS, 2: AWAITS}, IN_TURN, {0: WRITES, 1: SAVES, 2: SAVES})

    assert (hang.id, hang.cause, hang.ranks) == ("held-up", "call_of_a_thread_missing", (0,))
    assert "thread snapshot of rank 0 is in Snapshots._write (/app/snapshot.py:31)" in hang.summary


def test_main_threads_that_make_both_calls_still_use_groups_in_opposite_order() -> None:
    hang = hang_of({0: ALL_REDUCE, 1: CLOSES, 2: CLOSES}, IN_TURN, {0: (*SAVES[:1], POOL)})

    assert hang.cause == "groups_in_opposite_order"
