"""Where a process is that somebody looked at with py-spy, of which nothing else is known: no rank, no time that passes.

One look proves no hang. It is said what it would be a hang in, of which thread, and what the next look has to show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from diag.detectors.contract import Detector
from diag.detectors.hang.catalogue import entry_of
from diag.detectors.hang.rank_wait import BLOCKED
from diag.model import Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import StackSample, ThreadStack
from diag.state.own_code import own_frames
from diag.state.stack_activity import Activity, format_frame, is_idle_worker, is_in_lock, read_stack, steps
from diag.state.view import JobView

_PEERS = (Activity.COLLECTIVE, Activity.RENDEZVOUS, Activity.COMM_INIT)
_CLASSES = {**BLOCKED, Activity.RENDEZVOUS: "rendezvous", Activity.COMM_INIT: "comm_init"}
_WORDS = {
    Activity.COLLECTIVE: "waits for its peers in",
    Activity.BACKWARD: "is in the backward pass, which may hide a collective, at",
    Activity.GPU_SYNC: "waits for the GPU, on which a collective may wait for peers, in",
    Activity.RENDEZVOUS: "waits for the other ranks to start, in",
    Activity.COMM_INIT: "sets up a communicator with its peers in",
    Activity.DATA: "is in the data loader at",
    Activity.PREPROCESS: "prepares the data set in",
    Activity.CHECKPOINT: "saves or loads a checkpoint in",
    Activity.COMPILE: "compiles in",
    Activity.FILE_LOCK: "waits for a lock file in",
    Activity.LOCK: "waits for a lock, a queue or another thread in",
    Activity.TEARDOWN: "is at the program's end in",
    Activity.SERVICE: "waits for an answer over the network in",
}
# Python's own protocol of a data set and of what makes a batch of it.
_DATA_CALLS = ("__getitem__", "__getitems__", "__next__", "__iter__", "collate_fn")
_LINES = 8  # of a stack, innermost
_MOST = 16  # processes


@dataclass(slots=True)
class _Process:
    """Looks at one, in their order."""

    subject: str
    who: str
    looks: list[tuple[float, StackSample]] = field(default_factory=list)

    @property
    def moved(self) -> bool:
        """The thread that the last look would blame was elsewhere in one before."""
        thread = _of_interest(self.looks[-1][1])[0]
        paths = {
            steps(one)
            for _, sample in self.looks
            for one in sample.threads
            if (one.thread_id, one.name) == (thread.thread_id, thread.name)
        }
        return len(paths) > 1


class OneLook(Detector):
    """Meaning: where the threads of a pasted `py-spy dump` are, in the words of the classes of a hang."""

    name = "one-look"
    listens = (StackSample,)

    def __init__(self) -> None:
        self._known: list[_Process] = []
        self._left_out = 0

    def observe(self, at: float, fact: StackSample) -> None:
        if fact.rank is not None or not any(thread.frames for thread in fact.threads):
            return
        known = next((one for one in self._known if _is_same(one.looks[-1][1], fact)), None)
        if known is None:
            number = 1 + sum(not one.looks[-1][1].pid for one in self._known)
            subject = f"process {fact.pid}" if fact.pid else f"process {number} without a pid"
            who = "this process" if not fact.pid and number == 1 else subject
            known = _Process(subject, who)
            if len(self._known) >= _MOST:
                self._left_out += 1
                return
            self._known.append(known)
        known.looks.append((at, fact))

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        for process in self._shown():
            if not process.moved:
                yield _finding(process)

    def not_checked(self, job: JobView) -> Iterator[NotChecked]:
        for process in self._shown():
            pid = process.looks[-1][1].pid or "PID"
            again = f"some seconds later: `py-spy dump --nonblocking --pid {pid}`, and give both dumps to diag replay"
            what, seen = f"whether {process.who} is stuck", len(process.looks)
            if process.moved:
                yield NotChecked(
                    what, "its stack is not the same in all the dumps of it: it moved between them", again
                )
            elif seen > 1:
                reason = f"its stack is the same in {seen} dumps, which do not say how long that was"
                yield NotChecked(what, reason, again)
            else:
                yield NotChecked(what, "one look does not show that nothing moves", again)

        if self._left_out:
            what = f"{self._left_out} more dumps of processes"
            yield NotChecked(what, f"{_MOST} processes are looked at", "give the others by themselves")

    def _shown(self) -> list[_Process]:
        """A worker that waits for work is of no interest beside others."""
        busy = [one for one in self._known if not is_idle_worker(one.looks[-1][1])]
        return busy or self._known


def _is_same(before: StackSample, fact: StackSample) -> bool:
    """By its pid, else by the numbers of its threads: a fork may have the number of its parent's only one."""
    threads = [{one.thread_id for one in sample.threads} for sample in (before, fact)]
    alike = len(threads[0]) > 1 and threads[0] == threads[1]
    return before.pid == fact.pid if before.pid or fact.pid else alike


