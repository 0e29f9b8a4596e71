"""Children that a rank waits for: blocked, computing, or forked without the threads that they need."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from diag.detectors.hang.messages import advice_for, describe
from diag.detectors.hang.rank_wait import cause_of, classify_rank
from diag.detectors.hang.verdict import Verdict
from diag.model import Confidence
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_kernel_waits import (
    CHILD,
    OF_CHILD,
    REMOTE,
    THREAD,
    thread,
    told,
    waits,
)
from tests.facts import ALL_REDUCE, DATA, TRAIN, WORKER, Story, pid_of, process, stack, tree

CONDITION = Wait("condition", "futex")
ALONE = replace(CONDITION, dead_end="alone", forked=True)
SAVE = (*TRAIN, "save torch/distributed/checkpoint/state_dict_saver.py:100", "wait /app/saver.py:3")
WRITER = (
    "run python3.11/multiprocessing/process.py:108",
    "write_data torch/distributed/checkpoint/filesystem.py:9",
)
JOINS = (
    *TRAIN, "join python3.11/multiprocessing/process.py:149", "poll python3.11/multiprocessing/popen_fork.py:27"
)  # fmt: skip


def child_does(
    wait: Wait,
    *,
    rank: tuple[str, ...] = DATA,
    worker: tuple[str, ...] = WORKER,
    cpu: float | None = 0.0,
    state: str = "S",
    more: tuple[ThreadWait, ...] = (),
    seconds: int = 40,
) -> Story:
    """Rank 0 waits in all_reduce, rank 1 for its child; `cpu` None: what the child waits for was not read."""
    story = steady()
    used = 0.0
    for _ in range(seconds // 2):
        used += 2.0 * (cpu if cpu is not None else state == "R")
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        child = process(
            CHILD, comm="pt_data_worker", state=state, cpu=used, ppid=pid_of(1), wchan="futex_do_wait"
        )
        story.tell(tree(1, story.now, child), stack(1, story.now, rank))
        story.tell(stack(1, story.now, worker, pid=CHILD))
        if cpu is not None:
            main = ThreadWait(CHILD, "python", state, "", wait, cpu_ratio=cpu, same=state != "R")
            read = waits(Wait("child", "wait4", others=OF_CHILD))
            own = ProcessWaits(CHILD, pid_of(1), "python train.py", (main, *more))
            story.tell(WaitsRead(1, pid_of(1), 0.5, (*read.processes, own)))
        story.wait(2.0)
    return story


RUNS = Wait("running")


@pytest.mark.parametrize(
    ("cpu", "shown"), [(1.0, "which is busy at 100 % CPU in"), (None, "which is busy in")]
)
def test_data_worker_that_computes_is_told_apart_from_one_that_reads(cpu: float | None, shown: str) -> None:
    hang = child_does(RUNS, cpu=cpu, state="R", seconds=120).hang()

    assert (hang.klass, hang.cause, hang.ranks) == ("data_loading", "dataloader_worker_busy", (1,))
    assert f"DataLoader worker pid {CHILD}, {shown} read_record (/app/reader.py:12)" in hang.summary
    assert "regular expression" in hang.advice and "file" not in hang.advice
    assert f"py-spy dump --pid {CHILD}" in hang.advice


def test_data_worker_that_gets_no_core_computes_all_the_same() -> None:
    ready = partial(ThreadWait, CHILD, "python", "R", "", RUNS, 0.2)
    for delay, cause in ((0.7, "dataloader_worker_busy"), (0.1, "dataloader_worker_blocked")):
        story = child_does(RUNS, cpu=None, seconds=4)
        story.tell(
            WaitsRead(
                1, pid_of(1), 0.5, (ProcessWaits(CHILD, pid_of(1), "", (ready(run_delay_ratio=delay),)),)
            )
        )
        rank = story.engine.job.ranks[1]
        assert cause_of(rank, classify_rank(rank)) == (cause, CHILD)


@pytest.mark.parametrize(("cpu", "state"), [(0.02, "R"), (0.0, "S"), (None, "S")])
def test_data_worker_that_hardly_runs_is_blocked(cpu: float | None, state: str) -> None:
    assert child_does(CONDITION, cpu=cpu, state=state).hang().cause == "dataloader_worker_blocked"


def test_child_that_computes_is_critical_only_after_long() -> None:
    assert child_does(RUNS, cpu=1.0, state="R", seconds=1200).hang().severity.value == "warning"
    blocked = child_does(replace(REMOTE, silent_seconds=None), seconds=1200).hang()
    assert (blocked.cause, blocked.severity.value) == ("dataloader_worker_blocked", "critical")


def test_writer_of_a_checkpoint_that_computes_is_no_file_systems_fault() -> None:
    """As of a capture: live, a save that computes is work for long."""
    story = child_does(RUNS, rank=SAVE, worker=WRITER, cpu=0.9, state="R")
    job = story.engine.job
    cause, child = cause_of(job.ranks[1], classify_rank(job.ranks[1]))
    assert (cause, child) == ("checkpoint_writer_busy", CHILD)

    verdict = Verdict(
        "checkpoint_io", (1,), (0,), cause, story.now - 60.0, Confidence.HIGH, blamed_child=child
    )
    assert f"writer is pid {CHILD}, which is busy at 90 % CPU" in describe(verdict, job, story.now)
    assert "file system" not in advice_for(verdict, job)


def test_child_that_is_joined_and_computes_is_said_to() -> None:
    hang = child_does(
        RUNS, rank=JOINS, worker=("main /app/crop.py:12",), cpu=1.0, state="R", seconds=120
    ).hang()

    assert (hang.klass, hang.cause) == ("peer_not_joined", "child_computes")
    assert f"Rank 1 waits for process {CHILD} (`python train.py`) to end, which computes" in hang.advice


@pytest.mark.parametrize(
    ("rank", "worker", "klass"), [(DATA, WORKER, "data_loading"), (SAVE, WRITER, "checkpoint_io")]
)
def test_child_forked_without_the_threads_that_it_waits_for_never_goes_on(
    rank: tuple[str, ...], worker: tuple[str, ...], klass: str
) -> None:
    hang = child_does(ALONE, rank=rank, worker=worker).hang()

    assert (hang.id, hang.severity.value) == ("hang", "critical")
    assert (hang.klass, hang.cause, hang.ranks) == (klass, "forked_without_threads", (1,))
    assert [ground.kind for ground in hang.grounds] == ["dead_end"]
    whom = "DataLoader worker pid" if klass == "data_loading" else "child process"
    assert f"for its {whom} {CHILD}, which is blocked in" in hang.summary
    assert f"Process {CHILD} (`python train.py`) was forked while its parent had more threads" in hang.advice
    assert 'multiprocessing_context="spawn"' in hang.advice


@pytest.mark.parametrize(
    ("libraries", "shown"),
    [
        (
            ("tokenizers", "torch"),
            "It has loaded tokenizers, whose pool TOKENIZERS_PARALLELISM=false switches off.",
        ),
        (("torch",), ""),
        (None, "(With Hugging Face's tokenizers, TOKENIZERS_PARALLELISM=false helps.)"),
    ],
)
def test_tokenizers_are_named_where_they_are_loaded(libraries: tuple[str, ...] | None, shown: str) -> None:
    advice = child_does(replace(ALONE, libraries=libraries)).hang().advice

    assert shown in advice and ("TOKENIZERS" in advice) is bool(shown)


@pytest.mark.parametrize(
    "wait",
    [CONDITION, Wait("semaphore", "futex", path="/dev/shm/sem.x"), replace(REMOTE, silent_seconds=None)],
)
def test_worker_that_something_may_still_wake_is_only_held_up(wait: Wait) -> None:
    held = child_does(wait).the("held-up")

    assert (held.cause, held.severity.value) == ("dataloader_worker_blocked", "warning")


def test_child_that_waits_for_a_thread_of_its_own_was_not_forked_with_a_lock() -> None:
    """It is joined before its queue is read, by an older kernel's word or without the other end."""
    feeder = thread(
        THREAD, Wait("pipe_write", "write", 27, "pipe:[1]", others=(Party(4711),)), "QueueFeederThread"
    )
    joins = Wait("join", "futex", others=(Party(CHILD, THREAD),))
    hang = child_does(joins, rank=JOINS, worker=("join python3.11/threading.py:1119",), more=(feeder,)).the(
        "held-up"
    )

    assert hang.cause == "child_does_not_end"
    assert (
        "waits for thread QueueFeederThread (tid 90002) to end, which writes to a full pipe" in hang.summary
    )
    assert "forked" not in hang.advice


