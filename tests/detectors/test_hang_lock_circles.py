"""A lock on a file that a rank has while it waits for its peers: said with both sides; not where it may be given back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.detectors.hang.lock_circles import lock_name
from diag.model import Finding
from diag.model.observations import ThreadStack
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import started
from tests.facts import ALL_REDUCE, TRAIN, frames, pid_of, stack, tree

TAKES = (*TRAIN, "take /app/slot.py:11")
HOLDER = Party(pid_of(0), 0, "python train.py", rank=0)
LOCK = Wait("file_lock", "flock", 3, "/run/job/slot0", others=(HOLDER,), taken_by=pid_of(0))
WRITER = ("<module> /app/train.py:300", "write /app/saver.py:40", "sleep /app/saver.py:44")


def told(wait: Wait, *, world: int = 3, writer: bool = False, holds: tuple[str, ...] = ALL_REDUCE) -> Finding:
    """The last rank waits for a lock at its own line, all others in all_reduce; rank 0 may have a thread of its own."""
    last = world - 1
    story = started(world=world)
    own = ThreadWait(pid_of(last), "python", "S", "locks_lock_inode_wait", wait, cpu_ratio=0.0, same=True)
    for _ in range(20):
        for rank in range(last):
            more = [ThreadStack(77, "saver", frames(*WRITER))] if writer and not rank else []
            story.tell(tree(rank, story.now), stack(rank, story.now, ALL_REDUCE if rank else holds, *more))
        story.tell(tree(last, story.now), stack(last, story.now, TAKES))
        process = ProcessWaits(pid_of(last), 1, "python train.py", (own,))
        story.tell(WaitsRead(last, pid_of(last), 0.5, (process,)))
        story.wait(2.0)
    return story.the("held-up")


def test_lock_of_a_rank_that_waits_for_its_peers_is_a_circle_with_both_sides() -> None:
    found = told(LOCK)

    assert (found.cause, found.ranks) == ("lock_of_waiting_rank", (2,))
    assert "waits for a lock on /run/job/slot0, held by rank 0" in found.summary
    assert "rank 0 has it and waits in all_reduce (from train, /app/train.py:200) for rank 2" in found.summary
    assert "each waits for the other" in found.summary
    assert "before any call in which ranks wait for each other" in found.advice


def test_places_that_are_fewer_than_ranks_are_counted() -> None:
    found = told(replace(LOCK, beside=(("/run/job/slot1", pid_of(1)), ("/run/job/log", 4711))))

    assert (found.cause, found.ranks) == ("fewer_places_than_ranks", (2,))
    assert "ranks 0-1 have one lock each of 2 in /run/job (slot0, slot1)" in found.summary
    assert "Make as many as ranks" in found.advice


@pytest.mark.parametrize(
    ("wait", "more"),
    [
        (LOCK, {"writer": True}),  # it may give the lock back yet
        (LOCK, {"holds": TRAIN}),  # it works, and holds nobody up on purpose
        (replace(LOCK, others=(Party(4711, 0, "python other.py"),)), {}),  # none of the job's
        (replace(LOCK, others=(replace(HOLDER, pid=4711),)), {}),  # a process below it: not what waits there
    ],
)
def test_lock_that_may_come_free_is_no_circle(wait: Wait, more: dict[str, object]) -> None:
    found = told(wait, **more)  # type: ignore[arg-type]

    assert "each waits for the other" not in found.summary
    assert found.cause not in ("lock_of_waiting_rank", "fewer_places_than_ranks")


@pytest.mark.parametrize(
    ("path", "lock", "name"),
    [
        ("/a.db", "POSIX WRITE 1073741825 1073741825", "RESERVED"),
        ("/a.db", "POSIX WRITE 1073741826 1073742335", "EXCLUSIVE"),
        ("/a.db", "POSIX READ 1073741900 1073741900", "SHARED"),
        ("/a.db-shm", "POSIX WRITE 120 120", "(WAL)"),
        ("/a.db", "POSIX WRITE 120 120", ""),
        ("/a.db", "POSIX WRITE 0 EOF", ""),
        ("/a.db", "", ""),
    ],
)
def test_locks_of_sqlite_are_known_by_their_bytes(path: str, lock: str, name: str) -> None:
    found = lock_name(Wait("sleep", path=path, lock=lock))

    assert (name in found) and bool(found) == bool(name)
