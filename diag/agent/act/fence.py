"""One actor among the nodes of a job. A job whose ranks are all on this node has no other; of several nodes none acts, as
nothing is shared by which one of them could act for all: each would end its own part at a time of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diag.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Fence:
    """`of_several`: whether the launcher or a hub knows of other nodes. The engine's lock is held by who asks."""

    engine: Engine
    host: str
    of_several: Callable[[], bool]

    def closed(self) -> str:
        """Why this node may not act alone; empty where it is shown that it is the only one."""
        if self.of_several():
            return "the job has other nodes, and no lease by which one acts for all"
        job = self.engine.job
        here = [rank for rank in job.ranks.values() if rank.placement.host == self.host]
        if not here or len(here) < job.world_size:
            return (
                f"only {len(here)} of {job.world_size} ranks are seen on this node: others may be on another"
            )
        return ""
