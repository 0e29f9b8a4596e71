"""Why a wait of Python's never ends: each reason where it is one, and silence where the same wait may end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from diag.model import Finding
from diag.model.observations import Block, ProgramPlace, ProgramRead, ThreadStack
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import started
from tests.facts import ALL_REDUCE, DATA, TRAIN, frames, pid_of, process, stack, tree

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

    def told(self) -> Finding:
        story = started()
        below = [
            process(one.pid, ppid=one.parent, wchan="futex_do_wait") for one in self.processes if one.job
        ]
        gone = [process(pid, ppid=RANK) for pid in self.ended]
        story.tell(tree(1, story.now, *below, *gone))
        story.wait(2.0)
        own = [Thread(RANK, "MainThread", self.main, self.wait, self.object), *self.threads]
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
            if at == 2 and self.text:
                story.tell(ProgramRead(1, RANK, tuple(self.text)))
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


def test_queue_that_is_joined_while_a_thread_works_is_none_that_lacks_task_done() -> None:
    found = Job(
        FLUSH, threads=[Thread(ONE, "notifier", ("_work /app/notify.py:30", "post /app/net.py:2"), SILENT)]
    ).told()

    assert found.cause == "peer_is_silent"


@pytest.mark.parametrize(
    ("lines", "cause", "said"),
    [
        (GET, "nobody_puts", "whoever does has ended"),
        (PUT, "nobody_takes", "the one that did has ended"),
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


# -- forks ------------------------------------------------------------------------------------------------------

BORROW = (
    f"_worker_loop {LIB}/site-packages/torch/utils/data/_utils/worker.py:358",
    "connection /app/store.py:33",
    *GET,
)
OF_WORKER = Wait("poll", "poll", others=(Party(CHILD),), timed=True)


@pytest.mark.parametrize("alone", [True, False])
def test_worker_that_waits_for_what_its_fork_left_behind(alone: bool) -> None:
    wait = replace(LOCK, dead_end="alone", forked=True) if alone else LOCK
    feeder = [] if alone else [Thread(TWO, "QueueFeederThread", FEED[:1])]
    worker = Process(CHILD, [Thread(CHILD, "MainThread", BORROW, wait), *feeder])
    hang = Job(DATA, OF_WORKER, processes=[worker]).told()

    assert (hang.id, hang.klass, hang.cause) == ("hang", "data_loading", "inherited_by_fork")
    assert f"waited for its DataLoader worker pid {CHILD}" in hang.summary
    assert (
        f"pid {CHILD} waits in Queue.get, in connection (/app/store.py:33), is a fork, and no other"
        in hang.summary
    )
    assert 'multiprocessing_context="spawn"' in hang.advice


@pytest.mark.parametrize("both", [True, False])
def test_pool_whose_workers_all_wait_for_what_their_fork_left_behind(both: bool) -> None:
    """The wait of the pool's result names nobody; its only workers were forked while a thread held the lock."""
    waits = (*TRAIN, "tokenize /app/train.py:24", *RESULT)
    alone = replace(LOCK, dead_end="alone", forked=True)
    workers = [
        Process(pid, [Thread(pid, "MainThread", ("encode /app/vocab.py:31",), wait)])
        for pid, wait in ((CHILD, alone), (SIBLING, alone if both else SILENT))
    ]
    hang = Job(waits, processes=workers).told()

    assert (hang.cause == "forked_without_threads") is both
    assert ("forked while its parent had more threads" in hang.advice) is both
    assert f"child pid {CHILD}" in hang.summary


@pytest.mark.parametrize(
    "worker",
    [
        Process(CHILD, [Thread(CHILD, "MainThread", BORROW)], forked=False),
        Process(
            CHILD,
            [Thread(CHILD, "MainThread", BORROW), Thread(TWO, "reader", ("read /app/store.py:9",), SILENT)],
        ),
        Process(CHILD, [Thread(CHILD, "MainThread", BORROW, TIMED)]),
    ],
)
def test_worker_that_somebody_may_serve_is_not_said_to_be_left(worker: Process) -> None:
    assert Job(DATA, OF_WORKER, processes=[worker]).told().cause != "inherited_by_fork"


# -- queues of processes ----------------------------------------------------------------------------------------

TAKE = (*TRAIN, "augment /app/aug.py:46", MP_GET, f"Connection._recv {LIB}/multiprocessing/connection.py:395")
WORKS = ("work /app/aug.py:21",)
READS = Wait("pipe_read", "read", 5, "pipe:[1]", others=(Party(CHILD),))


def waiting_for_the_lock(*more: Process, number: int = 7) -> Finding:
    worker = Process(CHILD, [Thread(CHILD, "MainThread", (*WORKS, *MP_LOCK), SEMAPHORE, object=8)])
    return Job(TAKE, READS, processes=[worker, *more], ended=(4711,), object=number).told()


