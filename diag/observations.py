"""The vocabulary: every typed fact that a detector may know, one frozen dataclass each.

Sources make these out of raw records (`parse`); detectors and the job state are told them. Sizes are bytes, times
are seconds, CPU times are seconds since the process began.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from diag.model import Placement

__all__ = [
    "BarMoved",
    "CgroupMemory",
    "CollectiveEntry",
    "CollectiveGroup",
    "CollectiveTimedOut",
    "EnvironmentSeen",
    "EpochStarted",
    "FlightRecorder",
    "Frame",
    "GpuSample",
    "HostMemory",
    "Interrupted",
    "Iteration",
    "LimitsSeen",
    "LogLine",
    "MetricsLogged",
    "NcclLine",
    "Observation",
    "PhaseMarked",
    "ProcessSample",
    "ProcessTree",
    "RankExited",
    "RankFound",
    "RasCommunicator",
    "RasMissing",
    "RasRank",
    "RasReading",
    "RecorderAsked",
    "RunEnded",
    "RunStarted",
    "SaveFinished",
    "SaveStarted",
    "SharedMemory",
    "SnapshotTaken",
    "SourceFailed",
    "SourceWorks",
    "StackSample",
    "StepsPlanned",
    "ThreadStack",
    "Unparsed",
    "WatchdogState",
    "WorkerFailureReported",
    "WorkerNamed",
    "XidReported",
]


@dataclass(frozen=True, slots=True)
class Observation:
    """Base of all: the rank it is about, or None for the node or the job."""

    rank: int | None


# --- the run and its processes -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunStarted(Observation):
    argv: tuple[str, ...]
    pid: int
    host: str
    world_size: int = 0  # as the launcher's environment says; 0 when it does not


@dataclass(frozen=True, slots=True)
class RunEnded(Observation):
    """CMD ended; `returncode` as the shell says it (128+n for signal n)."""

    returncode: int


@dataclass(frozen=True, slots=True)
class RankFound(Observation):
    placement: Placement
    command: str = ""
    distributed: bool = True  # False: CMD has no ranks, its one process is watched as rank 0


@dataclass(frozen=True, slots=True)
class RankExited(Observation):
    """`exit_code` and `signal` are None when nobody could read them (`how` says who did)."""

    pid: int
    exit_code: int | None
    signal: int | None
    how: str


@dataclass(frozen=True, slots=True)
class WorkerFailureReported(Observation):
    """torchelastic's own table named a rank as failed (exit code negative for signals)."""

    exit_code: int
    pid: int
    text: str


@dataclass(frozen=True, slots=True)
class WorkerNamed(Observation):
    """A line of that table which names the rank that the next exit code belongs to."""


@dataclass(frozen=True, slots=True)
class Interrupted(Observation):
    """Somebody asked the job to end: `diag run` passed on a signal. Deaths after that are no failures."""

    signal: int


@dataclass(frozen=True, slots=True)
class EnvironmentSeen(Observation):
    """The variables of a rank that matter to diagnosis (an allow-list; secrets never get here)."""

    pid: int
    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SnapshotTaken(Observation):
    """The readings since `began` are one moment that somebody captured by hand; nothing later is known of the job.

    `silent_seconds`: how long the evidence itself shows that nothing moved before it; None when it does not tell.
    """

    name: str
    began: float
    silent_seconds: float | None
    why: str = ""  # what shows that silence, in words
    final: bool = True  # False: captured evidence begins; the moment that the job is judged by is still to come


# --- process, limits, memory ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process now. `state` is the letter of /proc/PID/stat (R S D T t Z X); io fields are None when denied."""

    pid: int
    ppid: int
    comm: str
    state: str
    cpu_seconds: float
    threads: int
    rss_bytes: int
    start_ticks: int
    read_chars: int | None = None
    write_chars: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    wchan: str = ""


@dataclass(frozen=True, slots=True)
class ProcessTree(Observation):
    """A rank's process and all that live below it, read at one moment. `emitted` is the reader's clock."""

    main: ProcessSample
    children: tuple[ProcessSample, ...]
    emitted: float
    open_files: int | None = None
    peak_rss_bytes: int | None = None
    pinned_bytes: int | None = None
    locked_bytes: int | None = None
    main_thread_cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LimitsSeen(Observation):
    """/proc/PID/limits, soft values; None stands for unlimited, a missing key for not shown."""

    pid: int
    soft: tuple[tuple[str, int | None], ...]
    rdma_devices: bool = False  # /dev/infiniband is there, seen through the rank's own root

    def get(self, name: str) -> int | None:
        return dict(self.soft).get(name)