def _finding(process: _Process) -> Finding:
    at, sample = process.looks[-1]
    thread, klass, words = _of_interest(sample)
    main, pid = sample.main, sample.pid or "PID"
    text = f"if {process.who} hangs: {_name(thread, main)} {words}"
    if thread is not main and main is not None and main.frames:
        text += f"; {_name(main, main)} {_place(main)[1]}"
    advice = entry_of("seen_once").others.advice
    excerpts = [thread, *([main] if main is not None and main is not thread else [])]
    return Finding(
        id="held-up",
        subject=process.subject,
        severity=Severity.INFO,
        confidence=Confidence.LOW,
        klass=klass,
        cause="seen_once",
        summary=text,
        advice=f"{advice} {_next_look(thread, pid)}",
        since=0.0,  # nothing tells
        evidence=tuple(Evidence(sample.how, _excerpt(one, main), at) for one in excerpts),
    )


def _next_look(thread: ThreadStack, pid: object) -> str:
    activity = read_stack(thread).activity
    if activity is Activity.DATA:
        return (
            f"`py-spy dump --nonblocking --subprocesses --pid {pid}` also shows the DataLoader's workers, which "
            "it may wait for."
        )
    if activity in (*_PEERS, Activity.BACKWARD, Activity.GPU_SYNC):
        return "Dump the process of each rank too: one that is elsewhere holds up those that wait."
    return f"`py-spy dump --native --pid {pid}` also shows the C frames (it stops the process for up to some seconds)."


def _of_interest(sample: StackSample) -> tuple[ThreadStack, str, str]:
    """The thread, the class of a hang that it would be, and what it is at. The main one, unless what that is at says
    nothing and another says more."""
    threads = [thread for thread in sample.threads if thread.frames]
    main = sample.main if sample.main in threads else threads[-1]
    assert main is not None
    klass, words = _place(main)
    if klass != "unknown" or read_stack(main).activity is not Activity.OTHER:
        return main, klass, words
    others = ((one, *_place(one)) for one in threads if one is not main and not is_in_lock(one))
    told = [item for item in others if item[1] not in ("unknown", "lock_deadlock", "compile_wait")]
    told.sort(key=lambda item: item[0].active is False)
    running = [item for item in told if item[0].active is not False or main.active is False]
    return running[0] if running else (main, klass, words)


def _place(thread: ThreadStack) -> tuple[str, str]:
    reading = read_stack(thread)
    where = reading.where or thread.frames[-1]
    caller = reading.own or reading.caller
    called = f", called at {format_frame(caller)}" if caller is not None and caller != where else ""
    if reading.activity is not Activity.OTHER:
        inside = thread.frames[-1]
        own = inside if inside != where and own_frames((inside,)) else None
        words = f"{_WORDS[reading.activity]} {format_frame(where)}"
        return _CLASSES.get(reading.activity, "unknown"), words + (
            f", inside it {format_frame(own)}" if own is not None else called
        )
    state = {True: "runs at", False: "is idle at", None: "is at"}[thread.active]
    if _reads_data(thread):
        return "data_loading", f"{state} {format_frame(where)}: it reads data, by the names in its stack"
    return "unknown", f"{state} {format_frame(where)}"


def _reads_data(thread: ThreadStack) -> bool:
    return any(
        frame.function.rpartition(".")[2] in _DATA_CALLS and "data" in frame.file.rpartition("/")[2].lower()
        for frame in thread.frames
    )


def _name(thread: ThreadStack, main: ThreadStack | None) -> str:
    return "its main thread" if thread is main else f'its thread "{thread.name or thread.thread_id}"'


def _excerpt(thread: ThreadStack, main: ThreadStack | None) -> str:
    lines = [format_frame(frame) for frame in thread.frames[-_LINES:]]
    return "\n".join([_name(thread, main).removeprefix("its ") + ":", *lines])
