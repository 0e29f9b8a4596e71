"""A lock, a condition and an event loop name nobody: who is left that could end such a wait is known from what all
other threads and children wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diag.model import Finding
from diag.model.observations import ThreadStack
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import started, steady
from tests.facts import ALL_REDUCE, TRAIN, Story, frames, pid_of, process, stack, tree

RANK = pid_of(1)
READER, HANDLER, CHILD, SIBLING, STRANGER = 90_001, 90_002, 90_003, 90_004, 90_005
IN_QUEUE = (*TRAIN, "get python3.11/queue.py:171", "wait python3.11/threading.py:327")
IN_LOCK = (*TRAIN, "refresh /app/cache.py:31")
IN_LOOP = (*TRAIN, "run_forever python3.11/asyncio/base_events.py:607", "select python3.11/selectors.py:468")
LOCK = Wait("condition", "futex", of_python=True)
OF_CHILDREN = Wait("pipe_read", "read", 13, "pipe:[7]", others=(Party(CHILD), Party(SIBLING)))
ASKS = Wait("pipe_read", "read", 10, "pipe:[8]", others=(Party(RANK),))
SILENT = Wait("tcp_receive", "recvfrom", 9, local="10.0.0.2:40000", peer="10.0.0.5:443", silent_seconds=70.0)
OWN_WAKE_UP = Wait("unix_receive", "", 13, dead_end="only_self")
NAP = Wait("sleep", "clock_nanosleep", seconds=0.2, timed=True)


def thread(tid: int, wait: Wait, name: str = "python", cpu: float = 0.0) -> ThreadWait:
    return ThreadWait(tid, name, "S", "", wait, cpu_ratio=cpu, same=cpu < 0.05)


def child(pid: int, wait: Wait, cpu: float = 0.0, *, limit: int | None = None) -> ProcessWaits:
    return ProcessWaits(pid, RANK, f"work {pid}", (thread(pid, wait, cpu=cpu),), cpu_limit_seconds=limit)


def waits(main: Wait, *threads: ThreadWait, below: Sequence[ProcessWaits] = ()) -> WaitsRead:
    own = ProcessWaits(RANK, 1, "python train.py", (thread(RANK, main, "MainThread"), *threads))
    return WaitsRead(1, RANK, 0.5, (own, *below))


def told(story: Story, read: WaitsRead, lines: Sequence[str] = IN_QUEUE, seconds: float = 40.0) -> Finding:
    """Rank 0 waits in all_reduce, rank 1 at `lines`; its other threads that are in `read` are Python's."""
    story.tell(tree(1, story.now, *[process(one.pid, ppid=RANK) for one in read.processes[1:] if one.job]))
    end = story.now + seconds
    while story.now < end:
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        children = [process(one.pid, ppid=RANK) for one in read.processes[1:] if one.job]
        others = [
            ThreadStack(one.tid, one.name, frames("run /app/pool.py:9"))
            for one in read.processes[0].threads[1:]
        ]
        story.tell(tree(1, story.now, *children), stack(1, story.now, lines, *others), read)
        for one in read.processes[1:]:
            if one.job:
                story.tell(stack(1, story.now, ("describe /app/features.py:10",), pid=one.pid))
        story.wait(2.0)
    return story.hang()


def shown(finding: Finding, text: str) -> bool:
    return any(text in item.excerpt for item in finding.evidence)


# -- one alone could end it -----------------------------------------------------------------------------------


def test_wait_goes_on_through_the_only_thread_that_waits_for_somebody_outside() -> None:
    """A queue that is filled ahead by a thread, whose peer is silent."""
    hang = told(started(), waits(LOCK, thread(READER, SILENT, "read_ahead"), thread(HANDLER, LOCK, "log")))

    assert (hang.klass, hang.cause, hang.ranks, hang.waiting_ranks) == (
        "peer_not_joined",
        "peer_is_silent",
        (1,),
        (0,),
    )
    assert (
        "its main thread waits on a lock or condition, probably for thread read_ahead (tid 90001), which waits for "
        "data from 10.0.0.5:443"
    ) in hang.summary
    assert "10.0.0.5:443" in hang.advice and "give the call a timeout" in hang.advice
    assert shown(hang, "thread read_ahead of pid 1001: run (/app/pool.py:9)")


