"""What NCCL's own log lines (NCCL_DEBUG=INFO) tell of the job now: its version, where RAS listens,
communicators being made."""

from __future__ import annotations

from dataclasses import dataclass, field

from diag.model.observations import NcclCommunicator, NcclFact, NcclLine, NcclRasListening, NcclVersion

__all__ = ["NcclState"]

_MOST_OPEN = 100_000  # communicators under way at once, of all ranks of a node; more is no log of NCCL


@dataclass(slots=True)
class NcclState:
    """`version` is the last that was told ("2.28.9"), `ras_address` as NCCL writes it, `lines` how many were
    read."""

    version: str = ""
    ras_address: str = ""
    lines: int = 0
    _open: dict[tuple[int, str], float] = field(
        default_factory=dict
    )  # (pid, communicator) -> told time of its Init START

    def observe(self, at: float, fact: NcclLine | NcclFact) -> None:
        if isinstance(fact, NcclLine):
            self.lines += 1
        elif isinstance(fact, NcclVersion):
            self.version = fact.version
        elif isinstance(fact, NcclRasListening):
            self.ras_address = fact.address
        elif isinstance(fact, NcclCommunicator):
            self._communicator(at, fact)

    def _communicator(self, at: float, fact: NcclCommunicator) -> None:
        if fact.stage == "start":
            if len(self._open) < _MOST_OPEN:
                self._open[fact.line.pid, fact.comm] = at
        elif fact.stage != "topology":
            self._open.pop((fact.line.pid, fact.comm), None)

    def being_made(self, pid: int) -> float | None:
        """Since when a communicator of this process is being made; None when none is."""
        return min((at for (owner, _), at in self._open.items() if owner == pid), default=None)