def test_lock_of_a_queue_that_nobody_who_lives_reads_went_with_its_holder() -> None:
    hang = waiting_for_the_lock()

    assert (hang.id, hang.cause, hang.ranks) == ("hang", "lock_holder_ended", (1,))
    assert "whoever took its lock has ended: its child process pid 4711 ended" in hang.summary
    assert "Do not terminate a process that shares a queue" in hang.advice


def test_lock_of_a_queue_that_another_reads_is_held_by_that_one() -> None:
    reads = Wait("pipe_read", "read", 6, "pipe:[2]", others=(Party(RANK),))
    lines = (*WORKS, MP_GET)
    other = Process(SIBLING, [Thread(SIBLING, "MainThread", lines, reads, object=8)])

    assert waiting_for_the_lock(other).cause != "lock_holder_ended"
    assert waiting_for_the_lock(number=8).cause != "lock_holder_ended"  # the rank itself reads from it
    assert waiting_for_the_lock(number=0).cause != "lock_holder_ended"  # or may


END = (f"_exit_function {LIB}/multiprocessing/util.py:363", f"Thread.join {LIB}/threading.py:1147")
OF_FEEDER = Wait("join", "futex", others=(Party(RANK, ONE),))


@pytest.mark.parametrize("reader", [RANK, CHILD])
def test_thread_of_a_queue_writes_to_a_pipe_that_nobody_else_reads(reader: int) -> None:
    writes = Wait("pipe_write", "write", 7, "pipe:[3]", others=(Party(reader),))
    sleeps = Process(
        CHILD, [Thread(CHILD, "MainThread", ("collect /app/a.py:3",), Wait("sleep", timed=True))]
    )
    job = Job(END, OF_FEEDER, [Thread(ONE, "QueueFeederThread", FEED, writes)], [sleeps], ended=(4711,))
    found = job.told()

    assert found.klass == "teardown"
    assert (found.cause == "queue_without_reader") is (reader == RANK)
    if reader == RANK:
        assert found.id == "hang"
        assert "nobody is left who takes from that queue, its child process pid 4711 ended" in found.summary
        assert "cancel_join_thread" in found.advice


def test_thread_that_is_no_daemon_and_waits_for_work_keeps_the_rank_from_ending() -> None:
    end = (f"_shutdown {LIB}/threading.py:1592",)
    hang = Job(end, OF_FEEDER, [Thread(ONE, "journal", ("run /app/journal.py:7", *GET))]).told()
    busy = Job(end, OF_FEEDER, [Thread(ONE, "journal", ("run /app/journal.py:9",), SILENT)]).told()

    assert (hang.id, hang.klass, hang.cause) == ("hang", "teardown", "thread_not_ended")
    assert "thread journal (tid 90001) waits in Queue.get, in run (/app/journal.py:7)" in hang.summary
    assert "daemon=True" in hang.advice
    assert busy.cause == "teardown_blocked"


# -- files, pipes, other processes ------------------------------------------------------------------------------

APPEND = (*TRAIN, "append /app/journal.py:37")
SHIPS = ("ship /app/journal.py:23",)


@pytest.mark.parametrize(
    ("taken_by", "forked", "cause"),
    [
        (RANK, False, "file_lock_inherited"),  # by the rank, which has closed its file since
        (CHILD, True, "file_lock_held"),  # by itself
        (0, True, "file_lock_inherited"),  # not recorded
        (0, False, "file_lock_held"),
    ],
)
def test_lock_on_a_file_that_a_fork_has_kept_is_told_from_one_that_is_held(
    taken_by: int, forked: bool, cause: str
) -> None:
    wait = Wait("file_lock", "flock", 7, "/data/j.lock", others=(Party(CHILD),), taken_by=taken_by)
    child = Process(
        CHILD, [Thread(CHILD, "MainThread", SHIPS, Wait("sleep", timed=True, seconds=3.0))], forked=forked
    )
    found = Job(APPEND, wait, processes=[child]).told()

    assert (found.cause, found.klass) == (cause, "peer_not_joined")
    assert ("LOCK_UN" in found.advice) is (cause == "file_lock_inherited")


EXPORT = (*TRAIN, "on_save /app/export.py:24")
STDERR = Wait("pipe_write", "write", 2, "pipe:[5]", others=(Party(RANK),))
MONITOR = Thread(
    ONE, "tqdm_monitor", (f"TMonitor.run {LIB}/site-packages/tqdm/_monitor.py:60", *EVENT), TIMED
)
READER = Thread(ONE, "stderr", ("drain /app/export.py:9",), TIMED)


