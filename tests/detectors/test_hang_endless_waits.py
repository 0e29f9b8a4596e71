"""Why a wait of Python's never ends: each reason where it is one, and silence where the same wait may end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from diag.model import Finding
from diag.model.observations import (
    Block,
    FrameVariables,
    ProgramPlace,
    ProgramRead,
    Statement,
    ThreadStack,
    Variable,
    VariablesRead,
)
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import started
from tests.facts import ALL_REDUCE, TRAIN, Story, frames, pid_of, process, stack, tree

RANK = pid_of(1)
ONE, TWO, CHILD, SIBLING, PEER = 90_001, 90_002, 90_003, 90_004, 90_005
LIB = "/usr/lib/python3.11"
IN_CONDITION = f"Condition.wait {LIB}/threading.py:355"
GET = (f"Queue.get {LIB}/queue.py:171", IN_CONDITION)
PUT = (f"Queue.put {LIB}/queue.py:140", IN_CONDITION)
JOIN = (f"Queue.join {LIB}/queue.py:90", IN_CONDITION)
RESULT = (f"Future.result {LIB}/concurrent/futures/_base.py:451", IN_CONDITION)
EVENT = (f"Event.wait {LIB}/threading.py:622", IN_CONDITION)
BARRIER = (f"Barrier.wait {LIB}/threading.py:666", IN_CONDITION)
PROCESS_BARRIER = (
    f"Barrier.wait {LIB}/threading.py:686",
    f"Barrier._wait {LIB}/threading.py:725",
    f"Condition.wait_for {LIB}/multiprocessing/synchronize.py:313",
    f"Condition.wait {LIB}/multiprocessing/synchronize.py:261",
)
PERMIT = (f"Semaphore.acquire {LIB}/threading.py:474", IN_CONDITION)
TASK = (
    f"_worker {LIB}/concurrent/futures/thread.py:83",
    f"_WorkItem.run {LIB}/concurrent/futures/thread.py:58",
)
IDLE = (f"_worker {LIB}/concurrent/futures/thread.py:81",)
MP_GET = f"Queue.get {LIB}/multiprocessing/queues.py:103"
MP_LOCK = (
    f"Queue.get {LIB}/multiprocessing/queues.py:102",
    f"SemLock.__enter__ {LIB}/multiprocessing/synchronize.py:95",
)
FEED = (
    f"Queue._feed {LIB}/multiprocessing/queues.py:270",
    f"Connection._send {LIB}/multiprocessing/connection.py:384",
)
LOCK = Wait("condition", "futex", of_python=True)
TIMED = replace(LOCK, timed=True)
SEMAPHORE = Wait("semaphore", "futex", path="/dev/shm/sem.ab (deleted)")
SILENT = Wait("tcp_receive", "recvfrom", 9, local="10.0.0.2:40000", peer="10.0.0.5:443", silent_seconds=70.0)


@dataclass
class Thread:
    tid: int
    name: str
    lines: Sequence[str]
    wait: Wait = LOCK
    object: int = 0

    def stack(self) -> ThreadStack:
        found = frames(*self.lines)
        names = [one.function for one in found if one.function.startswith("Queue.")]
        objects = ((names[0], self.object),) if self.object and names else ()
        return ThreadStack(self.tid, self.name, found, objects=objects)

    def read(self) -> ThreadWait:
        return ThreadWait(self.tid, self.name, "S", "", self.wait, cpu_ratio=0.0, same=True)


@dataclass
class Process:
    pid: int
    threads: Sequence[Thread]
    parent: int = RANK
    forked: bool = True
    job: bool = True

    def read(self) -> ProcessWaits:
        threads = tuple(replace(one.read(), same=self.job) for one in self.threads)  # a stranger is read once
        return ProcessWaits(self.pid, self.parent, f"work {self.pid}", threads, self.job, forked=self.forked)


@dataclass
class Job:
    """Rank 0 waits in all_reduce; rank 1 has these threads and processes."""

    main: Sequence[str]
    wait: Wait = LOCK
    threads: Sequence[Thread] = ()
    processes: Sequence[Process] = ()
    ended: tuple[int, ...] = ()
    object: int = 0
    text: Sequence[ProgramPlace] = field(default_factory=list)
    statements: Sequence[Statement] = ()
    left: Sequence[str] = ()  # names of threads that were there before
    kept: Mapping[str, str] = field(default_factory=dict)  # variables of the main thread's own line

    def begun(self, story: Story) -> None:
        """What more is told at the beginning."""

    def told(self) -> Finding:
        story = started()
        self.begun(story)
        below = [
            process(one.pid, ppid=one.parent, wchan="futex_do_wait") for one in self.processes if one.job
        ]
        gone = [process(pid, ppid=RANK) for pid in self.ended]
        story.tell(tree(1, story.now, *below, *gone))
        story.wait(2.0)
        own = [Thread(RANK, "MainThread", self.main, self.wait, self.object), *self.threads]
        if self.left:
            gone = (ThreadStack(99_000 + at, name, frames(*GET)) for at, name in enumerate(self.left))
            sample = stack(1, story.now, self.main)
            main = replace(own[0].stack(), name="MainThread")
            story.tell(replace(sample, threads=(main, *(one.stack() for one in self.threads), *gone)))
        for at in range(20):
            story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE), tree(1, story.now, *below))
            main, *others = (one.stack() for one in own)
            sample = stack(1, story.now, self.main, *others)
            story.tell(replace(sample, threads=(replace(main, name="MainThread"), *others)))
            for one in self.processes:
                first, *more = (thread.stack() for thread in one.threads)
                told = stack(1, story.now, one.threads[0].lines, *more, pid=one.pid)
                story.tell(replace(told, threads=(first, *more)))
            rank = ProcessWaits(RANK, 1, "python train.py", tuple(one.read() for one in own))
            story.tell(WaitsRead(1, RANK, 0.5, (rank, *(one.read() for one in self.processes))))
            if at == 2 and self.kept:
                own_line = frames(*self.main)[len(TRAIN)]
                values = tuple(Variable(name, text) for name, text in self.kept.items())
                place = own_line.function, own_line.file, own_line.line
                story.tell(VariablesRead(1, RANK, (FrameVariables(RANK, *place, False, values),)))
            if at == 2 and self.text:
                story.tell(ProgramRead(1, RANK, tuple(self.text), tuple(self.statements)))
            story.wait(2.0)
        return story.hang()


def place(line: str, text: str, *inside: str) -> ProgramPlace:
    function, _, where = line.partition(" ")
    file, _, number = where.rpartition(":")
    around = tuple(Block(int(number) - 1, int(number) + 3, "with", each) for each in inside)
    return ProgramPlace(file, int(number), function, text, around, ())


# -- pools ----------------------------------------------------------------------------------------------------

ENCODE = "encode /app/pack.py:23"
INNER = (*TASK, ENCODE, *RESULT)
OUTER = (*TRAIN, "batches /app/pack.py:40", *RESULT)


def test_pool_whose_tasks_all_wait_for_tasks_waits_for_itself() -> None:
    hang = Job(OUTER, threads=[Thread(ONE, "pack_0", INNER), Thread(TWO, "pack_1", INNER)]).told()

    assert (hang.id, hang.klass, hang.cause, hang.ranks) == (
        "hang",
        "lock_deadlock",
        "pool_waits_for_itself",
        (1,),
    )
    assert (
        "all 2 threads of the pool are in a task that waits for other tasks (Future.result, in encode"
        in hang.summary
    )
    assert "must not wait for another task of the same pool" in hang.advice


def test_pool_of_one_thread_waits_for_itself() -> None:
    hang = Job(OUTER, threads=[Thread(ONE, "pack_0", INNER)]).told()

    assert "the only thread of the pool is in a task" in hang.summary


@pytest.mark.parametrize(
    "other",
    [
        Thread(TWO, "pack_1", IDLE),  # would take the next task
        Thread(TWO, "pack_1", (*TASK, ENCODE, "fetch /app/net.py:3"), SILENT),  # at work
        Thread(TWO, "pack_1", INNER, TIMED),
        Thread(TWO, "pack_1", (*TASK, ENCODE, *GET)),
    ],
)
def test_pool_with_a_thread_that_is_not_in_such_a_task_does_not(other: Thread) -> None:
    found = Job(OUTER, threads=[Thread(ONE, "pack_0", INNER), other]).told()

    if other.wait is TIMED:  # looks up at times, and waits for the same
        return
    assert found.cause != "pool_waits_for_itself"


LOOP = (
    f"BaseEventLoop.run_forever {LIB}/asyncio/base_events.py:607",
    f"BaseEventLoop._run_once {LIB}/asyncio/base_events.py:1922",
)
CALLED = (*LOOP, "fetch /app/net.py:12", *RESULT)
SELECTS = (*LOOP, f"EpollSelector.select {LIB}/selectors.py:468")


@pytest.mark.parametrize(
    ("thread", "wait", "blocked"),
    [(CALLED, LOCK, True), (SELECTS, LOCK, False), (CALLED, TIMED, False)],
)
def test_event_loop_that_has_called_what_blocks_is_named(
    thread: tuple[str, ...], wait: Wait, blocked: bool
) -> None:
    found = Job(OUTER, threads=[Thread(ONE, "loop", thread, wait)]).told()

    if wait is LOCK:
        assert (found.cause == "event_loop_is_blocked") is blocked
    if blocked:
        assert (
            f"thread loop (tid {ONE}) runs an event loop, which has called Future.result, in fetch"
            in found.summary
        )
    assert Job((*TRAIN, *CALLED)).told().cause == "event_loop_is_blocked"


# -- queues of threads ------------------------------------------------------------------------------------------

FLUSH = (*TRAIN, "flush /app/notify.py:19", *JOIN)
WORK = ("_work /app/notify.py:23", *GET)


@pytest.mark.parametrize("number", [0, 7])
def test_queue_that_is_joined_while_its_takers_wait_for_more_lacks_task_done(number: int) -> None:
    hang = Job(FLUSH, threads=[Thread(ONE, "notifier", WORK, object=number)], object=number).told()

    assert (hang.id, hang.cause) == ("hang", "task_done_missing")
    assert (
        f"nothing is left in that queue: thread notifier (tid {ONE}) waits in Queue.get, in _work (/app/notify.py:23)"
        in (hang.summary)
    )
    assert "task_done into a finally block" in hang.advice


def test_taker_of_another_queue_has_nothing_to_do_with_the_one_that_is_joined() -> None:
    found = Job(FLUSH, threads=[Thread(ONE, "logger", WORK, object=8)], object=7).told()

    assert (found.id, found.cause) == ("held-up", "nobody_takes")
    assert "no thread is left that takes from that queue" in found.summary
    assert "before the join" in found.advice and "give the put a timeout" not in found.advice


def test_queue_that_is_joined_while_a_thread_works_is_none_that_lacks_task_done() -> None:
    found = Job(
        FLUSH, threads=[Thread(ONE, "notifier", ("_work /app/notify.py:30", "post /app/net.py:2"), SILENT)]
    ).told()

    assert found.cause == "peer_is_silent"


@pytest.mark.parametrize(
    ("lines", "cause", "said"),
    [
        (GET, "nobody_puts", "whoever does has ended"),
        (PUT, "nobody_takes", "give the put a timeout"),
        (EVENT, "nobody_sets", "set this event"),
        (BARRIER, "barrier_is_short", "No other thread of the process"),
        (PROCESS_BARRIER, "process_barrier_is_short", "one of its processes has ended"),
        (PERMIT, "permits_are_gone", "it was not released"),
        (RESULT, "nobody_gives_result", "was never submitted"),
    ],
)
def test_what_nobody_is_left_to_give_has_advice_of_its_own(
    lines: tuple[str, ...], cause: str, said: str
) -> None:
    waits = (*TRAIN, "next /app/feed.py:9", *lines)
    found = Job(waits, threads=[Thread(ONE, "log", ("run /app/log.py:4", *GET))]).told()

    assert (found.id, found.klass, found.cause) == ("held-up", "lock_deadlock", cause)
    assert said in found.advice
    assert (
        Job(waits, threads=[Thread(ONE, "log", ("run /app/log.py:4",), SILENT)]).told().cause
        == "peer_is_silent"
    )


def test_parties_that_came_to_a_barrier_are_counted() -> None:
    waits = (*TRAIN, "meet /app/feed.py:9", *BARRIER)
    found = Job(waits, threads=[Thread(ONE, "b", ("run /app/feed.py:4", *BARRIER))]).told()

    assert "2 threads wait at that barrier" in found.summary


# A log listener that logs: it has the lock of the handler, and is the one that empties its queue.
LISTENS = (
    f"QueueListener._monitor {LIB}/logging/handlers.py:1579",
    "JsonLines.emit /app/audit.py:26",
    "Enqueue.enqueue /app/audit.py:13",
)
ACQUIRES = (*TRAIN, "step /app/train.py:40", f"Handler.acquire {LIB}/logging/__init__.py:973")


@pytest.mark.parametrize("number", [0, 7])
def test_thread_at_a_full_queue_that_only_itself_could_empty_is_named_beside_the_lock(number: int) -> None:
    found = Job(
        ACQUIRES, threads=[Thread(ONE, "Thread-1 (_monitor)", (*LISTENS, *PUT), object=number)]
    ).told()

    assert (found.klass, found.cause) == ("lock_deadlock", "full_queue_beside_lock")
    assert (
        f"thread Thread-1 (_monitor) (tid {ONE}) waits in Queue.put, in Enqueue.enqueue (/app/audit.py:13): that queue is "
        "full, and no other thread takes from it" in found.summary
    )
    assert "which waits on a lock" not in found.summary and "put_nowait" in found.advice


@pytest.mark.parametrize("taker", [0, 7, 8])
def test_thread_at_a_full_queue_that_another_may_take_from_is_not_said_to_be_left_alone(taker: int) -> None:
    threads = [
        Thread(ONE, "log", (*LISTENS, *PUT), object=7),
        Thread(TWO, "drain", ("run /app/log.py:4", *GET), object=taker),
    ]
    assert (Job(ACQUIRES, threads=threads).told().cause == "full_queue_beside_lock") is (taker == 8)


# -- locks of the program's own ---------------------------------------------------------------------------------

TAKES = "write /app/log.py:12"
HOLDS = "flush /app/log.py:31"


def test_thread_that_is_inside_of_the_lock_is_named_with_what_it_waits_for() -> None:
    text = [place(TAKES, "with self.guard:"), place(HOLDS, "self.rows.put(row)", "with self.guard:")]
    found = Job((*TRAIN, TAKES), threads=[Thread(ONE, "writer", (HOLDS, *PUT))], text=text).told()

    assert (found.id, found.cause) == ("held-up", "lock_held")
    assert (
        "thread writer (tid 90001) is inside of `with self.guard:` in flush (/app/log.py:31), and waits in Queue.put"
        in (found.summary)
    )


def test_thread_inside_of_another_lock_is_not_said_to_hold_it() -> None:
    text = [place(TAKES, "with self.guard:"), place(HOLDS, "self.rows.put(row)", "with self.other:")]
    found = Job((*TRAIN, TAKES), threads=[Thread(ONE, "writer", (HOLDS, *PUT))], text=text).told()

    assert found.cause != "lock_held"


def test_locks_that_two_threads_take_in_different_orders_are_a_circle() -> None:
    outer, there = "add /app/log.py:10", "drop /app/log.py:30"
    text = [
        place(TAKES, "with self.second:"), place(outer, "self.write()", "with self.first:"),
        place(HOLDS, "with self.first:"), place(there, "self.flush()", "with self.second:"),
    ]  # fmt: skip
    found = Job((*TRAIN, outer, TAKES), threads=[Thread(ONE, "writer", (there, HOLDS))], text=text).told()

    assert (found.id, found.cause) == ("hang", "threads_wait_for_each_other")
    assert (
        "is inside of `with self.second:` in drop (/app/log.py:30) and waits for `self.first`, which its main thread"
        in (found.summary)
    )


# -- whose exception nobody saw -------------------------------------------------------------------------------

NEXT = (*TRAIN, "Prefetcher.next /app/reader.py:33", *GET)
ERROR = "<JSONDecodeError: Unterminated string starting at>"


def test_thread_that_ended_and_the_exception_that_it_left_behind_are_named() -> None:
    hang = Job(NEXT, left=("prefetch",), kept={"self.queue": "<Queue maxsize=8>", "self.error": ERROR}).told()

    assert (hang.id, hang.cause, hang.ranks) == ("held-up", "exception_is_kept", (1,))
    assert "its thread prefetch ended " in hang.summary
    assert "`self.error` keeps the exception JSONDecodeError: Unterminated string starting at" in hang.summary
    assert "put the exception, or an end mark, into the queue" in hang.advice


def test_thread_that_ended_without_a_word_is_named_alone() -> None:
    hang = Job(NEXT, left=("prefetch",)).told()

    assert hang.cause == "nobody_puts" and "its thread prefetch ended " in hang.summary


@pytest.mark.parametrize(
    ("left", "threads", "kept"),
    [
        (("load_1", "load_2"), (), {}),  # they come and go
        (("prefetch",), (Thread(ONE, "prefetch", GET),), {}),  # another one has its place
        (
            (),
            (),
            {"error": ERROR, "self.last": "<Error kind=3>"},
        ),  # a local one that was handled; no exception
    ],
)
def test_what_may_have_nothing_to_do_with_the_wait_is_not_named(
    left: Sequence[str], threads: Sequence[Thread], kept: Mapping[str, str]
) -> None:
    hang = Job(NEXT, threads=threads, left=left, kept=kept).told()

    assert hang.cause == "nobody_puts"
    assert "its thread" not in hang.summary and "exception" not in hang.summary


def test_exception_is_no_cause_while_somebody_may_still_give_what_is_waited_for() -> None:
    loads = Thread(ONE, "load", ("fetch /app/net.py:3",), SILENT)

    assert Job(NEXT, threads=[loads], kept={"self.error": ERROR}).told().cause != "exception_is_kept"
