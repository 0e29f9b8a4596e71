"""What hubs of one job report to each other: the state of a node and of its ranks, and the verdict on the whole
job."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model import Finding, NotChecked, Placement
from diag.model.observations.base import Observation
from diag.model.observations.run import RankExited
from diag.model.observations.stacks import Frame


@dataclass(frozen=True, slots=True)
class NodeDigest(Observation):
    """One node's hub about itself. Times are engine times of whoever took the digest: nodes report how long ago a
    thing was, so that their clocks do not matter. `deaths` and `hangs` are what this node alone would have
    reported of such things.

    `skew_seconds`: how far the node's clock is ahead of the taker's, None within half the time of the
    exchange.
    """

    run_id: str  # one hub's life: two nodes of one number differ in it
    host: str
    node_rank: int | None
    url: str  # where this hub answers, as its peers reach it
    seq: int
    nodes: int  # how many its launcher says there are
    rendezvous: str  # where its launcher meets the others: "10.0.0.1:29500"
    ranks: int
    local_world_size: int  # ranks that its launcher is to start here; 0 where it does not say
    world_size: int
    phase: str
    marked_phase: str
    phase_at: float | None
    phase_line: str
    iteration: int | None
    total_iterations: int
    iteration_at: float | None
    log_moved_at: float | None
    save_moved_at: float | None
    started_at: float | None
    step_seconds: float | None
    line_seconds: float
    silence_seconds: float  # the longest that this node came through in this phase
    phase_seconds: float  # and how long such a phase took at most
    returncode: int | None
    interrupted: bool
    round_trip_seconds: float | None  # of its last exchange with the job hub
    skew_seconds: float | None
    every_seconds: float  # until the next digest
    findings: tuple[Finding, ...] = ()
    deaths: tuple[Finding, ...] = ()
    hangs: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    version: str = ""
    connect_seconds: float | None = None  # that the last connection to the job hub took: the network alone
    host_names: tuple[str, ...] = ()  # of all nodes in order of their numbers, where the launcher shows them
    leaving: bool = False  # this hub ends now: its silence will be no failure


@dataclass(frozen=True, slots=True)
class FramesSeen(Observation):
    """The one copy of a stack that digests then name by its key. Outermost frame first."""

    key: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class ThreadSeen:
    """A thread by the key of its frames. `thread_id` is the process's own number of it."""

    key: str
    thread_id: int
    name: str
    active: bool | None = None
    owns_gil: bool | None = None


@dataclass(frozen=True, slots=True)
class StackSampleSummary:
    """A sample of a rank in steady state: did it wait for its peers, and where was it."""

    at: float
    waits: bool
    activity: str
    where: str
    saves: bool = False
    own: str = ""  # the program's own line that led there, when that is in a library


@dataclass(frozen=True, slots=True)
class RankDigest(Observation):
    """The state of one rank as its own hub has it. `standing`, `cause` and `child` are what that hub makes of
    its stack; empty where it had no reason to look. `threads` is empty where the stack was not asked for."""

    placement: Placement
    run_id: str
    at: float  # the moment that this shows
    moved: tuple[tuple[str, float], ...]  # by channel
    alive: bool
    state: str  # of the process: R, S, D, T ...
    comm: str
    tree_at: float
    cpu_ratio: float | None
    main_cpu_ratio: float | None
    rss_bytes: int
    stopped_at: float | None
    stack_at: float
    stack_since: float
    stack_samples: int
    stack_how: str
    standing: str = ""
    cause: str = ""
    child: int | None = None
    gpu: str = ""  # spins, idle, works, mixed
    threads: tuple[ThreadSeen, ...] = ()
    children: tuple[
        tuple[int, str, str, tuple[ThreadSeen, ...]], ...
    ] = ()  # pid, state, how it was read, threads
    looks: tuple[StackSampleSummary, ...] = ()
    exited: RankExited | None = None
    tail: tuple[str, ...] = ()  # of a rank that ended
    thread: int = 0  # the one that trains, where that is not the main thread


@dataclass(frozen=True, slots=True)
class NodeProbed(Observation):
    """A silent node's hub was tried: `answer` is connected, refused, timeout, unreachable or unresolved."""

    run_id: str
    host: str
    answer: str
    seconds: float


@dataclass(frozen=True, slots=True)
class JobVerdict(Observation):
    """What the job hub says of the whole job: its findings replace what one node would say of such
    things by itself."""

    hub: str  # its host
    nodes_heard: int
    nodes_expected: int
    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...] = ()
    phase: str = ""
    iteration: int | None = None
    total_iterations: int = 0


@dataclass(frozen=True, slots=True)
class VerdictLost(Observation):
    """No job hub answers any more: this node judges by itself again."""

    reason: str