@dataclass(frozen=True, slots=True)
class CgroupMemory(Observation):
    """Memory of the cgroup that a rank (or CMD) lives in: the tightest limit of it and its parents."""

    version: int
    path: str
    usage_bytes: int
    limit_bytes: int | None
    peak_bytes: int | None
    oom_kills: int
    cache_bytes: int = 0
    shmem_bytes: int = 0
    high_events: int = 0


@dataclass(frozen=True, slots=True)
class HostMemory(Observation):
    total_bytes: int
    available_bytes: int
    oom_kills: int | None = None  # oom_kill of /proc/vmstat, whole host; None where hidden


@dataclass(frozen=True, slots=True)
class SharedMemory(Observation):
    """/dev/shm as the rank sees it."""

    size_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class GpuSample(Observation):
    """One GPU now; None for what the driver did not say."""

    index: int
    uuid: str
    pci_bus_id: str
    name: str
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    power_limit_watts: float | None
    sm_clock_hertz: int | None
    temperature_celsius: float | None
    throttle_reasons: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class XidReported(Observation):
    """NVIDIA's driver reported an error of a GPU to the kernel log; `pid` where the message names one."""

    pci_bus_id: str
    xid: int
    pid: int | None
    text: str


# --- stacks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """A Python frame. `file` is the whole path as the interpreter has it."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Frames outermost first (the way a person reads a traceback)."""

    thread_id: int
    name: str
    frames: tuple[Frame, ...]
    active: bool | None = None
    owns_gil: bool | None = None


@dataclass(frozen=True, slots=True)
class StackSample(Observation):
    """All Python threads of one process; `parent_pid` is the rank's pid when this is one of its children."""

    pid: int
    threads: tuple[ThreadStack, ...]
    how: str  # the source: "remote_stack", "pyspy" or "faulthandler"
    emitted: float
    parent_pid: int | None = None

    @property
    def main(self) -> ThreadStack | None:
        """The main thread: its native id is the pid; else the one called MainThread; else the last of faulthandler."""
        for thread in self.threads:
            if thread.thread_id == self.pid or thread.name == "MainThread":
                return thread
        return self.threads[-1] if self.threads else None


# --- collectives ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CollectiveEntry:
    """One call that torch's Flight Recorder kept. `seq` counts the group's collectives, or its point-to-point calls.

    `state` and `retired` are torch's words; `pending` is what they come to: issued and not known to be finished.
    """

    backend: str  # nccl, nccl2, gloo: two of them may serve groups of one name, each with its own counting
    group: str
    desc: str
    seq: int
    op_id: int
    is_p2p: bool
    op: str  # "all_reduce"; "send 0->1" and "recv 1<-0" with ranks of the group, not of the job
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    retired: bool
    pending: bool
    record_id: int
    time_created: float  # the rank's own clock; 0 when not told


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """A process group as one rank knows it. `members` are ranks of the job; empty when the recorder does not say."""

    backend: str
    name: str
    desc: str
    members: tuple[int, ...]
    last_enqueued: int | None = None
    last_completed: int | None = None


@dataclass(frozen=True, slots=True)
class FlightRecorder(Observation):
    """A rank's collectives: of each group the last ones and all that are pending, in the order of their issue."""

    emitted: float
    version: str
    backends: tuple[str, ...]  # the recorders that answered; of others nothing is known. Empty: it does not say
    groups: tuple[CollectiveGroup, ...]
    entries: tuple[CollectiveEntry, ...]
    pid: int = 0


@dataclass(frozen=True, slots=True)
class CollectiveTimedOut(Observation):
    """PyTorch's watchdog gave up on a call in which this rank waited: a victim, or one of those that called differently."""

    seq: int
    op: str
    numel_in: int
    numel_out: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WatchdogState(Observation):
    """How far a rank's own watchdog saw it get in one process group."""

    group: str
    desc: str
    last_enqueued: int
    last_completed: int


