"""The run and its processes, how they come to the store at which they meet; and what a source could not read."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model import Placement
from diag.model.observations.base import Observation


@dataclass(frozen=True, slots=True)
class RunStarted(Observation):
    argv: tuple[str, ...]
    pid: int
    host: str
    world_size: int = 0  # as the launcher's environment says; 0 when it does not
    cwd: str = ""  # the working directory of the command; empty where it is not known
    attached: bool = False  # it ran already when diag came
    machine: str = ""  # of the host: x86_64, aarch64; empty where it is not known
    pointed_at: bool = False  # a person named this process, to learn why it does not go on


@dataclass(frozen=True, slots=True)
class RunEnded(Observation):
    """CMD ended; `returncode` as the shell says it (128+n for signal n)."""

    returncode: int


@dataclass(frozen=True, slots=True)
class EvidenceKept(Observation):
    """A bundle was written as soon as these findings were told, without a person: each (id, subject)."""

    findings: tuple[tuple[str, str], ...]
    path: str
    size_bytes: int
    seconds: float  # from the moment when they were told


@dataclass(frozen=True, slots=True)
class RankFound(Observation):
    placement: Placement
    command: str = ""
    distributed: bool = True  # False: CMD has no ranks, its one process is watched as rank 0
    # The how-many-th process group of this process says that it is this rank; 0: its environment does.
    group: int = 0
    # Which thread joined it, by the kernel's number and by Python's (stacks have either); (): the main one.
    thread: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankWithdrawn(Observation):
    """The process was taken for this rank and is none: others have joined the process group, it started them."""

    pid: int


@dataclass(frozen=True, slots=True)
class RankShared(Observation):
    """Several processes that run side by side were started with this rank's number; `pids` are all of them."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Agent:
    """One of torchrun's: how many nodes it was told to wait for, where they meet, and the id of their rendezvous (--rdzv-id,
    empty where none is given). `waits`: its stack is in the rendezvous. `hosts`: other machines that are connected to
    it, where it has the store at which they meet."""

    pid: int
    nodes: int
    where: str = ""
    run_id: str = ""
    waits: bool = True
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentsSeen(Observation):
    """torchrun's agents on this machine, where none has started a rank."""

    agents: tuple[Agent, ...]


@dataclass(frozen=True, slots=True)
class RankExited(Observation):
    """`exit_code` and `signal` are None when they could not be read (`how` says who did). A log shows it
    late: `ended` is when it was, and `last` are the rank's last lines, where none came under its number."""

    pid: int
    exit_code: int | None
    signal: int | None
    how: str
    ended: float | None = None
    last: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChildEnded(Observation):
    """A process below the rank ended of this signal, or with this exit code, which is not 0."""

    pid: int
    exit_code: int | None
    signal: int | None


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
class SamplingGap(Observation):
    """diag itself did not run for so long (it was stopped, or the machine slept): what comes now comes late,
    in a bunch."""

    seconds: float


@dataclass(frozen=True, slots=True)
class EnvironmentSeen(Observation):
    """The variables of a rank that matter to diagnosis (an allow-list; secrets never get here)."""

    pid: int
    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SoftwareSeen(Observation):
    """What a process runs on; versions are empty where they are not known. `packages`: those installed beside the
    libraries that it has loaded, by pip's names; None where that folder was not seen."""

    pid: int
    python: str
    kernel: str
    driver: str
    packages: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class AttemptBegan(Observation):
    """A log holds `earlier` other attempts of the same program, in so many lines, before this one; `ended_with` is the
    last line of the one before. Nothing of them is a fact of this attempt."""

    earlier: int
    lines: int
    ended_with: str


@dataclass(frozen=True, slots=True)
class Acted(Observation):
    """A step of what `diag run --on` does, or why it does nothing. `what`: acts, holds (does not act), evidence, term, kill,
    ended, left (processes that do not end), failed, told, ran, again (the command was started again); among several nodes
    orders, agrees and follows. `text` says it in a sentence; `lease` is the number under which one node acts for all, 0 without;
    the rest is of the finding, and the last step that was reported."""

    what: str
    text: str
    action: str = ""
    finding: str = ""
    klass: str = ""
    culprits: tuple[int, ...] = ()
    step: int | None = None
    lease: int = 0


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """An attempt that diag ended, to start the command again. `began`, `ended`: seconds since the epoch."""

    number: int
    began: float
    ended: float
    action: str
    finding: str
    klass: str
    culprits: tuple[int, ...]
    step: int | None
    resumed: str = ""  # how the next one went on, in words
    evidence: str = ""  # the bundle
    steps: tuple[str, ...] = ()  # what was done, as `Acted.text`
    steps_at: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StartedAgain(Observation):
    """`diag run` has ended the command and starts it again. What is recorded of the attempts before is no fact of this
    one."""

    number: int
    earlier: tuple[PastAttempt, ...] = ()


@dataclass(frozen=True, slots=True)
class LogsEnded(Observation):
    """The job's logs were read to their end. Of the times only what their lines show; `hung` says the job's own
    watchdog. `error` are the last lines of a launcher that failed by itself, at `error_at`."""

    files: tuple[str, ...]
    launcher: str
    began: float | None
    ended: float | None
    quiet_seconds: float  # before the last line, since anything in them moved
    hung: bool
    error: tuple[str, ...] = ()
    error_at: float = 0.0
    exception: str = ""


@dataclass(frozen=True, slots=True)
class EndUnknown(Observation):
    """The logs were read to their end, and nothing in them shows how the job ended, or whether it did."""


@dataclass(frozen=True, slots=True)
class JournalCutOff(Observation):
    """The records end before the run does: the journal was never closed."""


@dataclass(frozen=True, slots=True)
class SnapshotTaken(Observation):
    """The readings since `began` are one moment that somebody captured by hand; nothing later is known of the
    job.

    `silent_seconds`: how long the evidence itself shows that nothing moved before it; None when it does not
    tell.
    """

    name: str
    began: float
    silent_seconds: float | None
    why: str = ""  # what shows that silence, in words
    # False: captured evidence begins; the moment that the job is judged by is still to come
    final: bool = True


@dataclass(frozen=True, slots=True)
class StoreTried(Observation):
    """The log shows one try that failed. `delay`: seconds to the next, where the line says it; `why`: in
    its own words."""

    host: str
    port: int
    why: str
    delay: float
    text: str


@dataclass(frozen=True, slots=True)
class StoreWaited(Observation):
    """Looked at from outside: a launcher (no rank) or a rank is in the call that connects to the store,
    without a connection.

    `pending`: the kernel waits for an answer to its SYN. `over`: it has left that call, or has the
    connection. `node`: its number where the launcher's command shows it.
    """

    pid: int
    host: str
    port: int
    node: int | None
    pending: bool
    over: bool
