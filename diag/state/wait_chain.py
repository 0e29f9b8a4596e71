"""From a thread that waits to what it waits for, and on to what that one waits for: across locks, threads, pipes,
sockets and children, as far as the kernel's facts go."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead

_LONGEST = 16
# Whoever has these awaits work rather than does it: from an idle pool nothing follows.
_LISTENS = frozenset(("poll", "tcp_accept", "condition", "semaphore", "signal", "io_uring"))


@dataclass(frozen=True, slots=True)
class Step:
    process: ProcessWaits
    thread: ThreadWait

    @property
    def wait(self) -> Wait:
        return self.thread.wait

    @property
    def main(self) -> bool:
        return self.thread.tid == self.process.pid


@dataclass(frozen=True, slots=True)
class Chain:
    """`end`: why it goes no further.

    dead_end (the last wait cannot end by itself, see `Wait.dead_end`), cycle (the last one waits for `steps[at]`),
    computes (it runs on a CPU), sleeps, remote (a peer on another machine), device (a file system or disk), outside
    (someone who is not of the job, and is not read), itself (the other end is in the same process), no_owner (the
    kernel knows no owner), several (any of some could end it), denied (what would tell may not be read), ended.
    """

    steps: tuple[Step, ...]
    end: str
    at: int = 0

    @property
    def last(self) -> Step:
        return self.steps[-1]


def follow(read: WaitsRead, pid: int, tid: int = 0) -> Chain | None:
    """From one thread, the main one by default. None where it was not read."""
    process = read.process(pid)
    thread = process.thread(tid) if process is not None else None
    if process is None or thread is None:
        return None
    steps = [Step(process, thread)]
    while len(steps) < _LONGEST:
        step = steps[-1]
        if end := _ends(step):
            return Chain(tuple(steps), end)
        found = _next(read, step)
        if isinstance(found, str):
            return Chain(tuple(steps), found)
        key = (found.process.pid, found.thread.tid)
        seen = [(one.process.pid, one.thread.tid) for one in steps]
        if key in seen:
            return Chain(tuple(steps), "cycle", seen.index(key))
        steps.append(found)
    return Chain(tuple(steps), "several")


def _ends(step: Step) -> str:
    wait = step.wait
    if wait.dead_end:
        return "dead_end"
    return {
        "running": "computes", "sleep": "sleeps", "file_io": "device", "page_fault": "device", "memory": "device",
        "terminal": "outside", "ended": "ended", "exiting": "ended", "unreadable": "denied",
    }.get(wait.kind, "")  # fmt: skip


def _next(read: WaitsRead, step: Step) -> Step | str:
    wait = step.wait
    if not wait.others:
        if wait.kind.startswith("tcp_") and wait.kind != "tcp_accept":
            return "remote"
        if wait.kind in ("condition", "semaphore", "mutex"):
            return "no_owner"
        return "several" if wait.watched else "outside"
    if len({other.pid for other in wait.others}) > 1:
        return _of_several(read, step)
    return _step(read, step, wait.others[0])


def _of_several(read: WaitsRead, step: Step) -> Step | str:
    """Of a shell that waits for any child, or a pipe that several hold: the one that is not idle itself."""
    found = [one for other in step.wait.others if isinstance(one := _step(read, step, other), Step)]
    busy = [one for one in found if one.wait.kind not in _LISTENS and one.wait.kind != "ended"]
    return busy[0] if len(busy) == 1 else "several"


def _step(read: WaitsRead, step: Step, other: Party) -> Step | str:
    if other.pid == step.process.pid and not other.tid:
        return "itself"
    process = read.process(other.pid)
    thread = process.thread(other.tid) if process is not None else None
    return "outside" if process is None or thread is None else Step(process, thread)
