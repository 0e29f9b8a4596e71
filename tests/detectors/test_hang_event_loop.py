"""What the tasks of an event loop wait for: said where they are known, and claimed to be all where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diag.model import Finding
from diag.model.observations import AsyncTask, VariablesRead
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import started
from tests.facts import ALL_REDUCE, TRAIN, frames, pid_of, stack, tree

RANK = pid_of(1)
LIB = "/usr/lib/python3.11"
IN_LOOP = (
    *TRAIN,
    f"BaseEventLoop.run_forever {LIB}/asyncio/base_events.py:607",
    f"BaseEventLoop._run_once {LIB}/asyncio/base_events.py:1884",
    f"EpollSelector.select {LIB}/selectors.py:468",
)
OWN_WAKE_UP = Wait("unix_receive", "", 5, dead_end="only_self")
EMPTY = Wait("poll", "epoll_wait", 12, watched=(OWN_WAKE_UP,))
TIMER = replace(EMPTY, seconds=1.0, timed=True)
PERMIT = AsyncTask(
    frames("Client.call /app/tools.py:27", f"Semaphore.acquire {LIB}/asyncio/locks.py:387"), "future"
)
ITEM = AsyncTask(frames("consume /app/feed.py:9", f"Queue.get {LIB}/asyncio/queues.py:158"), "future")
ANSWER = AsyncTask(
    frames("Client.ask /app/tools.py:18", f"StreamReader.readline {LIB}/asyncio/streams.py:568"), "future"
)
GATHERS = AsyncTask(frames("rollout /app/train.py:49"), "tasks")


def told(tasks: Sequence[AsyncTask], wait: Wait = EMPTY, left_out: int = 0) -> Finding:
    story = started()
    for _ in range(20):
        main = ThreadWait(RANK, "MainThread", "S", "", wait, cpu_ratio=0.0, same=True)
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, IN_LOOP))
        story.tell(WaitsRead(1, RANK, 0.5, (ProcessWaits(RANK, 1, "python train.py", (main,)),)))
        story.tell(VariablesRead(1, RANK, (), tuple(tasks), (), left_out))
        story.wait(2.0)
    return story.hang()


def test_tasks_that_all_wait_for_a_semaphore_have_lost_its_places() -> None:
    hang = told([GATHERS, PERMIT, PERMIT, PERMIT])

    assert (hang.id, hang.cause, hang.ranks) == ("held-up", "tasks_wait_for_permits", (1,))
    assert "of its 4 tasks 3 wait in Semaphore.acquire, in Client.call (/app/tools.py:27)" in hang.summary
    assert "`async with`" in hang.advice
    assert any("3 tasks: Semaphore.acquire" in one.excerpt for one in hang.evidence)


def test_tasks_that_wait_for_each_other_are_named_by_what_they_wait_in() -> None:
    hang = told([GATHERS, ITEM, PERMIT])

    assert hang.cause == "tasks_wait_for_each_other"
    assert "Queue.get, in consume (/app/feed.py:9)" in hang.summary


def test_task_that_ended_with_an_exception_is_named_with_it() -> None:
    hang = told([GATHERS, ITEM, ITEM, AsyncTask((), "", "produce", "<ValueError: row 805>")])

    assert hang.cause == "tasks_wait_for_each_other"
    assert "of its 3 tasks 2 wait in Queue.get" in hang.summary
    assert "its task produce ended with ValueError: row 805" in hang.summary


def test_of_tasks_that_were_not_read_it_is_not_known_what_they_wait_for() -> None:
    hang = told([PERMIT] * 64, left_out=3)

    assert hang.cause == "event_loop_is_empty" and "of its 67 tasks 64 wait in" in hang.summary


def test_of_a_loop_that_a_timer_wakes_only_the_tasks_are_told() -> None:
    hang = told([GATHERS, PERMIT, PERMIT], TIMER)

    assert hang.cause == "call_does_not_return"
    assert "of its 3 tasks 2 wait in Semaphore.acquire, in Client.call" in hang.summary


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (
            [GATHERS, PERMIT, ANSWER],
            "1 waits in StreamReader.readline, in Client.ask",
        ),  # what that one waits for may come
        ([GATHERS], ""),
        ([], ""),
    ],
)
def test_where_not_all_tasks_wait_so_it_is_not_claimed(tasks: Sequence[AsyncTask], words: str) -> None:
    hang = told(tasks)

    assert hang.cause == "event_loop_is_empty"
    assert words in hang.summary and ("task" in hang.summary) is bool(words)