def test_only_thread_of_a_child_in_a_lock_is_still_one_that_was_forked() -> None:
    hang = child_does(ALONE, rank=JOINS, worker=("log /app/audit.py:12",)).hang()

    assert (hang.klass, hang.cause, hang.severity.value) == (
        "lock_deadlock",
        "child_waits_for_lock",
        "critical",
    )


@pytest.mark.parametrize(("pid", "whose"), [(CHILD, "a child of rank 0"), (pid_of(0), "rank 0")])
def test_child_of_another_rank_is_not_called_that_rank(pid: int, whose: str) -> None:
    story = steady()
    for _ in range(20):
        child = process(CHILD, comm="python", ppid=pid_of(0))
        story.tell(tree(0, story.now, child), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, (*TRAIN, "guard /app/lock.py:9")))
        story.tell(waits(Wait("file_lock", "flock", 7, "/data/.lock", others=(Party(pid),))))
        story.wait(2.0)

    assert f"held by {whose} (pid {pid})" in story.hang().summary


# -- pipes --------------------------------------------------------------------------------------------------------

LAUNCHER = (Party(4711, 0, "python launch.py"),)


def full_pipe(fd: int, reader: Wait, others: tuple[Party, ...] = LAUNCHER) -> WaitsRead:
    read = waits(Wait("pipe_write", "write", fd, "pipe:[1]", others=others))
    launcher = ProcessWaits(4711, 1, "python launch.py", (thread(4711, reader),), job=False)
    return replace(read, processes=(*read.processes, launcher))


