"""From a thread that waits to what it waits for, and on to what that one waits for: across locks, threads, pipes,
sockets and children, as far as the kernel's facts go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead

_LONGEST = 16
_NAP_SECONDS = 10.0  # ours: shorter than any wait that is reported
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
class OfJob:
    """What is known of the job beside the reading of the rank that waits.

    `ranks`: the other ranks by the pids of their processes, of the waiter's host, and `below` those of their children.
    `near`, `far`: what their threads wait for, on that host and on others. `store`: MASTER_ADDR and MASTER_PORT.
    """

    ranks: Mapping[int, int] = field(default_factory=dict)
    near: tuple[WaitsRead, ...] = ()
    far: tuple[WaitsRead, ...] = ()
    store: tuple[str, str] = ("", "")
    below: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Chain:
    """`end`: why it goes no further.

    dead_end (the last wait cannot end by itself, see `Wait.dead_end`), cycle (the last one waits for `steps[at]`),
    computes (it runs on a CPU), sleeps, store (the job's own key-value store, where all ranks meet), rank (another
    rank, whose own waits were not read), remote (a peer on another machine), device (a file system or disk), outside
    (someone who is not of the job, and is not read), itself (the other end is in the same process), no_owner (the
    kernel knows no owner), several (any of some could end it), denied (what would tell may not be read), ended.

    `behind`: one whose last wait names nobody, and who only probably waits for the first of these.
    """

    steps: tuple[Step, ...]
    end: str
    at: int = 0
    behind: Chain | None = None

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def circle(self) -> tuple[Step, ...]:
        """Those that wait for each other."""
        return self.steps[self.at :] if self.end == "cycle" else ()

    @property
    def stays_in_job(self) -> bool:
        """It leads to the job's own store, or to another rank."""
        return self.end == "store" or any(
            other.rank is not None for step in self.steps for other in step.wait.others
        )


def follow(read: WaitsRead, pid: int, tid: int = 0, job: OfJob | None = None) -> Chain | None:
    """From one thread, the main one by default, and over other ranks where `job` knows them. None where it was not
    read."""
    job = job or OfJob()
    process = read.process(pid)
    thread = process.thread(tid) if process is not None else None
    if process is None or thread is None:
        return None
    return follow_from(read, Step(process, thread), job)


def follow_from(read: WaitsRead, first: Step, job: OfJob) -> Chain:
    reads = (read, *job.near)
    steps = [_named(first, job)]
    while len(steps) < _LONGEST:
        step = steps[-1]
        if end := _ends(step) or _at_store(step.wait, job.store):
            return Chain(tuple(steps), end)
        if step.wait.others and (far := [one for one in job.far if one.rank == step.wait.others[0].rank]):
            reads, job = tuple(far), OfJob(store=job.store)  # another host, with pids of its own
        found = _next(reads, step)
        if isinstance(found, str):
            return Chain(tuple(steps), found)
        for at, one in enumerate(steps):
            if one.process is found.process and one.thread.tid == found.thread.tid:
                return Chain(tuple(steps), "cycle", at)
        steps.append(_named(found, job))
    return Chain(tuple(steps), "several")


def _named(step: Step, job: OfJob) -> Step:
    """With the ranks that its parties are; of a peer that this host does not know, one that waits at the other end."""
    wait = step.wait
    others = wait.others or tuple(_across(wait, job.far))
    others = tuple(
        other
        if other.rank is not None
        else replace(other, rank=job.ranks.get(other.pid), below=other.pid in job.below)
        for other in others
    )
    if others == wait.others:
        return step
    return Step(step.process, replace(step.thread, wait=replace(wait, others=others)))


def _across(wait: Wait, far: tuple[WaitsRead, ...]) -> Iterator[Party]:
    if not wait.kind.startswith("tcp_") or not wait.peer:
        return
    for read in far:
        for process in read.processes:
            for thread in process.threads:
                ends = [(one.local, one.peer) for one in (thread.wait, *thread.wait.watched)]
                if (wait.peer, wait.local) in ends:
                    below = process.pid != read.pid
                    yield Party(process.pid, thread.tid, process.command, rank=read.rank, below=below)


