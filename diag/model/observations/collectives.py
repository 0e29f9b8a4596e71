"""Collectives, as torch's Flight Recorder and watchdog and NCCL RAS report them."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.base import Observation
from diag.model.observations.stacks import Frame

CALLS_KEPT = 50  # of each group, and all that are pending; ours: enough to tell in what a mismatch began


@dataclass(frozen=True, slots=True)
class CollectiveEntry:
    """One call that torch's Flight Recorder kept. `seq` counts the group's collectives, or its point-to-point
    calls.

    `state` and `retired` are torch's terms; `pending` is what they amount to: issued and not known to be
    finished.
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
    time_created: float  # the rank's own clock; 0 when not given


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """A process group as one rank knows it. `members` are ranks of the job; empty when the recorder does not
    say."""

    backend: str
    name: str
    desc: str
    members: tuple[int, ...]
    last_enqueued: int | None = None
    last_completed: int | None = None


@dataclass(frozen=True, slots=True)
class FlightRecorder(Observation):
    """A rank's collectives: of each group the last ones and all that are pending, in the order of their
    issue."""

    emitted: float
    version: str
    # the recorders that answered; of others nothing is known. Empty: it does not say
    backends: tuple[str, ...]
    groups: tuple[CollectiveGroup, ...]
    entries: tuple[CollectiveEntry, ...]
    pid: int = 0


@dataclass(frozen=True, slots=True)
class CallSequence:
    """One group's collectives in a rank's recorder, in the order of their issue: of each its number in the group and
    its place in `kinds`, which hold what the recorder says of such a call, without number and time.

    `stacks`: of each kind the frames that made such calls, outermost first, so that one kind stands there for each way to
    it; empty where the recorder was not asked for them."""

    backend: str
    name: str
    desc: str
    members: tuple[int, ...]  # ranks of the job; empty when the recorder does not say
    kinds: tuple[CollectiveEntry, ...]
    calls: tuple[tuple[int, int], ...]
    stacks: tuple[tuple[Frame, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CallHistory(Observation):
    """All collectives that a rank's recorder keeps, not only the last ones; no point-to-point calls.

    `backends` as of FlightRecorder.
    """

    emitted: float
    pid: int
    backends: tuple[str, ...]
    groups: tuple[CallSequence, ...]


@dataclass(frozen=True, slots=True)
class CollectiveTimedOut(Observation):
    """PyTorch's watchdog gave up on a call in which this rank waited: a victim, or one of those that called
    differently."""

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
    """One member of a communicator as NCCL RAS reports it. `rank` is the communicator's own number, not the
    job's.

    `host` is an address of NCCL's bootstrap interface. `init_state` and `async_error` are ncclResult_t (0 is
    fine, 7 in progress), None where the text report does not say; `counts` are calls launched, not completed,
    by operation.
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
    """A member that RAS has no data of: its process gave no answer, or it answered and is in no such
    communicator (any more)."""

    rank: int
    host: str
    pid: int
    cuda_dev: int | None = None
    nvml_dev: int | None = None
    unresponsive: bool = False
    considered_dead: bool = False


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """`status` is INIT, RUNNING, FINALIZE, ABORT or NOCOMM; `errors` any of MISMATCH, ERROR, INCOMPLETE:
    NCCL's own terms.

    `hash` is hexadecimal, empty where the text report only counts it. `unnamed` are (operation, count,
    ranks): of so many members the text gives the count and not who they are.
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

    `whole` is False where the answer was cut off; `detailed` where every member of every communicator is in
    it (JSON). `addresses` are those of the host that was asked; `timeouts` how often RAS itself had no answer
    in time.
    """

    nccl_version: str
    communicators: tuple[RasCommunicator, ...]
    timeouts: int
    emitted: float
    whole: bool = True
    detailed: bool = True
    dead: tuple[
        tuple[str, int], ...
    ] = ()  # (host, pid) of processes that the text report calls dead, members or not
    host: str = ""
    addresses: tuple[str, ...] = ()
    excerpts: tuple[str, ...] = ()  # the report's own paragraphs on what is wrong; of JSON none


@dataclass(frozen=True, slots=True)
class RecorderAsked(Observation):
    """We ask the rank for its Flight Recorder now: what memory and CPU it takes for the answer is our trace."""
