"""What the kernel says of a rank's threads decides the cause, whatever their functions are called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from diag.model import Finding
from diag.model.observations import EnvironmentSeen, ThreadStack
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import started
from tests.facts import ALL_REDUCE, DATA, TRAIN, WORKER, Story, frames, pid_of, process, stack, tree

OWN_CODE = (*TRAIN, "publish /app/report.py:31")
CHILD, THREAD = 90_001, 90_002


def thread(tid: int, wait: Wait, name: str = "python", *, state: str = "S", same: bool = True) -> ThreadWait:
    return ThreadWait(tid, name, state, "", wait, cpu_ratio=0.0, same=same)


def waits(main: Wait, *more: ThreadWait, child: Wait | None = None, same: bool = True) -> WaitsRead:
    pid = pid_of(1)
    processes = [ProcessWaits(pid, 1, "python train.py", (thread(pid, main, "MainThread", same=same), *more))]
    if child is not None:
        processes.append(ProcessWaits(CHILD, pid, "sh upload.sh", (thread(CHILD, child, "sh"),)))
    return WaitsRead(1, pid, 0.5, tuple(processes))


def told(read: WaitsRead) -> Story:
    """Rank 0 waits in all_reduce, rank 1 is in its own code."""
    story = started()
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, OWN_CODE), read)
        story.wait(2.0)
    return story


REMOTE = Wait("tcp_receive", "recvfrom", 5, peer="10.0.0.5:443", silent_seconds=92.0)
OF_THREAD = (Party(pid_of(1), THREAD),)
OF_CHILD = (Party(CHILD, 0, "sh upload.sh"),)


@pytest.mark.parametrize(
    ("read", "klass", "cause", "shown"),
    [
        (waits(REMOTE), "peer_not_joined", "peer_is_silent", "waits for data from 10.0.0.5:443"),
        (
            waits(replace(REMOTE, received_bytes=0)),  # the kernel's time is that of the connection's beginning
            "peer_not_joined",
            "peer_is_silent",
            "(fd 5; no byte has come on this connection yet)",
        ),
        (
            waits(Wait("tcp_connect", "connect", 5, peer="10.0.0.5:443", socket_state="SYN_SENT")),
            "peer_not_joined",
            "peer_does_not_answer",
            "connects to 10.0.0.5:443",
        ),
        (
            waits(Wait("join", "futex", others=OF_THREAD), thread(THREAD, REMOTE, "uploader")),
            "peer_not_joined",
            "thread_does_not_end",
            "waits for thread uploader (tid 90002) to end, which waits for data from 10.0.0.5:443",
        ),
        (
            waits(Wait("mutex", "futex", others=OF_THREAD), thread(THREAD, Wait("sleep", "nanosleep", seconds=60.0), "w")),
            "lock_deadlock",
            "lock_held",
            "waits for a lock held by thread w (tid 90002), which sleeps",
        ),
        (
            waits(
                Wait("mutex", "futex", others=OF_THREAD),
                thread(THREAD, Wait("mutex", "futex", others=(Party(pid_of(1), pid_of(1)),)), "w"),
            ),
            "lock_deadlock",
            "threads_wait_for_each_other",
            "a deadlock",
        ),
        (
            waits(Wait("mutex", "futex", dead_end="owner_ended", reason="its owner was thread 4711")),
            "lock_deadlock",
            "lock_owner_ended",
            "its owner was thread 4711, which has ended",
        ),
        (
            waits(Wait("gil", "futex", others=OF_THREAD), thread(THREAD, Wait("file_io", "write", 5, "/nfs/x"), "w")),
            "gil_deadlock",
            "gil_held_by_thread",
            "waits for Python's interpreter lock, held by thread w (tid 90002), which is in write of /nfs/x",
        ),
        (
            waits(Wait("child", "wait4", others=OF_CHILD), child=REMOTE),
            "peer_not_joined",
            "child_does_not_end",
            "waits for child pid 90001 (`sh upload.sh`) to end, which waits for data from 10.0.0.5:443",
        ),
        (
            waits(Wait("child", "wait4", others=OF_CHILD), child=Wait("stopped", dead_end="stopped")),
            "peer_not_joined",
            "process_stopped",
            "which is stopped by a signal",
        ),
        (
            waits(Wait("pipe_read", "read", 7, "pipe:[1]", dead_end="only_self")),
            "peer_not_joined",
            "pipe_without_other_end",
            "no other process can write to",
        ),
        (
            waits(Wait("pipe_write", "write", 7, "pipe:[1]", others=OF_CHILD), child=Wait("sleep", "nanosleep")),
            "peer_not_joined",
            "process_does_not_read",
            "writes to a full pipe (fd 7) that pid 90001 (`sh upload.sh`) does not read",
        ),
        (
            waits(Wait("file_lock", "flock", 7, "/data/.lock", others=(Party(4711, 0, "python other.py"),))),
            "peer_not_joined",
            "file_lock_held",
            "waits for a lock on /data/.lock, held by pid 4711 (`python other.py`)",
        ),
        (
            waits(Wait("fifo_open", "openat", path="/run/orders")),
            "peer_not_joined",
            "fifo_without_other_end",
            "opens FIFO /run/orders",
        ),
        (
            waits(Wait("terminal", "read", 0, "/dev/pts/3")),
            "peer_not_joined",
            "waits_for_input",
            "reads from terminal /dev/pts/3",
        ),
        (
            waits(Wait("file_io", "statx", path="/mnt/d/a", mount="/mnt/d", file_system="fuse.sshfs")),
            "peer_not_joined",
            "file_system_does_not_answer",
            "is in statx of /mnt/d/a on /mnt/d (fuse.sshfs)",
        ),
        (waits(Wait("frozen", dead_end="frozen")), "peer_not_joined", "frozen", "is frozen with its cgroup"),
        (waits(Wait("tcp_accept", "accept4", 5, local="0.0.0.0:80")), "peer_not_joined", "nobody_connects", "0.0.0.0:80"),
        (waits(Wait("sleep", "nanosleep", seconds=600.0)), "peer_not_joined", "sleeps", "sleeps (10 min left)"),
    ],
)  # fmt: skip
def test_kernel_decides_the_cause(read: WaitsRead, klass: str, cause: str, shown: str) -> None:
    hang = told(read).hang()

    assert (hang.klass, hang.cause, hang.ranks, hang.waiting_ranks) == (klass, cause, (1,), (0,))
    assert shown in hang.summary
    assert any(item.kind == "waits" and shown in item.excerpt for item in hang.evidence)
    assert "{" not in hang.advice and "[" not in hang.advice


@pytest.mark.parametrize(
    "wait",
    [
        Wait("condition", "futex"),
        Wait("poll", "epoll_wait", watched=(REMOTE, REMOTE)),
        Wait("unreadable", reason="neither may be read"),
        Wait("other", "ioctl"),
        Wait("other", "read", 5, "anon_inode:[eventfd]"),
        Wait("file_io", "read", 7, "/nfs/x", "/nfs", "nfs4", mount_answers=True),
        Wait("pipe_read", "read", 7, "pipe:[1]", others=(Party(pid_of(1)),)),
    ],
)
def test_kernel_that_does_not_know_more_leaves_the_cause_to_the_stack(wait: Wait) -> None:
    hang = told(waits(wait)).hang()

    assert (hang.klass, hang.cause) == ("peer_not_joined", "not_in_collective")


def test_sleep_with_the_interpreters_lock_stays_a_gil_deadlock() -> None:
    story = started()
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(
            tree(1, story.now),
            stack(1, story.now, OWN_CODE, owns_gil=True),
            waits(Wait("sleep", "nanosleep")),
        )
        story.wait(2.0)

    assert (story.hang().klass, story.hang().cause) == ("gil_deadlock", "gil_held")


def test_write_that_does_not_return_outranks_the_interpreters_lock_that_it_holds() -> None:
    story = started()
    write = Wait("file_io", "write", 7, "/mnt/d/iter_5.pt", "/mnt/d", "fuse.sshfs")
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, OWN_CODE, owns_gil=True), waits(write))
        story.wait(2.0)

    assert story.hang().cause == "file_system_does_not_answer"


def test_process_that_no_signal_ends_is_said_to_need_a_reboot_only_where_its_storage_is_silent() -> None:
    write = Wait("file_io", "write", 7, "/mnt/d/iter_5.pt", "/mnt/d", "fuse.sshfs")

    assert "(state D), nothing can" in told(waits(write)).hang().advice
    assert "reboot" not in told(waits(replace(write, mount_answers=True))).hang().advice


def fed_with(story: Story, received: Iterable[int]) -> None:
    """A reading every 5 s, each of so many bytes more than the one before."""
    total = 0
    for more in received:
        total += more
        wait = replace(REMOTE, silent_seconds=1.5, received_bytes=total)
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE), tree(1, story.now))
        story.tell(stack(1, story.now, OWN_CODE), waits(wait))
        story.wait(5.0)


def test_slow_download_is_no_hang_as_long_as_bytes_come() -> None:
    fed_with(story := started(), [10_000] * 100)
    assert [finding.id for finding in story.findings()] == []

    for silent in range(2, 62, 2):
        wait = replace(REMOTE, silent_seconds=float(silent), received_bytes=1_000_000)
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE), tree(1, story.now))
        story.tell(stack(1, story.now, OWN_CODE), waits(wait))
        story.wait(2.0)
    assert story.hang().cause == "peer_is_silent"


def test_peer_that_only_keeps_the_connection_open_is_believed_for_a_limited_time() -> None:
    fed_with(story := started(), [1] * 20)
    assert [finding.id for finding in story.findings()] == []

    fed_with(story, [1] * 20)
    hang = story.hang()
    assert hang.cause == "peer_is_silent"
    assert any("came from 10.0.0.5:443 in" in item.excerpt for item in hang.evidence if item.kind == "waits")


def test_download_that_turns_into_keep_alives_is_reported() -> None:
    fed_with(story := started(), [10_000] * 100)
    fed_with(story, [1] * 40)

    assert story.hang().cause == "peer_is_silent"


def at_the_store(lines: tuple[str, ...]) -> Finding:
    story = started()
    story.tell(
        EnvironmentSeen(1, pid_of(1), (("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500"))),
    )
    wait = Wait("tcp_receive", "poll", 5, local="10.0.0.2:40000", peer="10.0.0.1:29500", silent_seconds=92.0)
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, lines), waits(wait))
        story.wait(2.0)
    return story.hang()


def test_wait_for_the_jobs_own_store_is_no_silent_service() -> None:
    hang = at_the_store(OWN_CODE)

    assert (hang.klass, hang.cause) == ("peer_not_joined", "waits_at_store")
    assert "waits for data from 10.0.0.1:29500" in hang.summary
    assert "the job's own store" in hang.summary
    assert "service lives" not in hang.advice
    assert "which rank sets it" in hang.advice


@pytest.mark.parametrize("call", ["distributed_c10d.py:5442", "elastic/utils/store.py:80"])
def test_call_of_torch_that_is_at_the_store_waits_for_its_peers_and_no_key(call: str) -> None:
    hang = at_the_store((*OWN_CODE, f"new_group torch/distributed/{call}"))

    assert hang.cause != "waits_at_store" and "key" not in hang.advice


def test_wait_for_another_rank_names_it_and_what_it_waits_for() -> None:
    story = started()
    wait = replace(REMOTE, peer="127.0.0.1:40000", others=(Party(pid_of(0), 0, "python train.py"),))
    zero = ProcessWaits(
        pid_of(0), 1, "python train.py", (thread(pid_of(0), Wait("file_lock", "flock", 3, "/x")),)
    )
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(WaitsRead(0, pid_of(0), 0.5, (zero,)))
        story.tell(tree(1, story.now), stack(1, story.now, OWN_CODE), waits(wait))
        story.wait(2.0)

    hang = story.hang()
    assert hang.cause == "not_in_collective"
    assert "waits for data from 127.0.0.1:40000, rank 0 (pid 1000)" in hang.summary
    assert "which waits for a lock on /x" in hang.summary


def test_wait_for_a_process_that_is_no_rank_blames_that_one() -> None:
    wait = replace(REMOTE, peer="127.0.0.1:40000", others=(Party(4711, 0, "redis-server"),))

    assert told(waits(wait)).hang().cause == "process_is_silent"


@pytest.mark.parametrize(
    ("wait", "cause"),
    [
        (
            Wait("file_io", "write", 7, "/mnt/d/iter_5.pt", "/mnt/d", "fuse.sshfs"),
            "file_system_does_not_answer",
        ),
        (Wait("fifo_open", "openat", path="/mnt/d/common.pt"), "fifo_without_other_end"),
    ],
)
def test_save_that_holds_the_interpreters_lock_is_a_save(wait: Wait, cause: str) -> None:
    save = (
        *TRAIN,
        "save /app/train.py:88",
        "save torch/serialization.py:964",
        "write torch/serialization.py:1003",
    )
    story = started()
    for _ in range(40):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, save, owns_gil=True), waits(wait))
        story.wait(2.0)

    hang = story.hang()
    assert (hang.klass, hang.cause, hang.ranks) == ("checkpoint_io", cause, (1,))
    assert wait.path in hang.summary


def test_data_worker_is_blamed_with_what_it_waits_for() -> None:
    story = started()
    read = waits(Wait("condition", "futex"), child=Wait("file_io", "read", 7, "/data/a.bin", "/data", "nfs4"))
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, process(CHILD, comm="pt_data_worker")), stack(1, story.now, DATA), read)
        story.tell(stack(1, story.now, WORKER, pid=CHILD))
        story.wait(2.0)

    hang = story.hang()
    assert (hang.klass, hang.cause) == ("data_loading", "dataloader_worker_blocked")
    assert f"pid {CHILD} is in read of /data/a.bin on /data (nfs4)" in hang.summary


def test_wait_that_changed_while_it_was_read_decides_nothing() -> None:
    assert told(waits(REMOTE, same=False)).hang().cause == "not_in_collective"


def test_wait_that_was_read_before_the_silence_decides_nothing() -> None:
    story = started()
    story.tell(tree(1, story.now), stack(1, story.now, OWN_CODE), waits(REMOTE))
    for number in range(5):
        story.wait(2.0)
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, (*TRAIN, f"forward /app/model.py:{number}")))
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, OWN_CODE))
        story.wait(2.0)

    assert story.hang().cause == "not_in_collective"


def test_reading_of_a_process_that_had_the_ranks_number_before_is_not_kept() -> None:
    other = replace(waits(REMOTE), pid=4711)

    assert told(other).hang().cause == "not_in_collective"


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        (Wait("condition", "futex"), "threads_wait_for_each_other"),
        (Wait("poll", "poll"), "not_in_collective"),
    ],
)
def test_other_thread_that_is_in_no_lock_is_no_part_of_a_deadlock(other: Wait, cause: str) -> None:
    story = started()
    writer = ThreadStack(
        THREAD, "writer", frames("run /app/report.py:9", "flush /app/io.py:8", "put /app/io.py:20")
    )
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(waits(Wait("condition", "futex"), thread(THREAD, other, "writer")))
        story.tell(tree(1, story.now, wchan="futex_do_wait"), stack(1, story.now, OWN_CODE, writer))
        story.wait(2.0)

    assert story.hang().cause == cause


def test_stack_of_the_thread_that_is_waited_for_is_evidence() -> None:
    story = started()
    uploader = ThreadStack(THREAD, "uploader", frames("run /app/report.py:9", "put /app/store.py:44"))
    read = waits(Wait("join", "futex", others=OF_THREAD), thread(THREAD, REMOTE, "uploader"))
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, OWN_CODE, uploader), read)
        story.wait(2.0)

    assert any("put (/app/store.py:44)" in item.excerpt for item in story.hang().evidence)
