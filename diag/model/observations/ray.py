"""Ray on this machine: its processes and what they do, and what it has no room for."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.base import Observation
from diag.model.observations.stacks import ThreadStack
from diag.model.observations.waits import WaitsRead


@dataclass(frozen=True, slots=True)
class RayProcess:
    """`kind`: driver, worker (of an actor or a task), daemon (raylet, GCS, agents, monitors), or service: somebody else
    whom one of these waits for.

    `name`, `method`: of a worker, by its title `ray::Trainer.fit`; an actor between two calls has a name alone. `threads`
    and `waits` are there of those that may wait for others: drivers, workers, services.
    """

    pid: int
    kind: str
    title: str
    name: str = ""
    method: str = ""
    threads: tuple[ThreadStack, ...] = ()
    waits: WaitsRead | None = None

    @property
    def task(self) -> str:
        """ "Trainer.fit"; "Trainer" between two calls."""
        return f"{self.name}.{self.method}" if self.method else self.name

    @property
    def main(self) -> ThreadStack | None:
        return next((one for one in self.threads if one.thread_id == self.pid), None)


@dataclass(frozen=True, slots=True)
class RayDemand:
    """Something that Ray has not placed: `shape` is what it needs, of a placement group all bundles."""

    group: bool
    shape: tuple[tuple[tuple[str, float], ...], ...]
    strategy: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class RayDeath:
    """A worker that Ray's logs report to have ended, and `how`: killed (ray.kill, or its last handle is gone), memory (by
    Ray's own monitor of the node's memory), job_over, exit_actor, crashed."""

    pid: int
    how: str
    restarts: bool | None = None  # Ray starts the actor again
    line: str = ""


@dataclass(frozen=True, slots=True)
class RaySeen(Observation):
    """One reading. `totals`: of each resource of the cluster what is used and what there is."""

    session: str
    processes: tuple[RayProcess, ...]
    demands: tuple[RayDemand, ...] = ()
    totals: tuple[tuple[str, float, float], ...] = ()
    deaths: tuple[RayDeath, ...] = ()
