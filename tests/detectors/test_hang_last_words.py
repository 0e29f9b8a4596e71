"""Threads and workers that ended, and what ranks printed before a silence: who is blamed for it, and who is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diag.model.observations import ChildEnded, Iteration, KernelLine, LogLine, ThreadStack
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from diag.sources.logs.line_facts import read_text
from tests.detectors.test_hang import steady
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, WORKER, Story, frames, pid_of, process, stack, tree

QUEUE = (*TRAIN, "put python3.12/queue.py:140", "wait python3.12/threading.py:355")
POOL = ("worker python3.12/multiprocessing/pool.py:125", "square /app/pool.py:4")
BARRIER = (*TRAIN, "barrier torch/distributed/distributed_c10d.py:4100")
UPLOADER = ThreadStack(7001, "uploader", frames("run /app/up.py:3", "upload /app/up.py:20"))
# CPython 3.12
TRACE = (
    "Traceback (most recent call last):",
    '  File "/app/up.py", line 20, in upload',
    "    connection.send(item)",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
)
OF_THREAD = ("Exception in thread uploader:", *TRACE)
RAISED = (*TRACE[:-1], "ValueError: shard 7 has no labels")


def says(story: Story, rank: int | None, *lines: str) -> None:
    for line in lines:
        story.tell(*read_text(line, "stderr", rank))


def go_on(
    story: Story, seconds: float, rank_1: Sequence[str], *threads: ThreadStack, children: Sequence[int] = ()
) -> None:
    """Rank 0 is in all_reduce, rank 1 at `rank_1`."""
    for _ in range(int(seconds / 2)):
        workers = [process(pid, ppid=pid_of(1)) for pid in children]
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, *workers), stack(1, story.now, rank_1, *threads))
        story.wait(2.0)


@pytest.mark.parametrize("whose", [1, None])
@pytest.mark.parametrize("bar", ["", " 37%|███▋      | 3/8 [00:00<00:01,  3.31it/s]"])
def test_rank_that_waits_for_its_thread_is_told_that_it_ended_and_of_what(
    whose: int | None, bar: str
) -> None:
    story = steady()
    go_on(story, 4.0, QUEUE, UPLOADER)
    says(story, whose, bar + OF_THREAD[0], *OF_THREAD[1:])

    go_on(story, 30.0, QUEUE)

    hang = story.hang()
    assert (hang.klass, hang.cause, hang.ranks) == ("peer_not_joined", "thread_ended", (1,))
    said = (
        "its thread uploader ended with ConnectionResetError: [Errno 104] Connection reset by peer 30 s ago"
    )
    assert said in hang.summary
    assert any(item.kind == "output" and said in item.excerpt and item.rank == 1 for item in hang.evidence)


@pytest.mark.parametrize("place", [ALL_REDUCE, SLEEP])
def test_thread_that_died_is_not_blamed_where_the_rank_waits_for_something_else(place: Sequence[str]) -> None:
    story = steady()
    go_on(story, 4.0, place, UPLOADER)
    says(story, 1, *OF_THREAD)

    go_on(story, 90.0, place)

    hang = story.hang()
    assert hang.cause != "thread_ended" and "uploader" not in hang.summary
    assert hang.ranks == (() if place is ALL_REDUCE else (1,))


def test_thread_that_was_started_again_has_not_ended() -> None:
    story = steady()
    go_on(story, 4.0, QUEUE, UPLOADER)
    says(story, 1, *OF_THREAD)

    go_on(story, 40.0, QUEUE, UPLOADER)

    assert story.hang().cause == "lock_not_released"


def test_what_the_kernel_knows_of_the_wait_outranks_a_thread_that_died() -> None:
    story = steady()
    go_on(story, 4.0, QUEUE, UPLOADER)
    says(story, 1, *OF_THREAD)
    remote = Wait("tcp_receive", "recvfrom", 5, peer="10.0.0.5:443", silent_seconds=92.0)
    main = ThreadWait(pid_of(1), "MainThread", "S", "", remote, same=True)
    for _ in range(20):
        story.tell(WaitsRead(1, pid_of(1), 0.5, (ProcessWaits(pid_of(1), 1, "python", (main,)),)))
        go_on(story, 2.0, QUEUE)

    assert story.hang().cause == "peer_is_silent"


def test_worker_that_is_gone_while_the_rank_waits_for_its_result_is_named() -> None:
    story = steady()
    go_on(story, 6.0, QUEUE, children=(5001, 5002, 5003))

    go_on(story, 40.0, QUEUE, children=(5001, 5003, 5004))  # the pool has replaced it

    hang = story.hang()
    assert (hang.klass, hang.cause, hang.ranks) == ("peer_not_joined", "worker_ended", (1,))
    assert "its child process pid 5002 ended 40 s ago" in hang.summary


@pytest.mark.parametrize(
    ("line", "host_pids", "said", "advice"),
    [
        ("traps: python[5002] general protection fault ip:7f sp:7f error:0 in libc.so.6[1a,7f+189]", True,
         " of SIGSEGV (general protection fault in libc.so.6), by the kernel's log", "PYTHONFAULTHANDLER=1"),
        ("Out of memory: Killed process 5002 (python) total-vm:9kB", True, " of SIGKILL (out of memory)", "for memory"),
        ("python[5009]: segfault at 0 ip 00 sp 00 error 4 in libc.so.6[7f+8e]", True, "", "its own lines"),
        ("python[5002]: segfault at 0 ip 00 sp 00 error 4 in libc.so.6[7f+8e]", False, "", "its own lines"),
    ],
)  # fmt: skip
def test_signal_that_ended_a_worker_is_told_by_the_log_of_the_kernel(
    line: str, host_pids: bool, said: str, advice: str
) -> None:
    story = steady()
    go_on(story, 6.0, QUEUE, children=(5001, 5002, 5003))
    story.tell(KernelLine(None, f"[ 71.457599] {line}", host_pids=host_pids))
    go_on(story, 40.0, QUEUE, children=(5001, 5003, 5004))

    hang = story.hang()
    assert f"its child process pid 5002 ended 40 s ago{said}" in hang.summary
    assert ("SIG" in hang.summary) is bool(said)
    assert advice in hang.advice and "a limit of CPU" not in hang.advice and "OOM" not in hang.advice


@pytest.mark.parametrize(("limits", "said"), [((6, 6), True), ((6, None), False), ((None, None), False)])
def test_limit_of_cpu_time_of_the_workers_that_are_left_is_shown(
    limits: tuple[int | None, int | None], said: bool
) -> None:
    story = steady()
    go_on(story, 6.0, QUEUE, children=(5001, 5002, 5003))
    rest = [
        ProcessWaits(pid, pid_of(1), "python", (), cpu_limit_seconds=limit)
        for pid, limit in zip((5001, 5004), limits, strict=True)
    ]
    go_on(story, 20.0, QUEUE, children=(5001, 5003, 5004))
    story.tell(WaitsRead(1, pid_of(1), 0.5, (ProcessWaits(pid_of(1), 1, "python", ()), *rest)))
    go_on(story, 20.0, QUEUE, children=(5001, 5003, 5004))

    hang = story.hang()
    assert hang.cause == "worker_ended" and "SIG" not in hang.summary
    assert ("after 6 s of CPU time, RLIMIT_CPU" in hang.summary) is said


def test_pool_that_was_shut_down_and_programs_that_ended_are_no_lost_workers() -> None:
    for before, after in (((5001, 5002, 5003), ()), ((), ())):
        story = steady()
        go_on(story, 6.0, QUEUE, children=before)
        git = process(6001, comm="git", ppid=pid_of(1))
        story.tell(tree(1, story.now, *(process(pid, ppid=pid_of(1)) for pid in before), git))
        story.wait(2.0)

        go_on(story, 40.0, QUEUE, children=after)

        assert story.hang().cause == "lock_not_released"


def test_worker_that_ended_is_not_what_a_rank_in_a_collective_waits_for() -> None:
    story = steady()
    go_on(story, 6.0, ALL_REDUCE, children=(5001, 5002))

    go_on(story, 90.0, ALL_REDUCE, children=(5001,))

    assert (story.hang().ranks, story.hang().cause) == ((), "all_ranks_wait")


def test_rank_that_printed_an_exception_before_all_wait_is_the_culprit() -> None:
    story = steady()
    go_on(story, 2.0, BARRIER)
    says(story, 1, *RAISED)

    go_on(story, 90.0, BARRIER)

    hang = story.hang()
    assert (hang.klass, hang.cause, hang.ranks) == ("peer_not_joined", "exception_before_wait", (1,))
    assert 'it printed "ValueError: shard 7 has no labels"' in hang.summary
    assert hang.confidence.value == "medium"


def test_handled_exception_before_a_long_call_of_all_ranks_is_no_hang() -> None:
    story = steady()
    go_on(story, 2.0, BARRIER)
    says(story, 1, *RAISED)

    go_on(story, 40.0, BARRIER)

    assert story.findings() == []


def test_exception_that_the_job_went_on_after_is_no_last_word() -> None:
    story = steady()
    says(story, 1, *RAISED)
    for number in range(11, 31):
        story.wait(1.0)
        for rank in range(2):
            story.tell(
                tree(rank, story.now), stack(rank, story.now, (*TRAIN, f"forward /app/model.py:{number}"))
            )
        story.tell(Iteration(1, number, 100, f"iteration {number}"))

    go_on(story, 90.0, BARRIER)

    assert story.hang().ranks == ()
    assert "ValueError" not in story.hang().summary


def test_exception_that_was_survived_before_is_no_last_word() -> None:
    story = steady()
    for attempt in range(2):
        says(story, 1, *TRACE[:-1], f"TimeoutError: attempt {attempt} timed out")
        for number in range(15):
            story.wait(2.0)
            for rank in range(2):
                line = f"fetch /app/data.py:{number + 20 * attempt}"
                story.tell(tree(rank, story.now), stack(rank, story.now, (*TRAIN, line)))
    says(story, 1, *TRACE[:-1], "TimeoutError: attempt 3 timed out")

    go_on(story, 330.0, BARRIER)

    assert story.hang().ranks == ()


def test_exception_of_all_ranks_blames_none() -> None:
    story = steady()
    for rank in range(2):
        says(story, rank, *RAISED)

    go_on(story, 90.0, BARRIER)

    assert story.hang().ranks == ()


def test_exception_in_an_output_that_all_share_is_whose_bytes_it_can_be() -> None:
    story = steady()
    written = {0: 1000, 1: 1000}
    for step in range(50):
        if step == 2:
            says(story, None, *RAISED)
            written[1] += sum(map(len, RAISED)) + 10
        for rank, lines in ((0, ALL_REDUCE), (1, BARRIER)):
            reading = tree(rank, story.now)
            object.__setattr__(reading.main, "write_chars", written[rank])
            story.tell(reading, stack(rank, story.now, lines))
        story.wait(2.0)

    hang = story.hang()
    assert (hang.cause, hang.ranks) == ("exception_before_wait", (1,))


def test_of_a_chain_of_exceptions_the_last_is_quoted() -> None:
    story = steady()
    go_on(story, 2.0, BARRIER)
    says(
        story,
        1,
        *TRACE,
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *RAISED,
    )

    go_on(story, 90.0, BARRIER)

    assert "ValueError: shard 7" in story.hang().summary
    assert "ConnectionResetError" not in str(story.hang().evidence)


def test_abort_of_native_code_is_a_last_word() -> None:
    story = steady()
    go_on(story, 2.0, BARRIER)
    story.tell(LogLine(1, "stderr", "terminate called after throwing an instance of 'c10::Error'"))

    go_on(story, 90.0, BARRIER)

    assert "terminate called after throwing" in story.hang().summary


def after_its_child_ended(seen: Sequence[str]) -> Story:
    """One of rank 1's two children, last seen there, is gone; rank 1 waits in a queue."""
    story = steady()
    story.tell(tree(1, story.now, process(5001, ppid=pid_of(1)), process(5002, ppid=pid_of(1))))
    story.tell(stack(1, story.now, seen, pid=5002))
    story.wait(2.0)
    go_on(story, 40.0, QUEUE, children=(5001,))
    return story


