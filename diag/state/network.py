"""What the node's networks showed: RDMA ports and IP interfaces, the first reading and those of the last
minutes, and which ports went down meanwhile."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from diag.model.observations import InterfacesSeen, NetworkExpected, Observation, RdmaPort, RdmaPortsSeen
from diag.state.reducer import Reducer, takes

_KEPT = 31  # five minutes of a reading each 10 s

T = TypeVar("T", bound=Observation)


@dataclass(slots=True)
class Readings(Generic[T]):
    """Readings of one thing, each with its time."""

    first: tuple[float, T] | None = None
    latest: deque[tuple[float, T]] = field(default_factory=lambda: deque(maxlen=_KEPT))

    @property
    def last(self) -> tuple[float, T] | None:
        return self.latest[-1] if self.latest else None

    def since(self, at: float) -> tuple[float, T] | None:
        """The oldest reading that is kept and not from before `at`."""
        return next((reading for reading in self.latest if reading[0] >= at), None)

    def add(self, at: float, fact: T) -> None:
        self.first = self.first or (at, fact)
        self.latest.append((at, fact))


@dataclass(slots=True)
class NetworkState(Reducer):
    """Of the node that this job state is about. No reading: not read; a reading without ports: there are
    none.

    Ports are (device, port). `expected` are patterns of networks that NCCL is meant to use; none: anything
    but sockets.
    """

    ports: Readings[RdmaPortsSeen] = field(default_factory=Readings)
    interfaces: Readings[InterfacesSeen] = field(default_factory=Readings)
    expected: tuple[str, ...] = ()
    was_active: dict[tuple[str, int], float] = field(default_factory=dict)  # when a port was last seen active
    # ports that were active and are not
    down_since: dict[tuple[str, int], float] = field(default_factory=dict)
    downs: Counter[tuple[str, int]] = field(default_factory=Counter)  # how often each went down

    @takes(RdmaPortsSeen)
    def _ports_seen(self, at: float, fact: RdmaPortsSeen) -> None:
        self.ports.add(at, fact)
        for port in fact.ports:
            self._see_port(at, port)

    @takes(InterfacesSeen)
    def _interfaces_seen(self, at: float, fact: InterfacesSeen) -> None:
        self.interfaces.add(at, fact)

    @takes(NetworkExpected)
    def _expected(self, at: float, fact: NetworkExpected) -> None:
        self.expected = fact.nets

    def rdma_ports(self) -> tuple[RdmaPort, ...] | None:
        """As read last; None before the first reading."""
        return None if self.ports.last is None else self.ports.last[1].ports

    def active_ports(self) -> tuple[RdmaPort, ...] | None:
        """Those that can carry traffic; None before the first reading."""
        ports = self.rdma_ports()
        return None if ports is None else tuple(port for port in ports if port.active)

    def _see_port(self, at: float, port: RdmaPort) -> None:
        key = (port.device, port.port)
        if port.active:
            self.was_active[key] = at
            self.down_since.pop(key, None)
        elif key in self.was_active and key not in self.down_since and port.state is not None:
            self.down_since[key] = at
            self.downs[key] += 1
