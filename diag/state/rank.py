"""One rank as its process, stacks and exit are observed: what of it moved last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from diag.model.observations import (
    ChildEnded,
    FlightRecorder,
    Frame,
    ProcessSample,
    ProcessTree,
    RankDigest,
    RankExited,
    StackSample,
    ThreadSeen,
    ThreadStack,
)
from diag.model.observations.waits import WaitsRead
from diag.state.feeds import fed
from diag.state.rank_view import CallCounts, RankView
from diag.state.stack_activity import Activity, Reading, read_stack, steps
from diag.state.trainer import Trainer

# Research basis: a child that compiles, tokenises or reads uses more than this; idle pools use less.
_CHILD_CPU_RATIO = 0.2
_MAIN_CPU_RATIO = 0.3
# Less than one tick of the kernel's clock in five seconds: whoever waits in gloo takes none (torch 2.13), whoever makes
# steps takes some.
_AT_REST_CPU_RATIO = 0.002
_LOOKING_CPU_RATIO = 0.02  # ours: a request and its answer take some ms, and a loop of them sleeps between
# A compiler does nothing but compile: on a crowded machine (18 runnable on 2 cores: 0.1 each) it works on far
# less.
_COMPILER_CPU_RATIO = 0.02
_COMPILERS = frozenset({
    "cc1plus", "cc1", "cicc", "ptxas", "cudafe++", "nvcc", "nvlink", "fatbinary", "clang", "clang++", "ld", "as",
})  # fmt: skip
# Above this a process reads or writes for its work; heartbeats and log lines stay below it.
_IO_BYTES_PER_SECOND = 64 * 1024
# Weights that are mapped and paged in show neither as reads nor, on a network file system, as CPU.
_RSS_BYTES_PER_SECOND = 1024 * 1024
# So long after a question of diag a rank may show its answer: memory, lines of torch's watchdog.
OWN_TRACE_SECONDS = 5.0
_MOST_CAME_THROUGH_SECONDS = 120.0  # ours: it must not hide a real wait for many minutes
_READ_LATELY_SECONDS = 60.0  # of two readings of the recorder: what differs was made just now
_MOST_CHILD_STACKS = 256
_GONE_CHILD_SECONDS = 60.0
_SAME_END_SECONDS = 1.0  # a reading may be taken in so much later than it was made
_SPINNING_WAITS = (Activity.COLLECTIVE, Activity.GPU_SYNC, Activity.COMM_INIT, Activity.BACKWARD)
_READ_SECONDS = 1.0  # at most between a reading and when it is known here
_WAITS_SECONDS = 20.0  # for so long a reading of the threads' waits tells which of them compute
_UNROOTED_WAITS = (Activity.OTHER, Activity.LOCK, Activity.SERVICE)
# Who waits for the GPU in .item() or .cpu() spins in the driver, without the GIL (H100, torch 2.11: 0.93-1.0).
_SPIN_CPU_RATIO = 0.9
_SPIN_SAMPLES = 3
# One wait gives its core away not once (H100, for a minute); a loop of such waits 20 to 300 times a second.
_SPIN_SWITCHES = 3  # between two readings


@dataclass(slots=True)
class RankState(RankView):
    """Takes in what is observed of one rank."""

    _trainer: Trainer = field(default_factory=Trainer)
    _gil_free_samples: int = 0  # of the series of equal stacks, the last ones
    _spinning: bool = False  # in C, as the last sample shows: a wait for the GPU
    _ready_ratio: float = 0.0  # of the time between the last two readings: ready, and without a core
    _dipped: bool = False  # it spun less in the last reading

    def see_move(self, channel: str, at: float) -> None:
        self.moved[channel] = at

    def see_exit(self, at: float, fact: RankExited) -> None:
        """The first report tells when; a later one may tell how, where the first could not."""
        if self.exit is None:
            self.exited_at = at if fact.ended is None else min(at, fact.ended)
            if not self.tail:
                self.tail.extend(fact.last)
        if not self.status_known:
            self.exit = fact

    def see_child_end(self, at: float, fact: ChildEnded) -> None:
        self.child_ends.append((at, fact))

    def see_tree(self, at: float, fact: ProcessTree) -> None:
        """A reading of /proc: what moved since the last one."""
        before, self.tree, self.tree_at = self.tree, fact, at
        self._see_trace(at, before, fact)
        if before is None or not holds_pause(before, fact):
            self._see_sleep(at, before, fact)
        self.stopped_since = (self.stopped_since or at) if fact.main.state == "T" else None
        if before is None:
            self.moved.setdefault("cpu", at)
            return
        seconds = fact.emitted - before.emitted
        if seconds <= 0.05:
            return  # two readings of one moment (or a clock that jumped): there is no rate
        self._see_ended_children(at, before, fact)
        if holds_pause(before, fact) or self._may_hold_pause(before, fact, seconds):
            return  # that it did less is the tracer's doing, and what woke it too
        self.cpu_ratio = self.main_cpu_ratio = (
            max(0.0, fact.main.cpu_seconds - before.main.cpu_seconds) / seconds
        )
        spent, earlier = fact.main_thread_cpu_seconds, before.main_thread_cpu_seconds
        if self.thread:
            self.main_cpu_ratio = self._thread_cpu_ratio(at)
        elif spent is not None and earlier is not None:
            self.main_cpu_ratio = max(0.0, spent - earlier) / seconds
        self._ready_ratio = 0.0
        if fact.run_delay_seconds is not None and before.run_delay_seconds is not None and not self.thread:
            self._ready_ratio = max(0.0, fact.run_delay_seconds - before.run_delay_seconds) / seconds
        if self.main_cpu_ratio is None or self.main_cpu_ratio > _AT_REST_CPU_RATIO:
            self.ran_at = at
        if self.main_cpu_ratio is None or self.main_cpu_ratio > _LOOKING_CPU_RATIO:
            self.worked_at = at
        if _moved_chars(before.main, fact.main) > _IO_BYTES_PER_SECOND * seconds:
            self.moved["io"] = at
        # Growth in two readings in a row: weights that load grow for long, while a question to the rank's own
        # worker server (the Flight Recorder) takes some MB for a moment, and diag must not take its own trace
        # for progress.
        # A dump reads twice within a second: one growth would count as two.
        grows = (fact.main.rss_bytes - before.main.rss_bytes) / seconds > _RSS_BYTES_PER_SECOND
        grew, self.grew = self.grew, grows and at - self.asked_at > OWN_TRACE_SECONDS
        if grew and self.grew:
            self.moved["memory"] = at
        known = {(child.pid, child.start_ticks): child.cpu_seconds for child in before.children}
        if any(_works(child, known, seconds) for child in fact.children):
            self.moved["child_cpu"] = at
        if self._children_moved_bytes(fact):
            self.moved["child_io"] = at
        # CPU of the thread that trains is progress only outside of a known wait: NCCL waits spin at 100 %.
        waiting = self.reading is not None and self.activity in _SPINNING_WAITS and self.stack_samples > 1
        if waiting and self._spinning and fact.switches is not None and before.switches is not None:
            waiting = fact.switches - before.switches < _SPIN_SWITCHES
        if (self.main_cpu_ratio or 0.0) > _MAIN_CPU_RATIO and not waiting:
            self.moved["cpu"] = at

    def _see_ended_children(self, at: float, before: ProcessTree, fact: ProcessTree) -> None:
        alive = {child.pid: child for child in fact.children}
        self.ended_children.extend(
            (at, child.pid, child.comm)
            for child in before.children
            if child.state not in "ZX" and (child.pid not in alive or alive[child.pid].state in "ZX")
        )

    def _see_trace(self, at: float, before: ProcessTree | None, fact: ProcessTree) -> None:
        if fact.main.state != "t":
            return
        goes_on = before is not None and before.main.state == "t" and self.traces
        began = self.traces.pop()[0] if goes_on else at
        self.traces.append((began, at))

    def _may_hold_pause(self, before: ProcessTree, fact: ProcessTree, seconds: float) -> bool:
        """One reading of a rank that spins for its GPU in which it did not, and gave its core away not more often than a
        stop does: py-spy of a person, or gcore, between two readings. A second one in a row is its own."""
        if not self._spinning or fact.switches is None or before.switches is None or self.thread:
            return False
        spent, earlier = fact.main_thread_cpu_seconds, before.main_thread_cpu_seconds
        if spent is None or earlier is None:
            return False
        ready = (fact.run_delay_seconds or 0.0) - (before.run_delay_seconds or 0.0)
        dips = (spent - earlier + ready) / seconds < _SPIN_CPU_RATIO
        dipped, self._dipped = self._dipped, dips
        return dips and not dipped and fact.switches - before.switches < _SPIN_SWITCHES

    def _see_sleep(self, at: float, before: ProcessTree | None, fact: ProcessTree) -> None:
        """No switch between two readings: the main thread is in one and the same wait, which a stack read meanwhile
        shows. Equal stacks alone may be those of two calls."""
        if before is None or fact.switches is None or fact.switches != before.switches:
            self.asleep, self.exchange = (at, at), None
            return
        self.asleep = (self.asleep[0], at)
        main = self.stack.main if self.stack is not None else None
        if main is not None and self.asleep[0] + _READ_SECONDS <= self.stack_at <= at:
            self.exchange = main.exchange

    def _thread_cpu_ratio(self, at: float) -> float | None:
        """Of the thread that trains, where it is not the main one: the whole process's where its threads were not
        read lately."""
        one = self.thread_wait(tid=self.thread)
        if one is None or one.cpu_ratio is None or at - self.waits_at > _WAITS_SECONDS:
            return self.cpu_ratio
        return one.cpu_ratio

    def _children_moved_bytes(self, fact: ProcessTree) -> bool:
        """Children's IO is read less often than they are: compare with the last reading that had it."""
        moved, known, self.child_chars = False, self.child_chars, {}
        for child in fact.children:
            key, chars = (child.pid, child.start_ticks), _chars(child)
            before = known.get(key)
            seen = before if chars is None else (fact.emitted, chars)
            if seen is not None:
                self.child_chars[key] = seen
            if before is not None and seen is not None and seen[0] > before[0]:
                moved |= (seen[1] - before[1]) / (seen[0] - before[0]) > _IO_BYTES_PER_SECOND
        return moved

    def see_stack(self, at: float, fact: StackSample, alike: tuple[str, ...] = ()) -> None:
        """A sample of the rank's own threads: whether the one that trains is where it was."""
        if self.stack is not None and self.stack.how == fact.how:
            there = {thread.thread_id for thread in fact.threads}
            self.ended_threads.extend(
                (at, one.name) for one in self.stack.threads if one.thread_id not in there
            )
        main = self._trainer.pick(fact, self.waits, alike, self.joined_by)
        self.thread = self._trainer.tid
        path = steps(main) if main else ()
        mark = "|".join(path)
        if mark == self.stack_signature and self.stack is not None:
            self.stack_samples += 1
        else:
            if self.stack is not None:
                self.moved["stack"] = at
            self.stack_signature, self.stack_samples, self.stack_since = mark, 1, at
        self.series.append(self.series[-1] if self.series and self.series[-1] == path else path)
        free = main is not None and main.owns_gil is False
        self._gil_free_samples = min(self._gil_free_samples + 1, self.stack_samples) if free else 0
        self.stack, self.stack_at = fact, at
        self.reading = self._read(main) if main else None

    def _read(self, main: ThreadStack) -> Reading:
        """As it was read, and two things that only the history tells: exit handlers run when the module's
        frame is gone, and a wait for the GPU has no frame of its own."""
        reading = read_stack(main)
        self._spinning = reading.activity is Activity.OTHER and reading.context is None and self._spins()
        if self._spinning:
            return replace(reading, activity=Activity.GPU_SYNC)
        if not main.frames or self.thread:
            return reading
        if main.frames[0].function in ("<module>", "_run_module_as_main"):
            self.rooted = True
        elif self.rooted and reading.context is None and reading.activity in _UNROOTED_WAITS:
            return replace(reading, context=Activity.TEARDOWN)
        return reading

    def _spins(self) -> bool:
        """On a GPU, at one line, on a core of its own or ready for one all the time, and never with the GIL: in C."""
        return (
            self.on_gpu
            and self._gil_free_samples >= _SPIN_SAMPLES
            and (self.main_cpu_ratio or 0.0) + self._ready_ratio >= _SPIN_CPU_RATIO
        )

    def see_recorder(self, at: float, fact: FlightRecorder) -> None:
        """A call that no earlier reading had is progress, at the time when it was made."""
        self.recorder = fact
        called = calls_of(fact)
        if called == self.called:
            self.called_times = (self.called_times[0], at)
            return
        made = max((entry.time_created for entry in fact.entries), default=0.0)
        if not made and at - self.called_times[1] < _READ_LATELY_SECONDS:
            made = at  # between these two readings
        if made and self.called:
            made, before = min(at, made), max(self.stack_since, self.moved.get("calls", 0.0))
            self.moved["calls"] = max(self.moved.get("calls", 0.0), made)
            self.came_through = min(max(self.came_through, made - before), _MOST_CAME_THROUGH_SECONDS)
        self.called, self.called_times = called, (at, at)

    def see_waits(self, at: float, fact: WaitsRead) -> None:
        """What its threads and its children's wait for. Of one and the same sleep each reading shows the same end."""
        main = fact.thread(self.placement.pid)
        if main is not None and main.wait.kind == "traced":
            return  # a tracer holds it: what it waits for was seen before
        self.waits, self.waits_at, self.feed = fact, at, fed(self.feed, fact, at)
        thread = self.thread_wait(tid=self.thread)
        if thread is None or thread.wait.kind != "sleep" or thread.wait.seconds is None:
            return
        ends = at + thread.wait.seconds
        if not self.sleeps or abs(ends - self.sleeps[-1][1]) > _SAME_END_SECONDS:
            self.sleeps.append((at, ends))

    def see_question(self, at: float) -> None:
        """The rank's own worker server is asked by us, or answered: memory that it takes for that is our
        trace, not progress."""
        self.asked_at, self.grew = at, False

    def see_child_stack(self, at: float, fact: StackSample) -> None:
        if self.tree is not None:  # what a worker did is kept while its death may still be reported
            alive = {child.pid for child in self.tree.children}
            for pid, (seen, _) in list(self.child_stacks.items()):
                if pid not in alive and at - seen > _GONE_CHILD_SECONDS:
                    del self.child_stacks[pid]
        self.child_stacks[fact.pid] = (at, fact)
        if len(self.child_stacks) > _MOST_CHILD_STACKS:  # workers come and go; keep the newest
            oldest = min(self.child_stacks, key=lambda pid: self.child_stacks[pid][0])
            del self.child_stacks[oldest]

    def adopt(self, fact: RankDigest, frames: Mapping[str, tuple[Frame, ...]], every: float) -> None:
        """What its own node's hub says of it."""
        place = fact.placement
        self.node, self.told_every, self.placement = fact.run_id, every, place
        self.told = (fact.standing, fact.cause, fact.child) if fact.standing else None
        self.gpu_told = fact.gpu
        self.moved = dict(fact.moved)
        self.cpu_ratio, self.main_cpu_ratio = fact.cpu_ratio, fact.main_cpu_ratio
        before, self.tree = (
            self.tree,
            ProcessTree(
                rank=self.rank,
                main=_process(
                    place.pid, 0, fact.comm, fact.state, rss=fact.rss_bytes, ticks=place.start_ticks
                ),
                children=tuple(_process(pid, place.pid, "", state) for pid, state, _, _ in fact.children),
                emitted=fact.tree_at,
            ),
        )
        self._see_trace(fact.tree_at, before, self.tree)
        self.tree_at, self.stopped_since = fact.tree_at, fact.stopped_at
        if fact.tail:
            self.tail.clear()
            self.tail.extend(fact.tail)
        self.child_stacks = {
            pid: (
                fact.stack_at,
                StackSample(self.rank, pid, _threads(threads, frames), how, fact.stack_at, place.pid),
            )
            for pid, _, how, threads in fact.children
            if threads
        }
        threads = _threads(fact.threads, frames)
        if not threads:
            return  # its stack was not asked for: an older one stays, with its time
        sample = StackSample(self.rank, place.pid, threads, fact.stack_how, fact.stack_at)
        self.stack, self.stack_at, self.thread = sample, fact.stack_at, fact.thread
        main = self.judged
        self.reading = read_stack(main) if main else None
        path = steps(main) if main else ()
        self.stack_since, self.stack_samples = fact.stack_since, fact.stack_samples
        self.stack_signature = "|".join(path)
        self.series.clear()
        self.series.extend([path] * min(fact.stack_samples, self.series.maxlen or 1))
        if self.reading is not None and fact.standing == "teardown" and self.reading.context is None:
            self.reading = replace(self.reading, context=Activity.TEARDOWN)


