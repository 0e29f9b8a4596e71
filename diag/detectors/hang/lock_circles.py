"""A lock on a file between ranks: one has it and waits for its peers, and another cannot come before it gets that lock."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace

from diag.detectors.hang.messages import call_of
from diag.detectors.hang.rank_wait import WAITS, classify_rank
from diag.detectors.hang.verdict import Note, Verdict, others
from diag.detectors.hang.wait_text import format_chain
from diag.model.observations import Frame
from diag.model.observations.waits import Wait
from diag.state.own_code import own_frames
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.text.units import format_path, format_ranks

_MOST_PLACES = 4
# By the first byte that is locked of the database file: sqlite3's os.h, 3.0 to 3.50. The bytes lie behind 1 GiB.
_SQLITE = {
    ("WRITE", 1 << 30): "PENDING lock: a transaction is to be written",
    ("WRITE", (1 << 30) + 1): "RESERVED lock: a transaction has written and was not ended",
    ("WRITE", (1 << 30) + 2): "EXCLUSIVE lock: a transaction is being written, or was begun as exclusive",
    ("READ", (1 << 30) + 2): "SHARED lock: a transaction has read and was not ended",
}
_SQLITE_SHARED = range((1 << 30) + 2, (1 << 30) + 512)  # any of them may be taken to read
_SQLITE_WAL = ("WRITE", 120)  # of the file -shm: WAL_WRITE_LOCK of its wal.c


def lock_name(wait: Wait) -> str:
    """What the bytes say that are locked; empty for a lock of flock(2), or of another program.

    >>> lock_name(Wait("sleep", path="/a/runs.db", lock="POSIX WRITE 1073741825 1073741825"))
    "SQLite's RESERVED lock: a transaction has written and was not ended"
    >>> lock_name(Wait("sleep", path="/a/runs.db-shm", lock="POSIX WRITE 120 120"))
    "SQLite's write lock (WAL): a transaction has written and was not ended"
    >>> lock_name(Wait("file_lock", path="/a/slot0", lock="FLOCK WRITE 0 EOF"))
    ''
    """
    parts = wait.lock.split()
    if len(parts) != 4 or not parts[2].isdecimal():
        return ""
    mode, first = parts[1], int(parts[2])
    if (mode, first) == _SQLITE_WAL and wait.path.endswith("-shm"):
        return "SQLite's write lock (WAL): a transaction has written and was not ended"
    if mode == "READ" and first in _SQLITE_SHARED:
        first = _SQLITE_SHARED.start
    known = _SQLITE.get((mode, first))
    return f"SQLite's {known}" if known else ""


def keeps_lock(verdict: Verdict, rank: RankView, frames: Sequence[Frame], job: JobView) -> Verdict:
    """Of a lock on a file that one rank keeps and waits with for the others, while another tries again and again."""
    chain, cwd = verdict.chain, job.run.cwd
    if chain is None or verdict.cause != "file_locked":
        return verdict
    wait = chain.last.wait
    holder = wait.others[0].rank
    if holder is None or holder not in verdict.waiting:
        return verdict
    at = f" in {format_frame(frames[-1], cwd)}" if frames else ""
    words = f"rank {rank.rank} tries again and again to lock {wait.path}{at}"
    if named := lock_name(wait):
        words += f", of which rank {holder} has {named}"
    if (meanwhile := _waits_meanwhile(holder, (rank.rank,), job)) and _alone(job.ranks.get(holder)):
        words += f"; rank {holder} {meanwhile}: each waits for the other"
    everybody = verdict.everyone
    return replace(
        verdict,
        cause="keeps_database_locked" if named else "keeps_file_locked",
        culprits=(holder,),
        waiting=others(everybody, (holder,)),
        chain=None,
        reason=None,
        words=words,
    ).noted(Note("waits", format_chain(chain, f"pid {rank.placement.pid}"), rank.rank))


def with_lock_circle(verdict: Verdict, job: JobView) -> Verdict:
    """Of a rank that waits for a lock which another rank has, and that waits for its peers meanwhile. One whose other
    threads run code of the program may give it back yet: then only who has it is said."""
    chain = verdict.chain
    if verdict.cause != "file_lock_held" or chain is None or verdict.blamed_child is not None:
        return verdict
    wait = chain.steps[0].wait
    holder = wait.others[0].rank if wait.kind == "file_lock" and wait.others else None
    view = job.ranks.get(holder) if holder is not None and holder in verdict.waiting else None
    if holder is None or view is None or view.placement.pid not in wait.pids or not _alone(view):
        return verdict
    if not (meanwhile := _waits_meanwhile(holder, verdict.culprits, job)):
        return verdict
    by_pid = {one.placement.pid: one.rank for one in job.ranks.known(verdict.waiting)}
    taken = {
        path: by_pid[pid] for path, pid in (*wait.beside, (wait.path, view.placement.pid)) if pid in by_pid
    }
    words = f"rank {holder} has it and {meanwhile}: each waits for the other"
    cause = "lock_of_waiting_rank"
    if len(set(taken.values())) > 1:
        cause = "fewer_places_than_ranks"
        names = sorted(map(posixpath.basename, taken))
        shown = ", ".join(names[:_MOST_PLACES]) + (", ..." if len(names) > _MOST_PLACES else "")
        holders = tuple(sorted(set(taken.values())))
        folder = format_path(posixpath.dirname(wait.path), job.run.cwd)
        words = (
            f"{format_ranks(holders)} have one lock each of {len(names)} in {folder} ({shown}); rank {holder} "
            f"{meanwhile}: each waits for the other"
        )
    # Who holds it sleeps or waits by the kernel, which its own place says better.
    return replace(verdict, cause=cause, words=words, chain=replace(chain, steps=chain.steps[:1], end="rank"))


def _waits_meanwhile(holder: int, whom: tuple[int, ...], job: JobView) -> str:
    """ "waits in all_reduce (from job, train.py:64) for rank 1"; empty where it does not wait for its peers."""
    rank = job.ranks.get(holder)
    if rank is None or classify_rank(rank) not in WAITS:
        return ""
    place = call_of(rank.reading, job.run.cwd)
    return f"waits {f'in {place} ' if place else ''}for {format_ranks(whom)}"


def _alone(rank: RankView | None) -> bool:
    """No thread of it but the one that waits runs code of the program's own."""
    threads = rank.stack.threads if rank is not None and rank.stack is not None else ()
    judged = rank.judged if rank is not None else None
    return judged is not None and not any(
        own_frames(one.frames) for one in threads if one.thread_id != judged.thread_id
    )