def test_frames_of_a_worker_tell_what_the_child_was_for() -> None:
    story = after_its_child_ended(POOL)

    assert "its pool worker pid 5002 ended" in story.hang().summary


def test_end_of_a_data_loaders_worker_is_torchs_to_report() -> None:
    story = after_its_child_ended(WORKER)

    assert story.hang().cause == "lock_not_released"


def shared(story: Story, seconds: float, *threads: ThreadStack, wrote: int) -> None:
    """Rank 1 waits in a queue; both ranks wrote so much in every two seconds."""
    for _ in range(int(seconds / 2)):
        for rank, lines in ((0, ALL_REDUCE), (1, QUEUE)):
            reading = tree(rank, story.now)
            object.__setattr__(reading.main, "write_chars", int(story.now * wrote))
            story.tell(reading, stack(rank, story.now, lines, *(threads if rank == 0 else ())))
        story.wait(2.0)


def test_thread_of_an_output_that_all_share_is_not_laid_to_the_rank_for_sure() -> None:
    story = steady()
    shared(story, 6.0, wrote=1000)
    says(story, None, *OF_THREAD)

    shared(story, 30.0, wrote=1000)

    hang = story.hang()
    assert (hang.cause, hang.confidence.value) == ("thread_ended", "medium")
    assert "by the output that the ranks share, thread uploader ended with" in hang.summary


