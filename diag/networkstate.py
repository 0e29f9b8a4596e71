"""What the node's networks showed: RDMA ports and IP interfaces, the first reading and those of the last minutes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from diag.observations import InterfacesSeen, Observation, RdmaPortsSeen

__all__ = ["NetworkState", "Readings"]

_KEPT = 31  # five minutes of a reading each 10 s

T = TypeVar("T", bound=Observation)


@dataclass(slots=True)
class Readings(Generic[T]):
    """Readings of one thing, each with its told time."""

    first: tuple[float, T] | None = None
    latest: deque[tuple[float, T]] = field(default_factory=lambda: deque(maxlen=_KEPT))

    @property
    def last(self) -> tuple[float, T] | None:
        return self.latest[-1] if self.latest else None

    @property
    def previous(self) -> tuple[float, T] | None:
        return self.latest[-2] if len(self.latest) > 1 else None

    def since(self, at: float) -> tuple[float, T] | None:
        """The oldest reading that is kept and not from before `at`."""
        return next((reading for reading in self.latest if reading[0] >= at), None)

    def told(self, at: float, fact: T) -> None:
        self.first = self.first or (at, fact)
        self.latest.append((at, fact))


@dataclass(slots=True)
class NetworkState:
    """Of the node that this job state is about. No reading: nobody looked; a reading without ports: there are none."""

    ports: Readings[RdmaPortsSeen] = field(default_factory=Readings)
    interfaces: Readings[InterfacesSeen] = field(default_factory=Readings)

    def observe(self, at: float, fact: RdmaPortsSeen | InterfacesSeen) -> None:
        if isinstance(fact, RdmaPortsSeen):
            self.ports.told(at, fact)
        else:
            self.interfaces.told(at, fact)
