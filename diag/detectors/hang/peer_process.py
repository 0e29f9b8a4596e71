"""What the threads of a process of this machine do that a rank waits for, where it is none of the job's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from diag.detectors.hang.scene import Scene, format_wait_of
from diag.detectors.hang.wait_text import format_wait
from diag.model import numbered
from diag.model.observations.waits import ProcessWaits
from diag.state.own_code import own_frames
from diag.state.python_waits import waits_of
from diag.state.stack_activity import format_frame
from diag.state.wait_chain import Step

_SHOWN = 2
_INSIDE = 8  # frames of a library between the program's own line and the wait
# At rest by trade: who has these awaits others, or is about to look again.
_AT_REST = (
    "tcp_accept",
    "poll",
    "signal",
    "sleep",
    "io_uring",
    "ended",
    "running",
    "unreadable",
    "exiting",
    "other",
)
_HELD_UP = ("queue_put", "semaphore", "event", "condition", "barrier", "future", "result")


@dataclass(frozen=True, slots=True)
class InThePeer:
    """`full`: one of its threads waits to put into a queue from which no other takes."""

    words: str
    full: bool


def in_the_peer(scene: Scene) -> InThePeer | None:
    """None where nothing of it may be read, or nothing there is held up."""
    if scene.chain.end not in ("outside", "several") or len({one.pid for one in scene.last.wait.others}) != 1:
        return None
    read, pid = scene.rank.waits, scene.last.wait.others[0].pid
    process = read.process(pid) if read is not None else None
    if process is None or process.job or process.threads_left_out:
        return None
    return _of(scene, process)


def _of(scene: Scene, process: ProcessWaits) -> InThePeer | None:
    sample = scene.sample(process.pid)
    waits = waits_of(sample)
    threads = {one.thread_id: one for one in sample.threads} if sample is not None else {}
    clauses: Counter[str] = Counter()
    names: dict[str, str] = {}
    putting = taking = False
    for one in process.threads:
        wait = waits.get(one.tid)
        taking = taking or (wait is not None and wait.kind == "queue_get")
        if one.wait.kind in _AT_REST or one.wait.timed:  # it was read once: that it lasts, its stack shows
            continue
        thread = threads.get(one.tid)
        if thread is None or (wait is not None and wait.kind not in _HELD_UP):
            continue  # a library's own; or it waits for others, as a thread does that takes work from a queue
        putting = putting or (wait is not None and wait.kind == "queue_put")
        if wait is not None:
            clause = f"waits in {format_wait_of(wait, scene.cwd)}"
        elif own := own_frames(thread.frames[-_INSIDE:]):
            clause = f"{format_wait(Step(process, one))} in {format_frame(own[-1], scene.cwd)}"
        else:
            continue
        clauses[clause] += 1
        names.setdefault(
            clause, "its main thread" if one.tid == process.pid else f"its thread {one.name} (tid {one.tid})"
        )
    if not clauses:
        return None
    full = putting and not taking
    parts = [
        f"{names[clause]} {clause}"
        if count == 1
        else f"{count} of its threads {clause.replace('waits', 'wait', 1)}"
        for clause, count in clauses.most_common(_SHOWN)
    ]
    more = len(clauses) - _SHOWN
    tail = numbered(f" and {more} more elsewhere", more) if more > 0 else ""
    why = ": that queue is full, and none of its threads takes from it" if full else ""
    return InThePeer(f"in pid {process.pid} {' and '.join(parts)}{tail}{why}", full)