def test_thread_that_another_rank_lost_is_not_this_ranks() -> None:
    """A TensorBoard writer of rank 0 dies, and rank 1 waits for something else."""
    story = steady()
    shared(story, 6.0, UPLOADER, wrote=1000)
    says(story, None, *OF_THREAD)

    shared(story, 30.0, wrote=1000)

    assert story.hang().cause == "lock_not_released"


# -- a rank that raised, and cannot end ------------------------------------------------------------------------

SHUTDOWN = ("_shutdown python3.11/threading.py:1590",)


def ending(story: Story, seconds: float = 40.0) -> None:
    """Rank 1 waits in its shutdown for a thread that waits for work."""
    journal = ThreadStack(7002, "journal", frames("write /app/train.py:29", "get python3.11/queue.py:171"))
    join = Wait("join", "futex", others=(Party(pid_of(1), 7002),))
    threads = (
        ThreadWait(pid_of(1), "MainThread", "S", "", join, same=True),
        ThreadWait(7002, "journal", "S", "", Wait("condition", "futex"), same=True),
    )
    for _ in range(int(seconds / 2)):
        story.tell(WaitsRead(1, pid_of(1), 0.5, (ProcessWaits(pid_of(1), 1, "python", threads),)))
        go_on(story, 2.0, SHUTDOWN, journal)


