"""What the job's own log says."""

from __future__ import annotations

from dataclasses import dataclass, field

from diag.model.observations.base import Observation


@dataclass(frozen=True, slots=True)
class LogLine(Observation):
    """One line of output; `stream` is stdout, stderr or a file's name. `rank` only where the line or file
    shows it. `part`: the number that a launcher put before it, of a process on its node or of a task, which need not be the
    rank."""

    stream: str
    text: str
    bar: bool = False  # ended by a carriage return: a progress bar being redrawn
    number: int = 0  # of the line in its file, from 1; 0 where lines are not counted
    part: int | None = None


@dataclass(frozen=True, slots=True)
class QuietLine(LogLine):
    """One that has a word of some parser, and none that anybody looks for in lines: who counts lines, or keeps the last
    that were printed, hears of it. All others take it from `QuietLines`. `shape`: the text without digits."""

    shape: bytes = b""


@dataclass(frozen=True, slots=True)
class QuietLines(Observation):
    """Behind the facts of some such lines in a row: all of them, for who keeps the lines above an error. `last`: the texts
    of the last, without bars."""

    stream: str
    lines: tuple[QuietLine, ...]
    last: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.lines)


@dataclass(frozen=True, slots=True)
class Moment(Observation):
    """What follows in this record was written at `at`: a log on disk has thousands of moments in one record."""

    at: float


@dataclass(frozen=True, slots=True)
class LinesWritten(Observation):
    """The last lines that a rank wrote into a file of its own, at `written_at` by that file. `pid`: of a process that it
    waits for, 0 for its own."""

    file: str
    lines: tuple[str, ...]
    written_at: float
    pid: int = 0


@dataclass(frozen=True, slots=True)
class LastLines(Observation):
    """What such a file ends with when the rank is first suspected, whenever it was written."""

    file: str
    lines: tuple[str, ...]
    written_at: float
    pid: int = 0


@dataclass(frozen=True, slots=True)
class PlainLines(Observation):
    """`count` lines in a row without a word that any reader knows, in place of a `LogLine` each. `last` are the last of
    them, without what containers and launchers put before them; `text` is all of them as they are: a rule may know a word
    that no reader does. Of a live job the middle of a long run, which has no rule's word, is not in `text`. `number`: of the
    first in its file, 0 where lines are not counted.

    Who keeps the lines above an error takes them from `last`."""

    stream: str
    count: int
    last: tuple[str, ...]
    text: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class KernelLine(Observation):
    """One line of the kernel's log, as dmesg shows it: "[  137.224733] Memory cgroup out of memory: ...".

    `host_pids`: the pids in it are of the namespace that diag sees.
    """

    text: str
    host_pids: bool = False


@dataclass(frozen=True, slots=True)
class PhaseMarked(Observation):
    """A line that shows the phase: rendezvous, model_load, data_prep, comm_init, first_step, eval, teardown
    ..."""

    phase: str
    text: str


@dataclass(frozen=True, slots=True)
class EpochStarted(Observation):
    epoch: int
    text: str


@dataclass(frozen=True, slots=True)
class Iteration(Observation):
    """A training step was reported as finished; `total` is 0 when unknown. `clock`: seconds since the training
    began, as the line itself has it."""

    iteration: int
    total: int
    text: str
    metrics: tuple[tuple[str, float], ...] = field(default=())
    clock: float | None = None


@dataclass(frozen=True, slots=True)
class StepsPlanned(Observation):
    """How many steps the training will have: distinguishes its bar from others."""

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
    """Numbers that a trainer printed without saying at which step: training (`loss`), evaluation (`eval_...`)
    or the end."""

    metrics: tuple[tuple[str, float], ...]
    text: str


@dataclass(frozen=True, slots=True)
class LossPrinted(Observation):
    """A line of a trainer that diag does not know has a loss. `step` and `epoch`: None where it does not tell; `form`: the
    line without its numbers."""

    loss: float
    step: int | None
    epoch: int | None
    form: str
    text: str


@dataclass(frozen=True, slots=True)
class SaveStarted(Observation):
    text: str
    path: str = ""
    asynchronous: bool = False  # it goes on behind the training


@dataclass(frozen=True, slots=True)
class SaveFinished(Observation):
    text: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class SavesBehind(Observation):
    """The arguments that the program printed say that its saves are asynchronous: they go on behind the
    training."""

    text: str


@dataclass(frozen=True, slots=True)
class LayoutReported(Observation):
    """The program says into how many pipeline stages its ranks are laid out; 1 is none."""

    stages: int
    text: str


@dataclass(frozen=True, slots=True)
class LossScaleReduced(Observation):
    """fp16: gradients overflowed, the step was skipped and the loss scale lowered; `at_minimum`: it cannot be
    any more.

    `reduced` is None where the line does not say to what.
    """

    reduced: float | None
    text: str
    at_minimum: bool = False


@dataclass(frozen=True, slots=True)
class NonFiniteReported(Observation):
    """A check inside the program met nan or inf. `what` is loss or grad; `where`: the bucket or operator, ""
    when not given."""

    what: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class VersionSeen(Observation):
    """The log shows the version of a package, called as pip calls it (ms-swift, megatron-core, deepspeed,
    torch, nccl)."""

    package: str
    version: str
