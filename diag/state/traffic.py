"""Where the bytes go: from two readings of the node's networks, bytes a second over RDMA and over sockets.
Pure.

RDMA passes by the IP interfaces: a RoCE card's bytes are in its port's counters and not in /proc/net/dev. IP
over InfiniBand is in both: NCCL's sockets prefer ib0, and would look like RDMA by the port's counters alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from diag.model.observations import Interface, InterfacesSeen, RdmaPort, RdmaPortsSeen
from diag.state.network import NetworkState, Readings

_Seen = TypeVar("_Seen", RdmaPortsSeen, InterfacesSeen)
_Pair = tuple[tuple[float, _Seen], tuple[float, _Seen]]

# The headers of an IPoIB packet are in the port's counters only: 36 bytes of 2044 at the most common MTU,
# more of small ones.
_IPOIB_HEADERS = 0.1
# Those of each kind that a driver has: mlx4, mlx5, hfi1, qib (PMA); EFA, bnxt_re.
_SENT = ("port_xmit_data", "tx_bytes")
_RECEIVED = ("port_rcv_data", "rx_bytes")
_PACKETS = (("port_xmit_packets", "tx_pkts", "sent_pkts"), ("port_rcv_packets", "rx_pkts", "rcvd_pkts"))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of the whole node, other jobs' included. Bytes a second; None for what was not or cannot be counted.

    `rdma_*` without what IP over InfiniBand takes of the ports; `socket_*` what the IP interfaces that carry
    bytes moved. `rdma_packets`: packets a second of all ports, both ways; soft-RoCE counts only these, and its
    bytes are in `socket_*`.
    """

    seconds: float
    rdma_sent: float | None = None
    rdma_received: float | None = None
    socket_sent: float | None = None
    socket_received: float | None = None
    rdma_packets: float | None = None

    @property
    def rdma(self) -> float | None:
        """Both ways."""
        return _sum(self.rdma_sent, self.rdma_received)

    @property
    def sockets(self) -> float | None:
        """Both ways."""
        return _sum(self.socket_sent, self.socket_received)


def recent(network: NetworkState, since: float) -> Traffic | None:
    """Over the readings that are kept and not older than `since` (their time); None where there are not two of
    them."""
    return between(_span(network.ports, since), _span(network.interfaces, since))


def between(ports: _Pair[RdmaPortsSeen] | None, interfaces: _Pair[InterfacesSeen] | None) -> Traffic | None:
    """From two readings each, with their times; None where no time lies between them."""
    spans = [pair[1][0] - pair[0][0] for pair in (ports, interfaces) if pair is not None]
    if not spans or min(spans) <= 0:
        return None
    socket_sent = socket_received = ipoib_sent = ipoib_received = None
    if interfaces is not None:
        (began, old), (ended, new) = interfaces
        before = {one.name: one for one in old.interfaces}
        carrying = [one for one in new.interfaces if one.carries and one.name in before]
        socket_sent, socket_received = _moved(before, carrying, ended - began)
        ipoib = [one for one in carrying if one.kind == "infiniband"]
        ipoib_sent, ipoib_received = _moved(before, ipoib, ended - began) if ipoib else (0.0, 0.0)
    sent = received = packets = None
    if ports is not None:
        (began, earlier), (ended, later) = ports
        sent = _native(_rate(earlier, later, _SENT, ended - began), ipoib_sent)
        received = _native(_rate(earlier, later, _RECEIVED, ended - began), ipoib_received)
        packets = _sum(*(_rate(earlier, later, names, ended - began) for names in _PACKETS))
    return Traffic(max(spans), sent, received, socket_sent, socket_received, packets)


def port_bytes(port: RdmaPort) -> tuple[int | None, int | None]:
    """Bytes that a port sent and received since its counters began; None for what its driver does not count."""
    counters = dict(port.counters)
    return _first(counters, _SENT), _first(counters, _RECEIVED)


def _span(readings: Readings[_Seen], since: float) -> _Pair[_Seen] | None:
    first, last = readings.since(since), readings.last
    return (first, last) if first is not None and last is not None and first[0] < last[0] else None


def _moved(
    before: Mapping[str, Interface], after: list[Interface], seconds: float
) -> tuple[float | None, float | None]:
    def rate(count: Callable[[Interface], int]) -> float | None:
        steps = [count(one) - count(before[one.name]) for one in after]
        kept = [step for step in steps if step >= 0]  # a counter that began anew says nothing
        return sum(kept) / seconds if kept else None

    return rate(lambda one: one.sent_bytes), rate(lambda one: one.received_bytes)


def _rate(
    before: RdmaPortsSeen, after: RdmaPortsSeen, names: tuple[str, ...], seconds: float
) -> float | None:
    """Of all ports that have one of these counters in both readings; 0 where the node has no port."""
    if not after.ports:
        return 0.0
    old = {(port.device, port.port): dict(port.counters) for port in before.ports}
    steps = []
    for port in after.ports:
        start, end = _first(old.get((port.device, port.port), {}), names), _first(dict(port.counters), names)
        if start is not None and end is not None and end >= start:
            steps.append(end - start)
    return sum(steps) / seconds if steps else None


def _native(ports: float | None, ipoib: float | None) -> float | None:
    """What of the ports' bytes is RDMA proper."""
    if ports is None or not ipoib:
        return ports
    left = ports - ipoib
    return left if left > _IPOIB_HEADERS * ipoib else 0.0


def _first(counters: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    return next((counters[name] for name in names if name in counters), None)


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