def test_exception_that_a_rank_cannot_end_after_is_quoted_with_the_thread_that_keeps_it() -> None:
    story = steady()
    says(story, 1, *TRACE[:-1], "KeyError: 'hén'")
    ending(story)

    hang = story.hang()
    assert (hang.klass, hang.cause, hang.ranks) == ("teardown", "exception_before_shutdown", (1,))
    assert "waits for thread journal (tid 7002) to end" in hang.summary
    assert "it is ending after \"KeyError: 'hén'\", printed 40 s ago" in hang.summary
    assert "since thread journal (tid 7002), a thread that is no daemon, is waited for" in hang.advice


def test_rank_that_cannot_end_and_raised_nothing_is_only_stuck() -> None:
    story = steady()
    ending(story)

    assert story.hang().cause == "teardown_blocked"


def test_exception_long_before_the_end_is_not_what_the_rank_ends_after() -> None:
    story = steady()
    says(story, 1, *TRACE[:-1], "KeyError: 'hén'")
    for number in range(20):
        story.wait(2.0)
        for rank in range(2):
            line = f"fetch /app/data.py:{number}"
            story.tell(tree(rank, story.now), stack(rank, story.now, (*TRAIN, line)))
    ending(story)

    assert (story.hang().cause, "KeyError" in story.hang().summary) == ("teardown_blocked", False)


@pytest.mark.parametrize(
    ("end", "said", "advice"),
    [
        ((None, 14), " of SIGALRM", "one that the parent has set is not there in a process that was spawned"),
        ((None, 9), " of SIGKILL", "short of memory"),
        ((None, 15), " of SIGTERM", "somebody has sent it SIGTERM"),
        ((None, 11), " of SIGSEGV", "PYTHONFAULTHANDLER=1"),
        ((None, 65), " of signal 65", "its own lines"),
        ((3, None), " with exit code 3", "its own lines"),
        (None, "", "its own lines"),
    ],
)
def test_end_of_a_worker_that_nobody_reported_is_told_as_the_kernel_has_it(
    end: tuple[int | None, int | None] | None, said: str, advice: str
) -> None:
    story = steady()
    go_on(story, 6.0, QUEUE, children=(5001, 5002, 5003))
    if end is not None:
        story.tell(ChildEnded(1, 5002, *end))
        story.tell(ChildEnded(1, 5001, None, 6))  # another one
    go_on(story, 40.0, QUEUE, children=(5001, 5003, 5004))

    hang = story.hang()
    assert f"its child process pid 5002 ended 40 s ago{said};" in hang.summary
    assert advice in hang.advice and "SIGABRT" not in hang.summary


@pytest.mark.parametrize(("number", "said"), [(24, True), (9, False)])
def test_limit_of_cpu_time_is_shown_with_the_signal_that_it_sends(number: int, said: bool) -> None:
    story = steady()
    go_on(story, 6.0, QUEUE, children=(5001, 5002))
    story.tell(ChildEnded(1, 5002, None, number))
    rest = ProcessWaits(5001, pid_of(1), "python", (), cpu_limit_seconds=6)
    story.tell(WaitsRead(1, pid_of(1), 0.5, (ProcessWaits(pid_of(1), 1, "python", ()), rest)))
    go_on(story, 40.0, QUEUE, children=(5001, 5003))

    hang = story.hang()
    assert ("of SIGXCPU (the kernel ends each of its kind after 6 s" in hang.summary) is said
    assert ("the limit of CPU time shown" in hang.advice) is said
