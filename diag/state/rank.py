"""What is known of one rank now: its process, stacks, limits and exit, and what of it moved last. Judges
nothing."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from diag.model import Placement
from diag.model.observations import (
    CgroupMemory,
    CgroupPids,
    FlightRecorder,
    Frame,
    LimitsSeen,
    ProcessSample,
    ProcessTree,
    RankDigest,
    RankExited,
    RdmaAccess,
    SharedMemory,
    StackSample,
    ThreadSeen,
    ThreadStack,
)
from diag.model.observations.waits import WaitsRead
from diag.state.stack_activity import Activity, Reading, read_stack, steps

CHANNELS = ("log", "stack", "cpu", "child_cpu", "io", "child_io", "memory")
STRONG = ("log", "stack", "cpu")  # channels whose movement means that the job itself moves

# Research basis: a child that compiles, tokenises or reads uses more than this; idle pools use less.
_CHILD_CPU_RATIO = 0.2
_MAIN_CPU_RATIO = 0.3
# A compiler does nothing but compile: on a crowded machine (18 runnable on 2 cores: 0.1 each) it works on far
# less.
_COMPILER_CPU_RATIO = 0.02
_COMPILERS = frozenset(
    {
        "cc1plus",
        "cc1",
        "cicc",
        "ptxas",
        "cudafe++",
        "nvcc",
        "nvlink",
        "fatbinary",
        "clang",
        "clang++",
        "ld",
        "as",
    }
)
# Above this a process reads or writes for its work; heartbeats and log lines stay below it.
_IO_BYTES_PER_SECOND = 64 * 1024
# Weights that are mapped and paged in show neither as reads nor, on a network file system, as CPU.
_RSS_BYTES_PER_SECOND = 1024 * 1024
_OWN_TRACE_SECONDS = 5.0
TAIL_LINES = 200
_SERIES = 4  # samples over which a stack is said to stand or to move: 8 s under suspicion, 40 s otherwise
_WRITTEN = 3  # readings: what a launcher passes on arrives one after it was written
_MOST_CHILD_STACKS = 256
_GONE_CHILD_SECONDS = 60.0
_SPINNING_WAITS = (Activity.COLLECTIVE, Activity.GPU_SYNC, Activity.COMM_INIT, Activity.BACKWARD)
_UNROOTED_WAITS = (Activity.OTHER, Activity.LOCK, Activity.SERVICE)


@dataclass(slots=True)
class RankState:
    """One rank as last seen. `moved` holds, per channel, the told time at which it last made progress."""

    # Who it is.
    placement: Placement  # its number, node and process
    distributed: bool = True  # started by a launcher that makes one job of several
    found_at: float = 0.0  # when its process was seen first; 0 for one that was there from a log's beginning
    # How it ended.
    exit: RankExited | None = None  # None while it lives
    exited_at: float | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))  # its own last lines
    # What moved last: the told time by channel.
    moved: dict[str, float] = field(default_factory=dict)
    # Its process and children, as /proc told them last.
    tree: ProcessTree | None = None
    tree_at: float = 0.0
    stopped_since: float | None = None  # by a signal or a debugger
    cpu_ratio: float | None = None  # cores that it used between the last two readings
    main_cpu_ratio: float | None = None  # and its main thread
    grew: bool = False  # its memory, between the last two readings
    asked_at: float = -1e9  # when its worker server was last asked or answered, which takes some MB of it
    written: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_WRITTEN))  # characters
    child_chars: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)  # of each child's IO
    # Its stacks.
    stack: StackSample | None = None  # the last of its own threads
    stack_at: float = 0.0
    stack_since: float = 0.0  # first sample of the unbroken series with this signature
    stack_samples: int = 0  # how many samples that series has
    stack_signature: str = ""  # where the main thread stands
    series: deque[tuple[str, ...]] = field(default_factory=lambda: deque(maxlen=_SERIES))  # last main paths
    reading: Reading | None = None  # what the main thread waits for
    rooted: bool = False  # its main stack was once seen to begin at the program's own module
    child_stacks: dict[int, tuple[float, StackSample]] = field(default_factory=dict)  # by pid
    waits: WaitsRead | None = None  # what its threads and its children's wait for, as last read
    waits_at: float = 0.0
    recorder: FlightRecorder | None = None  # the last that it answered with
    # What it may use.
    limits: LimitsSeen | None = None
    variables: dict[str, str] = field(default_factory=dict)  # of its environment, those that matter here
    rdma: RdmaAccess | None = None
    rdma_at: float = 0.0
    gpu_index: int | None = None  # where NVML has seen its process
    cgroup: CgroupMemory | None = None
    pids: CgroupPids | None = None
    shm: SharedMemory | None = None
    # What the hub of its node tells, of a rank that is not seen here.
    node: str = ""  # the run id of that hub
    told_every: float = 0.0  # seconds between what it tells
    told: tuple[str, str, int | None] | None = None  # how the rank stands, why, and the child to blame
    gpu_told: str = ""  # how its GPU stood during the silence

    @property
    def rank(self) -> int:
        return self.placement.rank

    @property
    def alive(self) -> bool:
        return self.exit is None

    @property
    def status_known(self) -> bool:
        """Ended, and somebody said with which status."""
        return self.exit is not None and (self.exit.exit_code is not None or self.exit.signal is not None)

    @property
    def was_ended(self) -> bool:
        """By somebody's signal, as a launcher ends the others when one has failed."""
        return self.exit is not None and self.exit.signal in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    @property
    def failed(self) -> bool:
        """Ended, and the exit status says that it should not have."""
        return self.exit is not None and (self.exit.signal is not None or (self.exit.exit_code or 0) != 0)

    @property
    def stopped(self) -> bool:
        return self.tree is not None and self.tree.main.state in "Tt" and self.alive

    @property
    def activity(self) -> Activity | None:
        return self.reading.activity if self.reading else None

    def last_moved(self, channels: Iterable[str] = CHANNELS) -> float:
        return max((self.moved.get(channel, 0.0) for channel in channels), default=0.0)

    # -- being told ---------------------------------------------------------------------------------------

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

    def see_tree(self, at: float, fact: ProcessTree) -> None:
        """A reading of /proc: what moved since the last one."""
        before, self.tree, self.tree_at = self.tree, fact, at
        if fact.main.state in "Tt":
            self.stopped_since = self.stopped_since or at
        else:
            self.stopped_since = None
        if before is None:
            self.moved.setdefault("cpu", at)
            return
        seconds = fact.emitted - before.emitted
        if seconds <= 0.05:
            return  # two readings of one moment (or a clock that jumped): no rate can be told
        self.cpu_ratio = max(0.0, fact.main.cpu_seconds - before.main.cpu_seconds) / seconds
        if fact.main_thread_cpu_seconds is not None and before.main_thread_cpu_seconds is not None:
            self.main_cpu_ratio = (
                max(0.0, fact.main_thread_cpu_seconds - before.main_thread_cpu_seconds) / seconds
            )
        else:
            self.main_cpu_ratio = self.cpu_ratio
        if _io_rate(before.main, fact.main, seconds) > _IO_BYTES_PER_SECOND:
            self.moved["io"] = at
        # Growth in two readings in a row: weights that load grow for long, while a question to the rank's own
        # worker server (the Flight Recorder) takes some MB for a moment, and diag must not take its own trace
        # for progress.
        grows = (fact.main.rss_bytes - before.main.rss_bytes) / seconds > _RSS_BYTES_PER_SECOND
        # a dump reads twice within a second: one growth would count as two
        grows &= at - self.asked_at > _OWN_TRACE_SECONDS
        if grows and self.grew:
            self.moved["memory"] = at
        self.grew = grows
        known = {(child.pid, child.start_ticks): child for child in before.children}
        for child in fact.children:
            old = known.get((child.pid, child.start_ticks))
            spent = child.cpu_seconds - (old.cpu_seconds if old else 0.0)
            if spent / seconds > (_COMPILER_CPU_RATIO if child.comm in _COMPILERS else _CHILD_CPU_RATIO):
                self.moved["child_cpu"] = at
        if self._children_moved_bytes(fact):
            self.moved["child_io"] = at
        # CPU of the main thread is progress only outside of a known wait: NCCL waits spin at 100 %.
        waiting = self.reading is not None and self.activity in _SPINNING_WAITS and self.stack_samples > 1
        if self.main_cpu_ratio > _MAIN_CPU_RATIO and not waiting:
            self.moved["cpu"] = at

    def _children_moved_bytes(self, fact: ProcessTree) -> bool:
        """Children's IO is read less often than they are: compare with the last reading that had it."""
        moved = False
        seen: dict[tuple[int, int], tuple[float, int]] = {}
        for child in fact.children:
            key = (child.pid, child.start_ticks)
            before = self.child_chars.get(key)
            if child.read_chars is None or child.write_chars is None:
                if before is not None:
                    seen[key] = before
                continue
            chars = child.read_chars + child.write_chars
            seen[key] = (fact.emitted, chars)
            if before is not None and fact.emitted > before[0]:
                moved |= (chars - before[1]) / (fact.emitted - before[0]) > _IO_BYTES_PER_SECOND
        self.child_chars = seen
        return moved

    def see_stack(self, at: float, fact: StackSample) -> None:
        """A sample of the rank's own threads: whether its main thread stands where it stood."""
        main = fact.main
        path = steps(main) if main else ()
        mark = "|".join(path)
        if mark == self.stack_signature and self.stack is not None:
            self.stack_samples += 1
        else:
            if self.stack is not None:
                self.moved["stack"] = at
            self.stack_signature, self.stack_samples, self.stack_since = mark, 1, at
        self.series.append(self.series[-1] if self.series and self.series[-1] == path else path)
        self.stack, self.stack_at = fact, at
        self.reading = self._read(main) if main else None

    def _read(self, main: ThreadStack) -> Reading:
        """As it was read, and one thing that only the history tells: exit handlers run when the module's
        frame is gone."""
        reading = read_stack(main)
        if not main.frames:
            return reading
        if main.frames[0].function in ("<module>", "_run_module_as_main"):
            self.rooted = True
        elif self.rooted and reading.context is None and reading.activity in _UNROOTED_WAITS:
            return replace(reading, context=Activity.TEARDOWN)
        return reading

    def see_question(self, at: float) -> None:
        """The rank's own worker server is asked by us, or answered: memory that it takes for that is our
        trace, not progress."""
        self.asked_at, self.grew = at, False

    def see_child_stack(self, at: float, fact: StackSample) -> None:
        self._forget_children(at)
        self.child_stacks[fact.pid] = (at, fact)
        if len(self.child_stacks) > _MOST_CHILD_STACKS:  # workers come and go; keep the newest
            oldest = min(self.child_stacks, key=lambda pid: self.child_stacks[pid][0])
            del self.child_stacks[oldest]

    def _forget_children(self, at: float) -> None:
        """Workers of every epoch are others. What one did is kept for as long as its death may still be told
        of."""
        if self.tree is None:
            return
        alive = {child.pid for child in self.tree.children}
        gone = [
            pid
            for pid, (seen, _) in self.child_stacks.items()
            if pid not in alive and at - seen > _GONE_CHILD_SECONDS
        ]
        for pid in gone:
            del self.child_stacks[pid]

    def adopt(self, fact: RankDigest, frames: Mapping[str, tuple[Frame, ...]], every: float) -> None:
        """What its own node's hub says of it."""
        place = fact.placement
        self.node, self.told_every, self.placement = fact.run_id, every, place
        self.told = (fact.standing, fact.cause, fact.child) if fact.standing else None
        self.gpu_told = fact.gpu
        self.moved = dict(fact.moved)
        self.cpu_ratio, self.main_cpu_ratio = fact.cpu_ratio, fact.main_cpu_ratio
        children = tuple(_process(pid, place.pid, "", state) for pid, state, _, _ in fact.children)
        main_process = _process(
            place.pid, 0, fact.comm, fact.state, rss=fact.rss_bytes, ticks=place.start_ticks
        )
        self.tree = ProcessTree(rank=self.rank, main=main_process, children=children, emitted=fact.tree_at)
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
        if not fact.threads:
            return  # its stack was not asked for: an older one stays, with its time
        threads = _threads(fact.threads, frames)
        if not threads:
            return
        sample = StackSample(self.rank, place.pid, threads, fact.stack_how, fact.stack_at)
        main = sample.main
        self.reading = read_stack(main) if main else None
        path = steps(main) if main else ()
        self.stack, self.stack_at, self.stack_since, self.stack_samples = (
            sample,
            fact.stack_at,
            fact.stack_since,
            fact.stack_samples,
        )
        self.stack_signature = "|".join(path)
        self.series.clear()
        self.series.extend([path] * min(fact.stack_samples, self.series.maxlen or 1))
        if self.reading is not None and fact.standing == "teardown" and self.reading.context is None:
            self.reading = replace(self.reading, context=Activity.TEARDOWN)


def _io_rate(before: ProcessSample, after: ProcessSample, seconds: float) -> float:
    if None in (before.read_chars, before.write_chars, after.read_chars, after.write_chars):
        return 0.0
    moved = (
        (after.read_chars or 0)
        + (after.write_chars or 0)
        - (before.read_chars or 0)
        - (before.write_chars or 0)
    )
    return max(0, moved) / seconds


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
