"""Waits of processes that nobody will end: forks, queues, files and pipes between them; and where nothing is said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model import Finding
from diag.model.observations.waits import Party, Wait
from tests.detectors.test_hang_endless_waits import (
    CHILD,
    EVENT,
    FEED,
    GET,
    LIB,
    LOCK,
    MP_GET,
    MP_LOCK,
    ONE,
    PEER,
    PUT,
    RANK,
    RESULT,
    SEMAPHORE,
    SIBLING,
    SILENT,
    TIMED,
    TWO,
    Job,
    Process,
    Thread,
)
from tests.facts import DATA, TRAIN

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


IN_DATASET = (
    *TRAIN,
    f"__next__ {LIB}/site-packages/torch/utils/data/dataloader.py:741",
    f"_next_data {LIB}/site-packages/torch/utils/data/dataloader.py:801",
    f"fetch {LIB}/site-packages/torch/utils/data/_utils/fetch.py:54",
    "__getitem__ /app/main.py:46",
    "effects /app/main.py:28",
)


@pytest.mark.parametrize("reads", [True, False])
def test_in_a_circle_that_begins_at_a_child_each_is_said_to_do_what_it_does(*, reads: bool) -> None:
    """The rank's own process is no other process than the rank."""
    wait = Wait(
        "pipe_read" if reads else "pipe_write", "read", 12, "pipe:[4]", others=(Party(CHILD, only_main=True),)
    )
    stderr = replace(STDERR, others=(Party(RANK, only_main=True),))
    child = Process(CHILD, [Thread(CHILD, "MainThread", ("main /app/effects.py:14",), stderr)], forked=False)
    found = Job(IN_DATASET, wait, processes=[child]).told()

    assert found.cause == ("pipes_read_in_turn" if reads else "both_write")
    assert found.advice.startswith("Rank 1 reads one pipe of " if reads else "Rank 1 writes to ")
    assert f"process {CHILD}" in found.advice and f"process {RANK}" not in found.advice


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


@pytest.mark.parametrize(("frames_of_library", "named"), [(7, True), (8, False)])
def test_thread_of_a_peer_is_named_by_its_own_line_a_few_frames_above_the_wait(
    frames_of_library: int, named: bool
) -> None:
    """Far down in a library it is the library's own business."""
    sends = Wait("tcp_send", "sendto", 10, peer="127.0.0.1:43035", others=(Party(PEER, 0, "collector"),))
    inside = [f"call {LIB}/ssl.py:{number}" for number in range(frames_of_library)]
    accepts = Thread(PEER, "MainThread", ("main /srv/collector.py:39",), Wait("tcp_accept", "accept4", 4))
    receives = Thread(ONE, "reader", ("receive /srv/collector.py:27", *inside))
    peer = Process(PEER, [accepts, receives], parent=1, forked=False, job=False)
    found = Job((*TRAIN, "log /app/hist.py:19"), sends, processes=[peer]).told()

    assert (f"in pid {PEER} its thread reader (tid {ONE})" in found.summary) is named
    assert ("receive (/srv/collector.py:27)" in found.summary) is named


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
