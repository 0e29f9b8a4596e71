"""Why a wait between processes never ends: a queue whose reader has ended, a lock that went with its holder, pipes that are
read in the wrong order, what a fork has kept open."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from diag.detectors.hang.kernel_causes import circle_cause
from diag.detectors.hang.scene import Endless, Scene, format_wait_of
from diag.detectors.hang.wait_text import format_wait
from diag.model import numbered
from diag.model.observations.waits import ProcessWaits, ThreadWait
from diag.state.own_code import own_frames
from diag.state.python_waits import PythonWait, waits_of
from diag.state.stack_activity import format_frame
from diag.state.wait_chain import Step

_PIPES = ("pipe_read", "pipe_write", "unix_receive", "unix_send")
_PUTS = ("channel_put", "channel_feed")
_COMMAND = 60
_GETS = re.compile(r"(\w+)\.get\b")


def queue_without_reader(scene: Scene) -> Endless | None:
    """The thread that writes what was put into a multiprocessing.Queue: nobody else can read its pipe any more."""
    thread = scene.threads.get(scene.last.thread.tid)
    wait, last = scene.wait, scene.last.wait
    if thread is None or wait is None or wait.kind != "channel_feed" or last.kind != "pipe_write":
        return None
    alone = last.dead_end == "only_self" or last.pids == {scene.process.pid}
    if not alone or any(one.kind == "channel_get" for one in scene.waits.values()):
        return None
    words = ", ".join(filter(None, ("nobody is left who takes from that queue", scene.ended_child())))
    return Endless("queue_without_reader", words, True)


def lock_of_a_dead_process(scene: Scene) -> Endless | None:
    """The lock with which processes take turns at reading a queue: nobody who lives is reading."""
    wait, last = scene.wait, scene.last.wait
    readers = list(_at_queues(scene))
    stuck = [one for one in readers if one[1].wait.kind == "semaphore" and not one[1].wait.timed]
    if wait is not None and wait.kind == "result" and scene.nobody:
        stuck = stuck if len(stuck) == len(readers) else []  # of a pool, whose processes are all at its queue
    elif last.kind == "semaphore":
        stuck = [one for one in stuck if one[1].tid == scene.last.thread.tid]
    else:
        return None
    if not stuck or stuck[0][0].pid == scene.rank.placement.pid:
        return None  # its queue may be one of another rank, or of who started it
    if any(scene.rank.sample(one.pid) is None or one.threads_left_out for one in scene.family()):
        return None  # whose stacks are not known may be the one
    for process, thread, other in readers:
        if thread.wait.kind != "semaphore" and _may_be_one_queue(scene, stuck[0], (process, thread, other)):
            return None
    ended = scene.ended_child()
    whose = (
        ""
        if wait is not None and wait.kind == "channel_get"
        else f"pid {stuck[0][0].pid} waits for the lock of a queue, "
    )
    words = f"{whose}no living process is reading from that queue, so whoever took its lock has ended{': ' + ended if ended else ''}"
    return Endless("lock_holder_ended", words, bool(ended))


_Reader = tuple[ProcessWaits, ThreadWait, PythonWait]


def _at_queues(scene: Scene) -> Iterator[_Reader]:
    """Who of the rank and the processes below it is in Queue.get of multiprocessing."""
    for process in scene.family():
        waits = waits_of(scene.rank.sample(process.pid))
        for thread in process.threads:
            wait = waits.get(thread.tid)
            if wait is not None and wait.kind == "channel_get":
                yield process, thread, wait


def _may_be_one_queue(scene: Scene, one: _Reader, other: _Reader) -> bool:
    """By its address, which forks have in common; else by what the program calls it."""
    related = all(each[0].forked or each[0].pid == scene.rank.placement.pid for each in (one, other))
    addresses = one[2].object, other[2].object
    if related and all(addresses):
        return addresses[0] == addresses[1]
    names = [_name_of_queue(scene, each[2]) for each in (one, other)]
    return "" in names or names[0] == names[1]


def _name_of_queue(scene: Scene, wait: PythonWait) -> str:
    """ "results" of `for item in iter(self.results.get, None):`."""
    place = scene.job.program.at(wait.own)
    found = _GETS.findall(place.text) if place is not None else []
    return found[0] if len(found) == 1 else ""


def full_channel(scene: Scene) -> Endless | None:
    """A queue of processes with a limit, which is full: who took from it has ended."""
    wait = scene.wait
    if (
        wait is None
        or wait.kind != "channel_put"
        or scene.last.wait.kind != "semaphore"
        or scene.last.wait.timed
    ):
        return None
    ended = scene.ended_child()
    if not ended or any(
        _may_be_one_queue(scene, (scene.process, scene.last.thread, wait), one) for one in _at_queues(scene)
    ):
        return None
    return Endless("nobody_takes", f"the queue is full, and {ended}", chain=False)


def message_cut_off(scene: Scene) -> Endless | None:
    """A queue of processes that is read and gets nothing, though each one who may write to it waits to put more: the queue
    counts as full, or its lock as taken, by one that ended on the way."""
    first = scene.chain.steps[0]
    reads = waits_of(scene.rank.sample(first.process.pid)).get(first.thread.tid)
    if reads is None or reads.kind != "channel_get" or first.wait.kind != "pipe_read" or first.wait.timed:
        return None
    ended = scene.ended_child()
    writers = [scene.rank.process_waits(pid) for pid in first.wait.pids - {first.process.pid}]
    if not ended or not writers or any(other[0] is not first.process for other in _at_queues(scene)):
        return None  # what they put may be for another reader
    if not all(one is not None and one.job and _puts(scene, one) for one in writers):
        return None
    count = len(writers)
    who = numbered(f"[the only process|each of the {count} processes] that could write to it waits", count)
    words = f"{who} to put into a queue itself, and nothing comes: {ended}, and may have been writing to it"
    return Endless("lock_holder_ended", words)


def _puts(scene: Scene, process: ProcessWaits) -> bool:
    """It waits for room in a queue of processes, or for the turn to write to it, and does nothing else of its own."""
    waits = waits_of(scene.rank.sample(process.pid))
    for one in process.threads:
        wait = waits.get(one.tid)
        if wait is not None and wait.kind in _PUTS and one.wait.kind == "semaphore" and not one.wait.timed:
            return not scene.may_act(Step(process, one))
    return False


def joined_before_drained(scene: Scene) -> Endless | None:
    """A child that puts into a full queue of processes, or waits for its turn to write to it, and whose parent waits for it
    to end: what the queue has is to be read from a pipe that nobody but the parent has, as the thread at its other end
    shows."""
    wait, last = scene.wait, scene.last.wait
    joins = next((step for step in scene.chain.steps if step.wait.kind == "child"), None)
    if wait is None or wait.kind not in _PUTS or last.kind != "semaphore" or last.timed or joins is None:
        return None
    if joins.wait.timed or joins.wait.pids != {scene.process.pid} or scene.may_act(joins):
        return None
    puts = wait.kind == "channel_put"  # else another child has the turn
    feeders = [
        (process, thread)
        for process in scene.family()
        if (process is scene.process) is puts
        for tid, one in waits_of(scene.rank.sample(process.pid)).items()
        if one.kind == "channel_feed" and (thread := process.thread(tid)) is not None
        if puts or thread.wait.kind == "pipe_write"
    ]
    if len(feeders) != 1:
        return None
    process, feeder = feeders[0]
    if not feeder.same or feeder.wait.kind != "pipe_write" or feeder.wait.pids != {joins.process.pid}:
        return None
    pid, sample = scene.process.pid, scene.rank.sample(process.pid)
    threads = sample.threads if sample is not None else ()
    own = next((one.name for one in threads if one.thread_id == feeder.tid), "")
    name = f"thread {own or feeder.name} (tid {feeder.tid})"
    waits = f"waits in {scene.at(scene.last.thread.tid)} for room in a full queue, and its {name}"
    if not puts:
        waits = (
            f"has still to write what it put into a queue, and {name} of pid {process.pid}, whose turn it is,"
        )
    words = (
        f"pid {pid} {waits} writes to a full pipe that only pid {joins.process.pid} could read, which waits for "
        f"{'it' if puts else f'pid {pid}'} to end"
    )
    return Endless("joined_before_drained", words, True, chain=False, tids=(feeder.tid,) if puts else ())


def lock_left_to_a_fork(scene: Scene) -> Endless | None:
    """A lock of flock(2) belongs to the open file: who was forked with that open holds it too."""
    for step in scene.chain.steps:
        wait = step.wait
        if wait.kind != "file_lock" or not wait.others:
            continue
        holder = wait.others[0]
        process = scene.rank.process_waits(holder.pid)
        own = scene.is_below(holder.pid, step.process.pid)
        if wait.taken_by:
            left = wait.taken_by not in wait.pids
        else:  # by whom was not recorded
            left = own and process is not None and process.forked
        if not left:
            return None
        by = "it" if wait.taken_by in (0, step.process.pid) else f"pid {wait.taken_by}"
        words = f"pid {holder.pid} was forked by {by} with the file open, and has kept that open since"
        return Endless("file_lock_inherited", words)
    return None


def circle_of_pipes(scene: Scene) -> Endless | None:
    """Two processes at pipes between them, where every other thread of theirs is a library's, or waits as well."""
    chain = scene.chain
    circle = chain.circle
    kinds = {step.wait.kind for step in circle}
    if len({step.process.pid for step in circle}) != 2 or len(circle) != 2 or "pipe_write" not in kinds:
        return None
    if not kinds <= {*_PIPES, "child"} or any(len(step.wait.pids) != 1 for step in circle):
        return None
    if any(step.wait.timed or step.wait.seconds is not None or scene.may_act(step) for step in circle):
        return None
    return Endless(circle_cause(chain))  # proven only where the kernel shows all who may use them