def test_launcher_that_reads_from_another_rank_does_not_read_from_this_one() -> None:
    of_zero = (Party(pid_of(0), 0, "python train.py", 1), Party(pid_of(0), 0, "python train.py", 2))
    hang = told(full_pipe(1, Wait("pipe_read", "read", 3, "pipe:[2]", others=of_zero))).hang()

    assert (hang.klass, hang.cause, hang.ranks) == ("peer_not_joined", "process_does_not_read", (1,))
    assert (
        "writes to a full pipe (standard output) that pid 4711 (`python launch.py`) does not read"
        in hang.summary
    )
    assert "which reads from a pipe (fd 3) that rank 0 (pid 1000) may write to" in hang.summary
    assert "rank 0 (pid 1000) or" not in hang.summary
    assert "a thread for each" in hang.advice and "a branch that only" not in hang.advice


SHIP, PACK = Party(4711, 0, "python ship.py", only_main=True), Party(4712, 0, "python pack.py")


def shipped(writers: frozenset[int], pack: Wait) -> Story:
    """Rank 1 writes to a full pipe that `ship` reads, and that `pack`, for which this waits, has from it."""
    read = waits(Wait("pipe_write", "write", 1, "pipe:[1]", others=(SHIP, PACK), writers=writers))
    ship = thread(4711, Wait("child", "wait4", others=(PACK,)))
    more = (
        ProcessWaits(4711, 1, SHIP.command, (ship,), job=False),
        ProcessWaits(4712, 4711, PACK.command, (thread(4712, pack),), job=False),
    )
    return told(replace(read, processes=(*read.processes, *more)))


PACKS = Wait("pipe_write", "write", 1, "pipe:[2]", others=(SHIP,))


def test_reader_that_waits_for_who_writes_to_it_is_to_blame_not_the_rank_that_filled_its_pipe() -> None:
    hang = shipped(frozenset((pid_of(0),)), PACKS).hang()

    assert (hang.id, hang.klass, hang.cause) == ("hang", "peer_not_joined", "reader_waits_for_itself")
    assert (hang.ranks, hang.waiting_ranks) == ((), (0, 1))
    assert (
        "that pid 4711 (`python ship.py`) or pid 4712 (`python pack.py`) does not read, which" in hang.summary
    )
    assert (
        "which waits for child pid 4712 (`python pack.py`) to end, which writes to a full pipe (standard output) that "
        "pid 4711 (`python ship.py`) does not read, and so pid 4711 waits for itself: a deadlock"
    ) in hang.summary
    assert "all ranks write to that pipe" in hang.summary


def test_rank_that_alone_writes_to_such_a_pipe_holds_the_others_up() -> None:
    hang = shipped(frozenset(), PACKS).hang()
    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("reader_waits_for_itself", (1,), (0,))


def test_reader_that_waits_for_one_at_work_is_no_circle() -> None:
    hang = shipped(frozenset((pid_of(0),)), Wait("file_io", "read", 5, "/data/a")).hang()
    assert (hang.id, hang.cause, hang.ranks) == ("held-up", "process_does_not_read", ())


def test_rank_that_reads_from_another_rank_is_not_laid_to_that_one() -> None:
    wait = Wait("pipe_read", "read", 5, "pipe:[1]", others=(Party(pid_of(0), 0, "python train.py"),))

    assert told(waits(wait)).hang().cause == "not_in_collective"


CIRCLE = Wait("pipe_write", "write", 27, "pipe:[1]", others=(Party(pid_of(1), only_main=True),))


def test_circle_through_a_pipe_never_ends() -> None:
    hang = told(waits(Wait("child", "wait4", others=OF_CHILD), child=CIRCLE)).hang()

    assert (hang.id, hang.klass, hang.cause) == ("hang", "peer_not_joined", "processes_wait_for_each_other")
    assert [ground.kind for ground in hang.grounds] == ["cycle"]
    assert f"and so pid {pid_of(1)} waits for itself: a deadlock" in hang.summary
    assert "before the join" in hang.advice and "communicate, not wait" in hang.advice


@pytest.mark.parametrize(
    ("rank", "child"),
    [
        ({}, {"others": (Party(pid_of(1)),)}),  # another thread of the rank may read
        ({}, {"seconds": 600.0}),
        ({"others": (*OF_CHILD, Party(4712))}, {}),  # any child of two
    ],
)
def test_circle_that_may_be_broken_is_only_held_up(rank: dict[str, Any], child: dict[str, Any]) -> None:
    waiter = replace(Wait("child", "wait4", others=OF_CHILD), **rank)
    held = told(waits(waiter, child=replace(CIRCLE, **child))).the("held-up")

    assert held.cause == (
        "child_does_not_end" if rank or "seconds" in child else "processes_wait_for_each_other"
    )
    assert "deadlock" not in held.summary
