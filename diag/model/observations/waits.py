"""What threads wait for, as the kernel shows it."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.base import Observation


@dataclass(frozen=True, slots=True)
class Party:
    """A process or thread on the other side of a wait. `tid` 0: the process, not one thread of it. `fd`: by which
    it holds the object, -1 for none. `rank`: where it is known to be another rank of the job, or below it (`below`).
    `only_main`: none of its threads but the main one may use that descriptor, and nobody else is left unseen who might."""

    pid: int
    tid: int = 0
    command: str = ""
    fd: int = -1
    rank: int | None = None
    only_main: bool = False
    below: bool = False


@dataclass(frozen=True, slots=True)
class Shared:
    """Where a lock between processes lies: in which memory (device and inode), how far from its beginning, and who else has that
    memory mapped. `whole`: of the processes near it all were looked at."""

    memory: str
    offset: int
    by: tuple[Party, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """`kind`: what is waited for:

    running, sleep, child, join (a thread's end), mutex, semaphore, condition (a futex of which the kernel knows no
    owner: every Python lock, Queue, Event, Condition), gil, pipe_read, pipe_write, fifo_open, terminal, tcp_receive,
    tcp_send, tcp_connect, accept, unix_receive, unix_send, unix_connect, poll (several descriptors), file_lock,
    file_io (a file system or its device), page_fault, memory (cgroup over memory.high), vfork, stopped, frozen,
    signal, io_uring, exiting, ended, other (`call`, `path` and `wchan` say what: a device, an eventfd), unreadable
    (`reason`). Of a sleep `path` is a file that the process has open, and `others` hold a lock on it: it may sleep to
    try again, in a database's call.

    `dead_end`: why it cannot end by itself, as the kernel shows: only_self (a pipe whose other end the waiter's own
    process alone holds, and every other thread of it waits for one of them too), owner_ended (the lock's holder is no
    thread any more), alone (a lock or condition that only threads of its own process could release, and it has no
    other thread), stopped, frozen. Empty: it may end.
    """

    kind: str
    call: str = ""
    fd: int = -1
    path: str = ""
    mount: str = ""
    file_system: str = ""
    device: str = ""  # what is mounted there: /dev/sdb1, server:/export
    mount_answers: bool | None = None  # when it was asked; None where it was not, or is not late yet
    local: str = ""
    peer: str = ""
    socket_state: str = ""
    silent_seconds: float | None = None  # since the last byte came, of a TCP socket
    received_bytes: int | None = None  # that ever came over a TCP socket
    unread_bytes: int = 0
    unsent_bytes: int = 0
    peer_unread_bytes: int = 0  # that came to the other end and were not read there
    not_accepted: int = (
        0  # connections in the queue of `others`' socket that nobody has accepted, this one among them
    )
    retransmits: int = 0
    seconds: float | None = None  # of a sleep or a timeout: what is left; else all of it
    timed: bool = False  # a timeout ends it, or a sleep its end
    of_python: bool = False  # of a condition: it is a threading.Lock, or what is built on one
    watched: tuple[Wait, ...] = ()  # of poll and epoll: each descriptor as if it alone were read or written
    others: tuple[Party, ...] = ()  # who could end it
    dead_end: str = ""
    reason: str = ""
    shared: Shared | None = None  # of a semaphore
    forked: bool = False  # of who is alone: it is a copy of its parent, without the parent's other threads
    taken_by: int = (
        0  # of a lock on a file: the pid that took it, and may have left it to a fork; 0: not known
    )
    lock: str = ""  # on a file: its kind, mode, first and last byte of /proc/locks, "POSIX WRITE 1073741825 1073741825"
    beside: tuple[
        tuple[str, int], ...
    ] = ()  # other files of the folder of such a lock that are locked, and the pid by whom
    writers: frozenset[int] = frozenset()  # of a full pipe: other processes that have it open to write
    libraries: tuple[str, ...] | None = (
        None  # packages with native code that it has loaded; None: not looked at
    )

    @property
    def pids(self) -> frozenset[int]:
        """Of those who could end it."""
        return frozenset(other.pid for other in self.others)


@dataclass(frozen=True, slots=True)
class ThreadWait:
    """`same`: the wait did not change between two readings `over_seconds` apart: same call, same arguments, no CPU
    to speak of."""

    tid: int
    name: str
    state: str  # R, S, D, T, t, Z, X of proc(5)
    wchan: str
    wait: Wait
    cpu_ratio: float | None = None  # of a core, between the two readings
    system_ratio: float | None = None  # of that, in the kernel
    switches_per_second: float | None = None  # voluntary ones
    preemptions_per_second: float | None = None  # involuntary ones
    run_delay_ratio: float | None = None  # of the time, ready and without a CPU
    same: bool = False


@dataclass(frozen=True, slots=True)
class ProcessWaits:
    pid: int
    parent: int
    command: str
    threads: tuple[ThreadWait, ...]
    job: bool = True  # the rank or below it; False: somebody it waits for
    threads_left_out: int = 0
    cpu_limit_seconds: int | None = None  # RLIMIT_CPU: the kernel ends it when it has used so much (SIGXCPU)
    forked: bool = False  # a copy of its parent, which has begun no program of its own since
    age_seconds: float | None = None  # since it began; None where that was not read

    def thread(self, tid: int = 0) -> ThreadWait | None:
        """0: the main thread."""
        return next((one for one in self.threads if one.tid == (tid or self.pid)), None)


@dataclass(frozen=True, slots=True)
class Spent:
    """By processes since each began, their children that ended counted: `faults` are page faults of those alone, so that
    more of them say that one has ended."""

    cpu_seconds: float
    chars: int  # read and written
    faults: int


@dataclass(frozen=True, slots=True)
class WaitsRead(Observation):
    """The rank, its descendants, and those on this host that they wait for; without a rank, those of the command."""

    pid: int
    over_seconds: float
    processes: tuple[ProcessWaits, ...]
    not_checked: tuple[str, ...] = ()
    spent: Spent | None = (
        None  # by all of these; None where it was not asked, or may not be read of one of them
    )

    def process(self, pid: int) -> ProcessWaits | None:
        return next((one for one in self.processes if one.pid == pid), None)

    def thread(self, pid: int, tid: int = 0) -> ThreadWait | None:
        process = self.process(pid)
        return process.thread(tid) if process is not None else None