@pytest.mark.parametrize(
    ("wait", "thread", "cause", "said"),
    [
        (
            Wait("pipe_read", "read", 6, "pipe:[4]", others=(Party(CHILD),)),
            MONITOR,
            "pipes_read_in_turn",
            "communicate",
        ),
        (
            Wait("pipe_write", "write", 6, "pipe:[4]", others=(Party(CHILD),)),
            MONITOR,
            "both_write",
            "communicate",
        ),
        (
            Wait("child", "wait4", others=(Party(CHILD),)),
            MONITOR,
            "processes_wait_for_each_other",
            "Read it first",
        ),
        (
            Wait("pipe_read", "read", 6, "pipe:[4]", others=(Party(CHILD),)),
            READER,
            "process_is_silent",
            "timeout",
        ),
    ],
)
def test_circle_of_pipes_with_a_child_says_what_to_read(
    wait: Wait, thread: Thread, cause: str, said: str
) -> None:
    child = Process(CHILD, [Thread(CHILD, "MainThread", ("main /app/quantize.py:8",), STDERR)], forked=False)
    found = Job(EXPORT, wait, [thread], [child]).told()

    assert (found.id, found.cause, found.klass) == ("held-up", cause, "peer_not_joined")
    assert said in found.advice


@pytest.mark.parametrize("takes", [True, False])
def test_process_that_does_not_read_is_looked_into(takes: bool) -> None:
    sends = Wait(
        "tcp_send",
        "sendto",
        10,
        peer="127.0.0.1:43035",
        unsent_bytes=9_000_000,
        others=(Party(PEER, 0, "collector"),),
    )
    accepts = Thread(PEER, "MainThread", ("main /srv/collector.py:39",), Wait("tcp_accept", "accept4", 4))
    receives = Thread(ONE, "Thread-1 (receive)", ("receive /srv/collector.py:27", *PUT))
    writer = Thread(TWO, "writer", ("run /srv/collector.py:17", *GET))
    peer = Process(PEER, [accepts, receives, *([writer] if takes else [])], parent=1, forked=False, job=False)
    found = Job((*TRAIN, "log /app/hist.py:19"), sends, processes=[peer]).told()

    assert found.cause == ("process_takes_nothing" if takes else "peer_queue_is_full")
    assert (
        f"in pid {PEER} its thread Thread-1 (receive) (tid {ONE}) waits in Queue.put, in receive (/srv/collector.py:27)"
        in (found.summary)
    )
    assert ("none of its threads takes from it" in found.summary) is not takes


RUN = (
    *TRAIN,
    "tag /app/git.py:48",
    f"Popen._communicate {LIB}/subprocess.py:2108",
    f"select {LIB}/selectors.py:415",
)


@pytest.mark.parametrize("kept_by", [PEER, CHILD])
def test_pipe_that_a_program_left_to_another_is_told_from_one_that_it_has(kept_by: int) -> None:
    reads = Wait("pipe_read", "", 6, "pipe:[4]", others=(Party(kept_by, 0, "sleep 300"),))
    wait = Wait("poll", "poll", watched=(reads, replace(reads, fd=8)))
    child = Process(
        CHILD,
        [Thread(CHILD, "MainThread", ("main /app/tool.py:8",), Wait("sleep", timed=True))],
        forked=False,
    )
    found = Job(RUN, wait, processes=[child]).told()

    assert (found.cause == "pipe_kept_open") is (kept_by == PEER)
    if kept_by == PEER:
        assert f"pid {PEER} (`sleep 300`), which is no child of it, has kept the writing end" in found.summary


FILLS = (*TRAIN, "log /app/rows.py:73", f"Queue.put {LIB}/multiprocessing/queues.py:89")


@pytest.mark.parametrize("reads", [True, False])
def test_full_queue_of_processes_whose_reader_has_ended_says_so(reads: bool) -> None:
    asks = Wait("pipe_read", "read", 6, "pipe:[2]", others=(Party(RANK),))
    reader = Process(CHILD, [Thread(CHILD, "MainThread", (*WORKS, MP_GET), asks)])
    found = Job(FILLS, SEMAPHORE, processes=[reader] if reads else [], ended=(4711,)).told()

    assert (found.cause == "nobody_takes") is not reads
    if not reads:
        assert "its child process pid 4711 ended" in found.summary
        assert "survive what one item raises" in found.advice


def test_child_that_waits_for_the_end_of_its_input_is_told_from_one_that_cannot_write() -> None:
    stdin = Wait("pipe_read", "read", 0, "pipe:[5]", others=(Party(RANK, only_main=True),))
    child = Process(CHILD, [Thread(CHILD, "cat", (), stdin)], forked=False)
    reads = Wait("pipe_read", "read", 6, "pipe:[4]", others=(Party(CHILD, only_main=True),))
    found = Job(EXPORT, reads, [MONITOR], [child]).told()

    assert found.cause == "both_read" and "Close its input" in found.advice