@dataclass(frozen=True, slots=True)
class RasRank:
    """One member of a communicator as NCCL RAS tells it. `rank` is the communicator's own number, not the job's.

    `host` is an address of NCCL's bootstrap interface. `init_state` and `async_error` are ncclResult_t (0 is fine, 7 in
    progress), None where the text report does not say; `counts` are calls launched, not completed, by operation.
    """

    rank: int
    host: str
    pid: int
    cuda_dev: int | None = None
    nvml_dev: int | None = None
    init_state: int | None = None
    async_error: int | None = None
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    counts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RasMissing:
    """A member that RAS has no data of: its process gave no answer, or it answered and is in no such communicator (any more)."""

    rank: int
    host: str
    pid: int
    cuda_dev: int | None = None
    nvml_dev: int | None = None
    unresponsive: bool = False
    considered_dead: bool = False


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """`status` is INIT, RUNNING, FINALIZE, ABORT or NOCOMM; `errors` any of MISMATCH, ERROR, INCOMPLETE: NCCL's own words.

    `hash` is hexadecimal, empty where the text report only counts it. `unnamed` are (operation, count, ranks): of so many
    members the text tells the count and not who they are.
    """

    hash: str
    size: int
    ranks: tuple[RasRank, ...] = ()
    missing: tuple[RasMissing, ...] = ()
    status: str = ""
    errors: tuple[str, ...] = ()
    unnamed: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RasReading(Observation):
    """NCCL RAS's answer about all communicators of the whole job, from whichever of its processes answered.

    `whole` is False where the answer was cut off; `detailed` where every member of every communicator is in it (JSON).
    `addresses` are those of the host that was asked; `timeouts` how often RAS itself had no answer in time.
    """

    nccl_version: str
    communicators: tuple[RasCommunicator, ...]
    timeouts: int
    emitted: float
    whole: bool = True
    detailed: bool = True
    dead: tuple[tuple[str, int], ...] = ()  # (host, pid) of processes that the text report calls dead, members or not
    host: str = ""
    addresses: tuple[str, ...] = ()
    excerpts: tuple[str, ...] = ()  # the report's own paragraphs on what is wrong; of JSON none


@dataclass(frozen=True, slots=True)
class RecorderAsked(Observation):
    """We ask the rank for its Flight Recorder now: what memory and CPU it takes for the answer is our trace."""


# --- what the log says ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogLine(Observation):
    """One line of output; `stream` is stdout, stderr or a file's name. `rank` only where the line or file tells it."""

    stream: str
    text: str
    bar: bool = False  # ended by a carriage return: a progress bar being redrawn


@dataclass(frozen=True, slots=True)
class PhaseMarked(Observation):
    """A line that tells the phase: rendezvous, model_load, data_prep, comm_init, first_step, eval, teardown ..."""

    phase: str
    text: str


@dataclass(frozen=True, slots=True)
class EpochStarted(Observation):
    epoch: int
    text: str


@dataclass(frozen=True, slots=True)
class Iteration(Observation):
    """A training step was reported as finished; `total` is 0 when unknown."""

    iteration: int
    total: int
    text: str
    metrics: tuple[tuple[str, float], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class StepsPlanned(Observation):
    """How many steps the training will have: tells its bar from others."""

    total: int
    text: str


@dataclass(frozen=True, slots=True)
class BarMoved(Observation):
    """A progress bar without a name was drawn: training, evaluation or anything else."""

    done: int
    total: int
    text: str


@dataclass(frozen=True, slots=True)
class MetricsLogged(Observation):
    """Numbers that a trainer printed without saying at which step: training (`loss`), evaluation (`eval_...`) or the end."""

    metrics: tuple[tuple[str, float], ...]
    text: str


@dataclass(frozen=True, slots=True)
class SaveStarted(Observation):
    text: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class SaveFinished(Observation):
    text: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class NcclLine(Observation):
    """One line of NCCL_DEBUG: `level` INFO, WARN, TRACE ...; `gpu` is NCCL's own [n], the CUDA device index."""

    host: str
    pid: int
    tid: int
    gpu: int | None
    level: str
    text: str


# --- about looking itself ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceFailed(Observation):
    """A source cannot look. The finding it would have served becomes `not checked`, with this reason."""

    source: str
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class SourceWorks(Observation):
    """The source can look (again): withdraws an earlier SourceFailed of the same source and rank."""

    source: str


@dataclass(frozen=True, slots=True)
class Unparsed(Observation):
    """A record that its parser should have understood and did not."""

    source: str
    reason: str
    excerpt: str
