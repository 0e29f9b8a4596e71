"""The run as its command line and its end show it: what was started, when, and how it ended."""

from __future__ import annotations

from diag.model.observations import (
    Agent,
    AgentsSeen,
    EndUnknown,
    Interrupted,
    NodeDigest,
    RunEnded,
    RunStarted,
)
from diag.state.reducer import RankStarted, Reducer, takes


class Run(Reducer):
    """Owns the command and its exit status."""

    def __init__(self) -> None:
        self.argv: tuple[str, ...] = ()  # the command, as diag was given it
        self.rank_argv: tuple[str, ...] = ()  # of the first rank: what a script around the launcher hides
        self.host = ""  # where the command was started
        self.cwd = ""  # its working directory then; empty where it is not known
        self.pid = 0  # of the command
        self.started_at: float | None = None  # the command; else the first rank that was found
        self.ended_at: float | None = None  # when the command had ended
        self.returncode: int | None = None  # of the command; None while it runs
        self.end_unknown = False  # all that there is of its logs was read, and does not tell how it ended
        self.agents: tuple[Agent, ...] = ()  # of torchrun, while there is no rank
        self.agents_at = 0.0  # since when they have been these, and where they are
        self.interrupted_at: float | None = None  # when its end was asked for: Ctrl-C, SIGTERM

    @property
    def may_have_failed(self) -> bool:
        """It failed, or only an excerpt is there, which does not tell: what that shows is weighed afterwards."""
        return bool(self.returncode) or (self.end_unknown and self.returncode is None)

    @property
    def words(self) -> tuple[str, ...]:
        """The command and what became of it in a rank: where flags are looked for. The last of two counts."""
        return (*self.argv, *self.rank_argv)

    @takes(RunStarted)
    def _started(self, at: float, fact: RunStarted) -> None:
        self.argv, self.host, self.pid, self.cwd = fact.argv, fact.host, fact.pid, fact.cwd
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

    @takes(RankStarted)
    def _rank_started(self, at: float, event: RankStarted) -> None:
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