def pipe_kept_open(scene: Scene) -> Endless | None:
    """It reads the output of a program to its end, and that was left to somebody whom the program started."""
    first = scene.chain.steps[0]
    thread = scene.rank.thread_stack(first.process.pid, first.thread.tid)
    frames = thread.frames if thread is not None else ()
    waits = [one for one in (first.wait, *first.wait.watched) if one.kind == "pipe_read"]
    holders = [other for one in waits for other in one.others]
    if not holders or not any(frame.file.endswith("subprocess.py") for frame in frames):
        return None
    below = {one.pid for one in scene.rank.tree.children} if scene.rank.tree is not None else set()
    if any(one.pid in below or one.pid == first.process.pid or one.rank is not None for one in holders):
        return None
    other = holders[0]
    words = f"pid {other.pid} (`{other.command[:_COMMAND]}`), which is no child of it, has kept the writing end of that pipe"
    return Endless("pipe_kept_open", words)


# --- a process of this machine that is none of the job's

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
_HELD_UP = ("queue_put", "semaphore", "event", "condition", "barrier", "process_barrier", "future", "result")


def in_a_peer(scene: Scene) -> Endless | None:
    """What the threads of a process of this machine do, where it is none of the job's; its queue is full where one of them
    waits to put into one from which no other takes. None where nothing of it may be read, or nothing there is held up."""
    if scene.chain.end not in ("outside", "several") or len(scene.last.wait.pids) != 1:
        return None
    process = scene.rank.process_waits(scene.last.wait.others[0].pid)
    if process is None or process.job or process.threads_left_out:
        return None
    sample = scene.rank.sample(process.pid)
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
    return Endless(
        "peer_queue_is_full" if full else "", f"in pid {process.pid} {' and '.join(parts)}{tail}{why}"
    )