def test_wait_goes_on_through_a_pool_to_the_child_that_is_held_up() -> None:
    handlers = (thread(READER, OF_CHILDREN, "results"), thread(HANDLER, LOCK, "tasks"))
    hang = told(started(), waits(LOCK, *handlers, below=(child(CHILD, ASKS), child(SIBLING, SILENT))))

    assert hang.cause == "peer_is_silent"
    assert (
        "probably for child pid 90004 (`work 90004`), which waits for data from 10.0.0.5:443" in hang.summary
    )


def test_child_that_waits_for_a_lock_of_its_own_is_shown() -> None:
    read = waits(LOCK, thread(READER, OF_CHILDREN), below=(child(CHILD, ASKS), child(SIBLING, LOCK)))
    hang = told(started(), read)

    assert hang.cause == "lock_not_released"
    assert "probably for child pid 90004 (`work 90004`), which waits on a lock or condition" in hang.summary


def test_thread_that_sleeps_is_not_said_to_be_the_rank() -> None:
    read = waits(LOCK, thread(READER, OF_CHILDREN), below=(child(CHILD, ASKS), child(SIBLING, NAP)))
    hang = told(started(), read)

    assert hang.cause == "sleeps"
    assert hang.advice.startswith("Process 90004 (`work 90004`) sleeps at the line shown")


def test_lock_in_the_ranks_own_code_is_known_by_the_interpreters_memory() -> None:
    read = waits(LOCK, thread(READER, SILENT, "read_ahead"))

    assert told(started(), read, IN_LOCK).cause == "peer_is_silent"


def test_condition_of_c_code_is_not_said_to_wait_for_a_thread_of_python() -> None:
    read = waits(replace(LOCK, of_python=False), thread(READER, SILENT, "read_ahead"))

    assert told(started(), read, IN_LOCK).cause == "not_in_collective"


def test_wait_that_only_probably_leads_to_a_dead_end_proves_no_hang() -> None:
    stopped = Wait("stopped", dead_end="stopped")
    hang = told(
        steady(),
        waits(LOCK, thread(READER, OF_CHILDREN), below=(child(CHILD, stopped), child(SIBLING, ASKS))),
    )

    assert (hang.id, hang.cause, hang.grounds) == ("held-up", "process_stopped", ())


def test_answer_of_a_server_of_many_threads_is_not_said_to_be_due_from_its_main_one() -> None:
    """That one only waits for the ranks that it started."""
    waiting = Wait(
        "tcp_receive", "recvfrom", 9, peer="127.0.0.1:34089", others=(Party(STRANGER, 0, "launch.py"),)
    )
    main = thread(STRANGER, Wait("child", "wait4", others=(Party(RANK),)))
    launcher = ProcessWaits(STRANGER, 1, "launch.py", (main, thread(STRANGER + 1, LOCK)), job=False)
    hang = told(started(), waits(LOCK, thread(READER, waiting, "read_ahead"), below=(launcher,)))

    assert hang.cause == "process_is_silent"
    assert "which waits for data from 127.0.0.1:34089, pid 90005 (`launch.py`) (fd 9)" in hang.summary
    assert "to end" not in hang.summary
    assert hang.advice.startswith("Rank 1 waits for an answer of process 90005 (`launch.py`)")


# -- several, or some that are at work ------------------------------------------------------------------------


def test_threads_of_a_pool_that_all_wait_for_one_process_wait_for_that_process() -> None:
    asked = replace(SILENT, peer="127.0.0.1:45761", others=(Party(STRANGER, command="python service.py"),))
    other = replace(asked, local="127.0.0.1:40001")
    hang = told(started(), waits(LOCK, thread(READER, asked, "pool_0"), thread(HANDLER, other, "pool_1")))

    assert hang.cause == "process_is_silent"
    assert "probably for thread pool_0 (tid 90001), which waits for data from 127.0.0.1:45761" in hang.summary
    assert "python service.py" in hang.advice


