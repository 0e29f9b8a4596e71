"""Errors of the network that NCCL printed while the job fell silent."""

from __future__ import annotations

from diag.model.observations import NcclCompletionError, NcclLine, NcclPortEvent
from diag.state.view import JobView


class Network:
    """Per rank the first error of the network in its NCCL lines, and when."""

    listens = (NcclCompletionError, NcclPortEvent)

    def __init__(self) -> None:
        self._errors: list[tuple[float, NcclLine]] = []

    def observe(self, at: float, fact: NcclCompletionError | NcclPortEvent) -> None:
        if len(self._errors) < 1000 and _is_error(fact):
            self._errors.append((at, fact.line))

    def errors(self, job: JobView) -> dict[int, NcclLine]:
        found: dict[int, NcclLine] = {}
        for at, line in self._errors:
            rank = job.ranks.rank_of_pid(line.pid) if line.rank is None else line.rank
            if rank is not None and rank in job.ranks and at >= job.ranks[rank].found_at:
                found.setdefault(rank, line)
        return found


def _is_error(fact: NcclCompletionError | NcclPortEvent) -> bool:
    """A port that came up, or whose table changed, is none."""
    return fact.line.level == "WARN" and (
        isinstance(fact, NcclCompletionError) or fact.fatal or fact.event == "port error"
    )
