"""Why a wait between processes never ends: a queue whose reader has ended, a lock that went with its holder, pipes that are
read in the wrong order, what a fork has kept open."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.detectors.hang.kernel_causes import circle_cause
from diag.detectors.hang.peer_process import in_the_peer
from diag.detectors.hang.scene import Endless, Scene
from diag.model.observations.waits import ProcessWaits, ThreadWait
from diag.state.python_waits import PythonWait, waits_of

_PIPES = ("pipe_read", "pipe_write", "unix_receive", "unix_send")
_COMMAND = 60
_GETS = re.compile(r"(\w+)\.get\b")


def queue_without_reader(scene: Scene) -> Endless | None:
    """The thread that writes what was put into a multiprocessing.Queue: nobody else can read its pipe any more."""
    thread = scene.threads.get(scene.last.thread.tid)
    wait, last = scene.wait, scene.last.wait
    if thread is None or wait is None or wait.kind != "channel_feed" or last.kind != "pipe_write":
        return None
    alone = last.dead_end == "only_self" or (
        last.others and all(one.pid == scene.process.pid for one in last.others)
    )
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
    if any(scene.sample(one.pid) is None or one.threads_left_out for one in scene.family()):
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
    words = f"{whose}nobody who lives is reading from that queue, so who took its lock has ended{': ' + ended if ended else ''}"
    return Endless("lock_holder_ended", words, bool(ended))


_Reader = tuple[ProcessWaits, ThreadWait, PythonWait]


def _at_queues(scene: Scene) -> Iterator[_Reader]:
    """Who of the rank and the processes below it is in Queue.get of multiprocessing."""
    for process in scene.family():
        waits = waits_of(scene.sample(process.pid))
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


def lock_left_to_a_fork(scene: Scene) -> Endless | None:
    """A lock of flock(2) belongs to the open file: who was forked with that open holds it too."""
    for step in scene.chain.steps:
        wait = step.wait
        if wait.kind != "file_lock" or not wait.others:
            continue
        holder = wait.others[0]
        read = scene.rank.waits
        process = read.process(holder.pid) if read is not None else None
        own = scene.is_below(holder.pid, step.process.pid)
        if wait.taken_by:
            left = wait.taken_by not in {one.pid for one in wait.others}
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
    circle = chain.steps[chain.at :] if chain.end == "cycle" else ()
    kinds = {step.wait.kind for step in circle}
    if len({step.process.pid for step in circle}) != 2 or len(circle) != 2 or "pipe_write" not in kinds:
        return None
    if not kinds <= {*_PIPES, "child"} or any(
        len({one.pid for one in step.wait.others}) != 1 for step in circle
    ):
        return None
    if any(step.wait.timed or step.wait.seconds is not None or scene.may_act(step) for step in circle):
        return None
    return Endless(circle_cause(chain))  # proven only where the kernel shows all who may use them


def pipe_kept_open(scene: Scene) -> Endless | None:
    """It reads the output of a program to its end, and that was left to somebody whom the program started."""
    first = scene.chain.steps[0]
    thread = scene.sample(first.process.pid)
    frames = (
        next((one.frames for one in thread.threads if one.thread_id == first.thread.tid), ())
        if thread
        else ()
    )
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


def in_a_peer(scene: Scene) -> Endless | None:
    found = in_the_peer(scene)
    if found is None:
        return None
    return Endless("peer_queue_is_full" if found.full else "", found.words)
