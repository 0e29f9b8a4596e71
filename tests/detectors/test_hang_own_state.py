"""What a rank's own threads, children and limits say of why it does not come; and what of them is no reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diag.detectors.hang.rank_wait import cause_of, classify_rank
from diag.model.observations import ThreadStack
from diag.model.observations.waits import Party
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_children import JOINS
from tests.detectors.test_hang_communicators import FETCHES, begin, stand, told_of, with_log
from tests.detectors.test_hang_unnamed_waits import (
    CHILD,
    IN_QUEUE,
    LOCK,
    NAP,
    OF_CHILDREN,
    READER,
    SIBLING,
    STRANGER,
    child,
    told,
    waits,
)
from tests.detectors.test_hang_unnamed_waits import thread as waiting_thread
from tests.detectors.test_limits import limits
from tests.facts import ALL_REDUCE, DATA, SLEEP, TRAIN, WORKER, Story, frames, pid_of, process, stack, tree

OWN = ThreadStack(7001, "saver", frames("run threading.py:975", "flush /app/io.py:8", "write /app/io.py:20"))
BAR = ThreadStack(
    7002,
    "bar",
    frames("run threading.py:975", "watch /app/bar.py:8", "run site-packages/tqdm/_monitor.py:69"),
)


def beside(lines: Sequence[str], *threads: ThreadStack) -> Story:
    """Rank 0 waits in all_reduce, rank 1 on a futex at `lines`, beside these threads."""
    story = steady()
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, wchan="futex_wait_queue"), stack(1, story.now, lines, *threads))
        story.wait(2.0)
    return story


# --- threads


@pytest.mark.parametrize(
    ("lines", "thread", "cause"),
    [
        (SLEEP, OWN, "threads_wait_for_each_other"),
        (SLEEP, BAR, "not_in_collective"),  # which is idle there by intent
        (IN_QUEUE, OWN, "lock_not_released"),  # a queue waits for who comes, not for who holds a lock
    ],
)
def test_threads_are_said_to_wait_for_each_other_only_where_both_may_hold_a_lock(
    lines: Sequence[str], thread: ThreadStack, cause: str
) -> None:
    assert beside(lines, thread).hang().cause == cause


# --- children

WITH_TIMEOUT = (
    *TRAIN,
    "join python3.11/multiprocessing/process.py:149",
    "wait python3.11/multiprocessing/popen_fork.py:40",
    "wait python3.11/multiprocessing/connection.py:947",
    "select python3.11/selectors.py:415",
)


@pytest.mark.parametrize("lines", [JOINS, WITH_TIMEOUT], ids=["join", "join with a timeout"])
def test_child_that_was_forked_with_a_lock_held_is_named_however_it_is_joined(lines: Sequence[str]) -> None:
    story = steady()
    for _ in range(20):
        forked = process(5001, ppid=pid_of(1), wchan="futex_wait_queue")
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, forked), stack(1, story.now, lines))
        story.tell(stack(1, story.now, ("main /app/crop.py:12", "log /app/crop.py:20"), pid=5001))
        story.wait(2.0)

    assert (story.hang().klass, story.hang().cause) == ("lock_deadlock", "child_waits_for_lock")


@pytest.mark.parametrize(
    ("state", "cause"), [("R", "dataloader_worker_busy"), ("S", "dataloader_worker_blocked")]
)
def test_data_worker_is_busy_only_where_it_is_seen_running_not_where_it_takes_a_little_cpu(
    state: str, cause: str
) -> None:
    story = steady()
    for number in range(5):
        worker = process(5001, comm="pt_data_worker", state=state, cpu=0.5 * number, ppid=pid_of(1))
        story.tell(
            tree(1, story.now, worker), stack(1, story.now, DATA), stack(1, story.now, WORKER, pid=5001)
        )
        story.wait(2.0)
    rank = story.engine.job.ranks[1]

    assert cause_of(rank, classify_rank(rank)) == (cause, 5001)


@pytest.mark.parametrize(("pids", "more"), [((CHILD, SIBLING), False), ((CHILD, SIBLING, STRANGER), True)])
def test_two_children_at_work_are_named_and_of_more_their_number(pids: Sequence[int], more: bool) -> None:
    below = [child(pid, NAP, 0.02) for pid in pids]
    results = replace(OF_CHILDREN, others=tuple(map(Party, pids)))
    hang = told(steady(), waits(LOCK, waiting_thread(READER, results, "results"), below=below))

    assert hang.cause == "helpers_at_work"
    assert hang.summary.count("in describe (/app/features.py:10)") == 2
    assert ("describe (/app/features.py:10) and 1 more" in hang.summary) == more


# --- limits


@pytest.mark.parametrize(("files", "klass"), [(1010, "resource_wait"), (900, "peer_not_joined")])
def test_rank_that_has_used_up_its_open_files_is_short_of_them(files: int, klass: str) -> None:
    story = steady()
    story.tell(limits(1, nofile=1024))
    story.still(60.0, {0: ALL_REDUCE, 1: SLEEP}, trees={1: {"open_files": files}})

    assert (story.hang().klass, story.hang().ranks) == (klass, (1,))


# --- communicators


@pytest.mark.parametrize(("seconds", "said"), [(12, True), (40, False)])
def test_communicator_that_was_begun_long_before_a_ranks_stack_was_seen_was_given_up(
    seconds: int, said: bool
) -> None:
    story = with_log(steady(4), *range(4))
    begin(story, 0, 1, 2, size=4)
    for number in range(seconds // 2):
        story.tell(*(tree(rank, story.now, cpu=5.0 + number) for rank in range(4)))
        story.tell(
            *(stack(rank, story.now, (*TRAIN, f"forward /app/model.py:{number}")) for rank in range(4))
        )
        story.wait(2.0)
    stand(story, 70.0, {3: FETCHES})

    assert (told_of(story.hang())[2] == "communicators_wait_for_each_other") == said


# --- as shown


@pytest.mark.parametrize(("wchan", "shown"), [("", ""), ("pipe_read", ", wchan pipe_read")])
def test_wait_channel_is_shown_where_the_kernel_tells_it(wchan: str, shown: str) -> None:
    story = steady()
    story.still(60.0, {0: ALL_REDUCE, 1: SLEEP}, trees={1: {"wchan": wchan}})

    (line,) = [item.excerpt for item in story.hang().evidence if item.kind == "proc"]
    assert line == f"pid {pid_of(1)} state S{shown}, 0 % CPU"
