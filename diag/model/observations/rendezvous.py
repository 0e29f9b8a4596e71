"""How a job's launchers and ranks come to the store at which they meet."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.base import Observation


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
