"""Kernel messages about memory: kills by the OOM killer, refused allocations and forks."""

from __future__ import annotations

from collections.abc import Iterator

from diag.observations import Observation

__all__ = ["Reader"]


class Reader:
    """Reads one run of lines: a kill is told by several, of which the first name the cgroup and the last the process."""

    def read_line(self, line: str) -> Iterator[Observation]:
        return iter(())
