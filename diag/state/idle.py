"""Whether a child of a rank waits for work: as the kernel shows, who knows whom it waits for; else as its frames look."""

from __future__ import annotations

from diag.model.observations import StackSample
from diag.model.observations.waits import ProcessWaits, Wait
from diag.state.rank_view import RankView
from diag.state.stack_activity import is_idle_worker

# A reading of its waits that is older or newer than its stack by more speaks of something else.
_SECONDS = 30.0
_ASKS = ("pipe_read", "unix_receive")
# It waits for something else than for whoever gives it work, whatever its frames look like.
_AT_WORK = (
    "file_io", "page_fault", "tcp_connect", "tcp_send", "child", "join", "mutex", "gil", "fifo_open", "file_lock",
    "terminal", "stopped", "frozen",
)  # fmt: skip


def is_idle_child(rank: RankView, sample: StackSample) -> bool:
    """
    Proven where it reads from a pipe or socket whose other end its rank, or the process that started it, holds: then
    it waits for them. One that reads from a process of its own (a decoder), or from a pipe that nobody writes to any
    more, is not idle. What the kernel does not show is guessed from the frames.
    """
    process = rank.process_waits(sample.pid)
    thread = process.thread() if process is not None else None
    at = rank.child_stacks.get(sample.pid, (0.0, sample))[0]
    if process is None or thread is None or not thread.same or abs(rank.waits_at - at) > _SECONDS:
        return is_idle_worker(sample)
    found = asks_for_work(process, thread.wait, rank.placement.pid)
    return is_idle_worker(sample) if found is None else found


def asks_for_work(process: ProcessWaits, wait: Wait, rank_pid: int) -> bool | None:
    """None where the kernel does not show it."""
    if wait.dead_end or wait.kind in _AT_WORK:
        return False
    if wait.kind in _ASKS and wait.others:
        return not wait.pids.isdisjoint((rank_pid, process.parent))
    return None