def holds_pause(before: ProcessTree, fact: ProcessTree) -> bool:
    """Whether the process was held by a tracer in between: diag's own pauses are marked, another's is seen where it was
    still held in one of the two readings."""
    return before.pauses != fact.pauses or "t" in before.main.state + fact.main.state


def calls_of(fact: FlightRecorder) -> CallCounts:
    """How far it is in each group. gloo's recorder has no count of a group but in its calls."""
    last = {(group.backend, group.name): group.last_enqueued or 0 for group in fact.groups}
    for entry in fact.entries:
        key = (entry.backend, entry.group)
        last[key] = max(last.get(key, 0), entry.seq)
    return frozenset((*key, seq) for key, seq in last.items())


def _works(child: ProcessSample, known: Mapping[tuple[int, int], float], seconds: float) -> bool:
    used = child.cpu_seconds - known.get((child.pid, child.start_ticks), 0.0)
    return used / seconds > (_COMPILER_CPU_RATIO if child.comm in _COMPILERS else _CHILD_CPU_RATIO)


def _chars(process: ProcessSample) -> int | None:
    """Read and written; None where the kernel did not show it."""
    if process.read_chars is None or process.write_chars is None:
        return None
    return process.read_chars + process.write_chars


def _moved_chars(before: ProcessSample, after: ProcessSample) -> int:
    old, new = _chars(before), _chars(after)
    return 0 if old is None or new is None else new - old


def _threads(
    seen: tuple[ThreadSeen, ...], frames: Mapping[str, tuple[Frame, ...]]
) -> tuple[ThreadStack, ...]:
    return tuple(
        ThreadStack(thread.thread_id, thread.name, frames[thread.key], thread.active, thread.owns_gil)
        for thread in seen
        if thread.key in frames
    )


def _process(pid: int, parent: int, comm: str, state: str, *, rss: int = 0, ticks: int = 0) -> ProcessSample:
    return ProcessSample(
        pid=pid,
        ppid=parent,
        comm=comm,
        state=state or "S",
        cpu_seconds=0.0,
        threads=0,
        rss_bytes=rss,
        start_ticks=ticks,
    )
