"""What detectors and outputs read of one rank. `RankState` fills it, which only `Ranks` does."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from diag.model import Placement
from diag.model.observations import (
    CallHistory,
    CgroupMemory,
    CgroupPids,
    ChildEnded,
    Exchange,
    FlightRecorder,
    LimitsSeen,
    ProcessTree,
    RankExited,
    RdmaAccess,
    SharedMemory,
    StackSample,
    StoreWaited,
    ThreadStack,
)
from diag.model.observations.waits import ProcessWaits, ThreadWait, WaitsRead
from diag.state.feeds import Feed
from diag.state.stack_activity import Activity, Reading

CHANNELS = ("log", "calls", "stack", "cpu", "child_cpu", "io", "child_io", "memory")
STRONG = ("log", "calls", "stack", "cpu")  # channels whose movement means that the job itself moves
TAIL_LINES = 200
CallCounts = frozenset[tuple[str, str, int]]  # backend, name of the group, sequence number of its last call
_SERIES = 4  # samples over which a stack counts as standing or moving: 8 s under suspicion, 40 s otherwise
_ENDED = 16  # threads, children
_SEEN_SECONDS = 15.0  # between the end of a process, and that it is missed
_SLEEPS = 8
_TRACES = 8
# Ours: a reader of native frames is done, or given up, before; a person with a debugger is not.
_LONG_TRACE_SECONDS = 10.0
_WRITTEN = 3  # readings: what a launcher passes on arrives one after it was written


@dataclass(slots=True)
class RankView:
    """One rank as last seen. `moved` holds, per channel, when it last made progress."""

    # Who it is.
    placement: Placement  # its number, node and process
    distributed: bool = True  # started by a launcher that makes one job of several
    group: int = 0  # its how-many-th process group says so; 0: its environment, or a log
    joined_by: tuple[int, ...] = ()  # the thread that joined the group, by the kernel's number and Python's
    shared: tuple[
        int, ...
    ] = ()  # pids of all processes that were started with its number, where they are several
    found_at: float = 0.0  # when its process was seen first; 0 for one that was there from a log's beginning
    # How it ended.
    exit: RankExited | None = None  # None while it lives
    exited_at: float | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))  # its own last lines
    # What moved last: the time by channel.
    moved: dict[str, float] = field(default_factory=dict)
    # Its process and children, as /proc showed them last.
    tree: ProcessTree | None = None
    tree_at: float = 0.0
    stopped_since: float | None = None  # by a signal
    # From which reading to which a tracer (a debugger, a reader of native frames) held it, the last ones.
    traces: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_TRACES))
    cpu_ratio: float | None = None  # cores that it used between the last two readings
    main_cpu_ratio: float | None = None  # and the thread that trains
    ran_at: float = 0.0  # when it last used any worth speaking of
    worked_at: float = 0.0  # and when more than a loop that looks again now and then takes
    grew: bool = False  # its memory, between the last two readings
    asked_at: float = -1e9  # when its worker server was last asked or answered, which takes some MB of it
    written: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_WRITTEN))  # characters
    child_chars: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)  # of each child's IO
    ended_children: deque[tuple[float, int, str]] = field(  # when, pid, command
        default_factory=lambda: deque(maxlen=_ENDED)
    )
    child_ends: deque[tuple[float, ChildEnded]] = field(default_factory=lambda: deque(maxlen=_ENDED))
    asleep: tuple[float, float] = (0.0, 0.0)  # readings from and to which its main thread has not woken once
    exchange: Exchange | None = None  # the send or receive that it slept in meanwhile
    # Its stacks.
    stack: StackSample | None = None  # the last of its own threads
    stack_at: float = 0.0
    native: tuple[str, ...] = ()  # frames of C code, where somebody asked for them
    native_at: float = 0.0
    stack_since: float = 0.0  # first sample of the unbroken series with this signature
    stack_samples: int = 0  # how many samples that series has
    stack_signature: str = ""  # where the thread that trains is
    series: deque[tuple[str, ...]] = field(default_factory=lambda: deque(maxlen=_SERIES))  # its last paths
    thread: int = 0  # the thread that trains, where that is not the main one
    reading: Reading | None = None  # what it waits for
    ended_threads: deque[tuple[float, str]] = field(  # when one of this name was first missing
        default_factory=lambda: deque(maxlen=_ENDED)
    )
    rooted: bool = False  # its main stack was once seen to begin at the program's own module
    child_stacks: dict[int, tuple[float, StackSample]] = field(default_factory=dict)  # by pid
    waits: WaitsRead | None = None  # what its threads and its children's wait for, as last read
    waits_at: float = 0.0
    sleeps: deque[tuple[float, float]] = (
        field(  # of the thread that trains: when one was seen, and when it ends
            default_factory=lambda: deque(maxlen=_SLEEPS)
        )
    )
    feed: Feed | None = None  # what comes over the connection that it waits at
    unmet: StoreWaited | None = None  # it tries to reach the job's store, without a connection
    recorder: FlightRecorder | None = None  # the last that it answered with
    calls: CallHistory | None = None  # all collectives that it keeps, as last read
    called: CallCounts = frozenset()  # what it had called in each group by then
    came_through: float = 0.0  # seconds that it stood at one line at most, while calls were made
    called_times: tuple[float, float] = (0.0, 0.0)  # the first and the last reading with these counts
    # What it may use.
    limits: LimitsSeen | None = None
    variables: dict[str, str] = field(default_factory=dict)  # of its environment, those that matter here
    rdma: RdmaAccess | None = None
    gpu_index: int | None = None  # where NVML has seen its process
    on_gpu: bool = False  # it may use one: NVML sees it there, or sees GPUs and no process of the job
    cgroup: CgroupMemory | None = None
    pids: CgroupPids | None = None
    shm: SharedMemory | None = None
    # What the hub of its node reports, of a rank that is not seen here.
    node: str = ""  # the run id of that hub
    told_every: float = 0.0  # seconds between its reports
    told: tuple[str, str, int | None] | None = None  # the state of the rank, why, and the child to blame
    gpu_told: str = ""  # the state of its GPU during the silence

    @property
    def rank(self) -> int:
        return self.placement.rank

    @property
    def alive(self) -> bool:
        return self.exit is None

    @property
    def status_known(self) -> bool:
        """Ended, and the status is known."""
        return self.exit is not None and (self.exit.exit_code is not None or self.exit.signal is not None)

    @property
    def was_ended(self) -> bool:
        """By a signal from outside, as a launcher ends the others when one has failed."""
        return self.exit is not None and self.exit.signal in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    @property
    def failed(self) -> bool:
        """Ended, and the exit status shows that it should not have."""
        return self.exit is not None and (self.exit.signal is not None or (self.exit.exit_code or 0) != 0)

    @property
    def stopped(self) -> bool:
        """By a signal; not by a tracer, which lets it go on when it has seen enough."""
        return self.tree is not None and self.tree.main.state == "T" and self.alive

    @property
    def traced(self) -> bool:
        """A tracer holds it now: what it would do by itself cannot be seen."""
        return self.tree is not None and self.tree.main.state == "t" and self.alive

    def held_by_tracer(self, since: float) -> float:
        """Seconds from then on in which a tracer held it for long, as a person with a debugger does."""
        long = (one for one in self.traces if one[1] - one[0] >= _LONG_TRACE_SECONDS and one[1] > since)
        return sum(to - max(began, since) for began, to in long)

    @property
    def judged(self) -> ThreadStack | None:
        """The thread that trains, as last seen: the main one, unless another does the steps."""
        if self.stack is None:
            return None
        found = (one for one in self.stack.threads if self.thread and one.thread_id == self.thread)
        return next(found, self.stack.main)

    @property
    def thread_name(self) -> str:
        """ "main thread", or "thread trainer" where another trains."""
        if not self.thread:
            return "main thread"
        judged = self.judged
        return f"thread {judged.name or judged.thread_id}" if judged is not None else f"thread {self.thread}"

    @property
    def on_futex(self) -> bool:
        """Its main thread sleeps in a lock, or until another thread wakes it."""
        return self.tree is not None and self.tree.main.wchan.startswith("futex")

    def sample(self, pid: int) -> StackSample | None:
        """The last stacks of its own process, or of one below it."""
        if pid == self.placement.pid:
            return self.stack
        return self.child_stacks[pid][1] if pid in self.child_stacks else None

    def thread_stack(self, pid: int, tid: int) -> ThreadStack | None:
        """Of one thread of those processes."""
        sample = self.sample(pid)
        return next((one for one in sample.threads if one.thread_id == tid), None) if sample else None

    def process_waits(self, pid: int | None = None) -> ProcessWaits | None:
        """Of its own process, or of one that was read with it; None where the kernel was not asked."""
        return None if self.waits is None else self.waits.process(self.placement.pid if pid is None else pid)

    def thread_wait(self, pid: int | None = None, tid: int = 0) -> ThreadWait | None:
        """Of one of its threads, the main one by default."""
        process = self.process_waits(pid)
        return process.thread(tid) if process is not None else None

    @property
    def activity(self) -> Activity | None:
        return self.reading.activity if self.reading else None

    def end_of_child(self, pid: int, at: float) -> ChildEnded | None:
        """How a process below it ended that was missed at that time; None where it ended well, or nobody saw it."""
        return next(
            (
                one
                for when, one in reversed(self.child_ends)
                if one.pid == pid and abs(when - at) < _SEEN_SECONDS
            ),
            None,
        )

    def last_moved(self, channels: Iterable[str] = CHANNELS) -> float:
        return max((self.moved.get(channel, 0.0) for channel in channels), default=0.0)