def test_two_who_could_end_it_are_both_named() -> None:
    other = replace(SILENT, peer="10.0.0.6:80")
    hang = told(started(), waits(LOCK, thread(READER, SILENT, "reader"), thread(HANDLER, other, "uploader")))

    assert (hang.klass, hang.cause) == ("lock_deadlock", "lock_not_released")
    assert "may come from thread reader (tid 90001), which waits for data from 10.0.0.5:443" in hang.summary
    assert "or thread uploader (tid 90002), which waits for data from 10.0.0.6:80" in hang.summary
    assert shown(hang, "thread uploader (tid 90002): run (/app/pool.py:9)")


def test_connection_that_was_silent_long_before_is_not_what_is_waited_for() -> None:
    """As that of a tracker's service, which its thread always reads from."""
    tracker = thread(HANDLER, replace(SILENT, peer="127.0.0.1:9", silent_seconds=4000.0), "tracker")
    hang = told(started(), waits(LOCK, thread(READER, SILENT, "reader"), tracker))

    assert hang.cause == "peer_is_silent" and "tracker" not in hang.summary


@pytest.mark.parametrize("rpc", [False, True])
def test_threads_for_calls_of_other_ranks_may_set_what_is_waited_for(rpc: bool) -> None:
    handler = "_run_function torch/distributed/rpc/internal.py:215" if rpc else "_run_function /app/pool.py:9"
    story = started()
    for _ in range(25):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        served = ThreadStack(READER, "pt_thread_pool", frames(handler, "push /app/ps.py:40"))
        story.tell(tree(1, story.now), stack(1, story.now, IN_QUEUE, served))
        story.tell(waits(LOCK, thread(READER, LOCK, "pt_thread_pool")))
        story.wait(2.0)

    assert (story.hang().cause == "lock_not_released") is rpc


def test_children_that_sleep_and_compute_in_turns_are_at_work() -> None:
    below = (child(CHILD, NAP, 0.02), child(SIBLING, NAP, 0.0))
    story = steady()
    hang = told(story, waits(LOCK, thread(READER, OF_CHILDREN, "results"), below=below), seconds=700.0)

    assert (hang.id, hang.severity.value) == ("held-up", "warning"), (
        "who works is given longer than five minutes"
    )
    assert (hang.klass, hang.cause) == ("peer_not_joined", "helpers_at_work")
    assert (
        "its 2 child processes work: pid 90003 sleeps (0.2 s left) in describe (/app/features.py:10)"
        in hang.summary
    )
    assert "lock" not in hang.advice
    assert shown(hang, "child pid 90004 (`work 90004`) sleeps (0.2 s left)")


def test_thread_that_computes_is_at_work() -> None:
    hang = told(started(), waits(LOCK, thread(READER, Wait("running"), "index", cpu=0.9)))

    assert hang.cause == "helpers_at_work"
    assert "its thread works: thread index (tid 90001) computes (90 % of a core)" in hang.summary


def test_child_that_nobody_waits_for_is_not_at_work_for_the_rank() -> None:
    """A monitor takes a little CPU too."""
    hang = told(started(), waits(LOCK, below=(child(CHILD, NAP, 0.02),)))

    assert hang.cause != "helpers_at_work"


# -- nobody is left -------------------------------------------------------------------------------------------


def test_lock_that_no_other_thread_could_release_may_be_the_threads_own() -> None:
    hang = told(started(), waits(LOCK, thread(HANDLER, LOCK, "tasks")), IN_LOCK)

    assert (hang.klass, hang.cause) == ("lock_deadlock", "nobody_releases_lock")
    assert "and so does thread tasks (tid 90002), which waits on a lock" in hang.summary
    assert "taken twice" in hang.advice


@pytest.mark.parametrize(
    ("main", "other"),
    [
        (LOCK, NAP),  # it looks again
        (replace(LOCK, timed=True), LOCK),  # the rank does
        (LOCK, Wait("unreadable")),
        (LOCK, Wait("poll", "epoll_wait", 5)),  # nobody saw what it watches
    ],
)
def test_where_somebody_might_end_it_nobody_is_not_claimed(main: Wait, other: Wait) -> None:
    assert told(started(), waits(main, thread(READER, other, "w"))).cause == "lock_not_released"