def _at_store(wait: Wait, store: tuple[str, str]) -> str:
    """ "store" where the peer is the job's own. A name cannot be compared with an address: there the port decides.

    >>> _at_store(Wait("tcp_receive", peer="10.0.0.1:29500"), ("10.0.0.1", "29500"))
    'store'
    >>> _at_store(Wait("tcp_receive", peer="10.0.0.7:29500"), ("10.0.0.1", "29500"))
    ''
    >>> _at_store(Wait("tcp_receive", peer="[::1]:29500"), ("node-0", "29500"))
    'store'
    """
    host, _, port = wait.peer.rpartition(":")
    address = store[0].strip("[]")
    if not wait.kind.startswith("tcp_") or not port or port != store[1]:
        return ""
    is_name = not address.replace(".", "").isdigit() and ":" not in address
    return "store" if is_name or host.strip("[]") == address else ""


def _ends(step: Step) -> str:
    wait = step.wait
    if wait.dead_end:
        return "dead_end"
    return {
        "running": "computes", "sleep": "sleeps", "file_io": "device", "page_fault": "device", "memory": "device",
        "terminal": "outside", "ended": "ended", "exiting": "ended", "unreadable": "denied",
    }.get(wait.kind, "")  # fmt: skip


def _next(reads: tuple[WaitsRead, ...], step: Step) -> Step | str:
    wait = step.wait
    if not wait.others:
        if wait.kind.startswith("tcp_") and wait.kind != "tcp_accept":
            return "remote"
        if wait.kind in ("condition", "semaphore", "mutex"):
            return "no_owner"
        return "several" if wait.watched else "outside"
    if len(wait.pids) > 1:
        return _of_several(reads, step)
    return _step(reads, step, wait.others[0])


def _of_several(reads: tuple[WaitsRead, ...], step: Step) -> Step | str:
    """Of a shell that waits for any child, or a pipe that several hold: the one that is not idle itself. Of two of which one
    waits for the other to end, which it has started and which has the pipe from it, that one: it leads to the other."""
    found = [one for other in step.wait.others if isinstance(one := _step(reads, step, other), Step)]
    busy = [one for one in found if one.wait.kind not in _LISTENS and one.wait.kind != "ended"]
    awaited = {
        child.process.pid
        for one in busy
        for child in busy
        if one.wait.kind == "child" and child.process.parent == one.process.pid
        if child.process.pid in one.wait.pids
    }
    first = [one for one in busy if one.process.pid not in awaited]
    return first[0] if len(first) == 1 else "several"


def _any_of_its_threads(process: ProcessWaits, main: ThreadWait) -> bool:
    """Who is not of the job has several threads, and its main one only waits for its own: a server's answer is due
    from any of them."""
    waits = (*_LISTENS, "child", "join")
    return not process.job and len(process.threads) > 1 and main.wait.kind in waits


def _instead_of_accepting(process: ProcessWaits) -> ThreadWait | None:
    """The thread that would accept, where only one of its threads is at something else than to wait for work. One that
    wakes now and then for something else (a heartbeat, a look at the parent) would have accepted by now."""
    found = [one for one in process.threads if one.wait.kind not in (*_LISTENS, "join", "child", "ended")]
    if len(found) > 1:
        found = [one for one in found if not _naps(one.wait)]
    return found[0] if len(found) == 1 and not process.threads_left_out else None


def _naps(wait: Wait) -> bool:
    return wait.kind == "sleep" and wait.seconds is not None and wait.seconds < _NAP_SECONDS


def _step(reads: tuple[WaitsRead, ...], step: Step, other: Party) -> Step | str:
    if other.pid == step.process.pid and not other.tid:
        return "itself"
    for read in reads:
        process = read.process(other.pid)
        if process is not None and step.wait.not_accepted:
            server = _instead_of_accepting(process)
            return "outside" if server is None else Step(process, server)
        thread = process.thread(other.tid) if process is not None else None
        if process is not None and thread is not None:
            return (
                "outside" if not other.tid and _any_of_its_threads(process, thread) else Step(process, thread)
            )
    return "rank" if other.rank is not None else "outside"
