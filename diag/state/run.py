"""The run as its command line and its end show it: what was started, when, and how it ended."""

from __future__ import annotations

from diag.model.observations import (
    Agent,
    AgentsSeen,
    EndUnknown,
    EvidenceKept,
    Interrupted,
    NodeDigest,
    RunEnded,
    RunStarted,
)
from diag.model.observations.waits import WaitsRead
from diag.state.reducer import RankStarted, Reducer, takes

# Ours, of the command after its ranks: less than a loop takes that looks again once a second.
_AT_REST_CPU_RATIO = 0.001
_TICK_SECONDS = 0.01  # what the kernel counts in
_AT_REST_CHARS = 1024


class Run(Reducer):
    """Owns the command and its exit status."""

    def __init__(self) -> None:
        self.argv: tuple[str, ...] = ()  # the command, as diag was given it
        self.rank_argv: tuple[str, ...] = ()  # of the first rank: what a script around the launcher hides
        self.host = ""  # where the command was started
        self.cwd = ""  # its working directory then; empty where it is not known
        self.pid = 0  # of the command
        self.machine = ""  # of the host: x86_64, aarch64; empty where it is not known
        self.pointed_at = False  # a person named the process, to learn why it does not go on
        self.started_at: float | None = None  # the command; else the first rank that was found
        self.ended_at: float | None = None  # when the command had ended
        self.returncode: int | None = None  # of the command; None while it runs
        self.end_unknown = False  # all that there is of its logs was read, and does not tell how it ended
        self.agents: tuple[Agent, ...] = ()  # of torchrun, while there is no rank
        self.agents_at = 0.0  # since when they have been these, and where they are
        self.outlives: WaitsRead | None = None  # what its processes wait for, while no rank lives that did
        self.outlives_at = 0.0
        self.outlives_since = 0.0  # when any of them was last found to have moved since the reading before
        self.interrupted_at: float | None = None  # when its end was asked for: Ctrl-C, SIGTERM
        self.evidence: tuple[tuple[float, EvidenceKept], ...] = ()  # bundles written when findings were told

    @property
    def may_have_failed(self) -> bool:
        """It failed, or only an excerpt is there, which does not tell: what that shows is weighed afterwards."""
        return bool(self.returncode) or (self.end_unknown and self.returncode is None)

    @property
    def words(self) -> tuple[str, ...]:
        """The command and what became of it in a rank: where flags are looked for. The last of two counts."""
        return (*self.argv, *self.rank_argv)

    def evidence_of(self, key: tuple[str, str], since: float = 0.0) -> EvidenceKept | None:
        """The bundle that was kept of this finding (id, subject): the first one since it was told, else the last
        one before, where it was the same then. None: there is none (yet)."""
        kept = [(at, one) for at, one in self.evidence if key in one.findings]
        return next((one for at, one in kept if at >= since), kept[-1][1] if kept else None)

    @takes(EvidenceKept)
    def _evidence_kept(self, at: float, fact: EvidenceKept) -> None:
        self.evidence = (*self.evidence, (at, fact))

    @takes(RunStarted)
    def _started(self, at: float, fact: RunStarted) -> None:
        self.argv, self.host, self.pid, self.cwd = fact.argv, fact.host, fact.pid, fact.cwd
        self.machine, self.pointed_at = fact.machine, fact.pointed_at
        self.started_at = at

    @takes(RunEnded)
    def _ended(self, at: float, fact: RunEnded) -> None:
        self.returncode, self.ended_at = fact.returncode, at

    @takes(EndUnknown)
    def _end_unknown(self, at: float, fact: EndUnknown) -> None:
        self.end_unknown = True

    @takes(Interrupted)
    def _interrupted(self, at: float, fact: Interrupted) -> None:
        self.interrupted_at = self.interrupted_at or at

    @takes(AgentsSeen)
    def _agents(self, at: float, fact: AgentsSeen) -> None:
        self.agents, self.agents_at = fact.agents, at

    @takes(WaitsRead)
    def _waits(self, at: float, fact: WaitsRead) -> None:
        if fact.rank is not None or fact.pid != self.pid:
            return
        if self.outlives is None or _moved(self.outlives, fact, at - self.outlives_at):
            self.outlives_since = at
        self.outlives, self.outlives_at = fact, at

    @takes(RankStarted)
    def _rank_started(self, at: float, event: RankStarted) -> None:
        self.outlives = None
        if self.started_at is None and not event.in_log:
            self.started_at = at
        if not self.rank_argv:
            self.rank_argv = tuple(event.found.command.split())

    @takes(NodeDigest)
    def _digest(self, at: float, fact: NodeDigest) -> None:
        if fact.started_at is not None:
            self.started_at = min(self.started_at or fact.started_at, fact.started_at)
        if fact.interrupted:
            self.interrupted_at = self.interrupted_at or at


def _moved(before: WaitsRead, now: WaitsRead, seconds: float) -> bool:
    """Any of the processes has worked, begun or ended. What may not be read may have."""
    then, spent = before.spent, now.spent
    if (
        then is None
        or spent is None
        or {one.pid for one in before.processes} != {one.pid for one in now.processes}
    ):
        return True
    return (
        spent.cpu_seconds - then.cpu_seconds > _AT_REST_CPU_RATIO * seconds + _TICK_SECONDS
        or spent.chars - then.chars > _AT_REST_CHARS
        or spent.faults != then.faults
    )