def test_without_stacks_of_its_threads_nothing_is_claimed() -> None:
    story, read = started(), waits(LOCK, thread(READER, SILENT))
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), replace(stack(1, story.now, IN_QUEUE), threads=()), read)
        story.wait(2.0)

    assert all(one.cause not in ("nobody_releases_lock", "peer_is_silent") for one in story.findings())


def test_children_that_all_wait_for_work_have_lost_the_task() -> None:
    """A pool starts another process for one that was killed, and gives it no task again."""
    story = started()
    for pid in range(91_001, 91_005):
        story.tell(tree(1, story.now, process(pid, ppid=RANK)))
        story.wait(6.0)
    at_the_lock = Wait("semaphore", "futex", path="/dev/shm/sem.x")
    below = (child(CHILD, ASKS, limit=2), child(SIBLING, at_the_lock, limit=2))
    handlers = (thread(READER, OF_CHILDREN, "results"), thread(HANDLER, LOCK, "tasks"))
    hang = told(story, waits(LOCK, *handlers, below=below))

    assert (hang.klass, hang.cause) == ("peer_not_joined", "children_wait_for_work")
    assert "its 2 child processes wait for work; 4 others have ended, the last" in hang.summary
    assert "before it stopped moving" in hang.summary
    assert "the kernel ends each after 2 s of CPU time (RLIMIT_CPU)" in hang.summary
    assert shown(hang, "child pid 90004 (`work 90004`) waits for a lock between processes")


# -- event loops ----------------------------------------------------------------------------------------------


def test_event_loop_that_only_its_own_wake_up_could_wake_is_empty() -> None:
    server = child(CHILD, Wait("poll", "epoll_wait", 3, watched=(OWN_WAKE_UP, Wait("tcp_accept", "", 6))))
    loop = Wait("poll", "epoll_wait", 12, watched=(OWN_WAKE_UP,))
    hang = told(started(), waits(loop, below=(server,)), IN_LOOP)

    assert hang.cause == "event_loop_is_empty"
    assert "waits for nothing but its own wake-up (epoll_wait of fd 12)" in hang.summary


@pytest.mark.parametrize(
    "loop",
    [
        Wait("poll", "epoll_wait", 12, watched=(OWN_WAKE_UP,), seconds=1.0, timed=True),  # a timer is set
        Wait("poll", "epoll_wait", 12, watched=(OWN_WAKE_UP, Wait("tcp_accept", "", 6))),  # it serves
        Wait("poll", "epoll_wait", 12, watched=(OWN_WAKE_UP, Wait("other", path="anon_inode:inotify"))),
        Wait("poll", "epoll_wait", 12),
    ],
)
def test_event_loop_that_something_could_wake_is_not_empty(loop: Wait) -> None:
    assert told(started(), waits(loop), IN_LOOP).cause == "call_does_not_return"


def test_event_loop_waits_for_the_one_connection_that_it_has() -> None:
    loop = Wait("poll", "epoll_wait", 12, watched=(OWN_WAKE_UP, SILENT))
    hang = told(started(), waits(loop), IN_LOOP)

    assert hang.cause == "peer_is_silent"
    assert "its main thread waits for data from 10.0.0.5:443" in hang.summary


def test_poll_of_children_that_all_wait_for_work_is_no_empty_loop() -> None:
    """As that of multiprocessing.connection.wait."""
    poll = Wait("poll", "poll", watched=(OF_CHILDREN, Wait("pipe_read", "", 14, others=(Party(CHILD),))))
    hang = told(started(), waits(poll, below=(child(CHILD, ASKS), child(SIBLING, ASKS))), IN_LOCK)

    assert hang.cause == "children_wait_for_work"


def test_event_loop_of_several_connections_is_said_to_wait_for_any_of_them() -> None:
    loop = Wait("poll", "epoll_wait", 12, watched=(OWN_WAKE_UP, SILENT, replace(SILENT, peer="10.0.0.6:443")))
    hang = told(started(), waits(loop), IN_LOOP)

    assert hang.cause == "call_does_not_return"
    assert "may come from" not in hang.summary
    assert shown(hang, "any of 3 descriptors (unix receive, 10.0.0.5:443, 10.0.0.6:443)")
