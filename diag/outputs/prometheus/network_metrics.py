"""The node's networks as samples of Prometheus: a port's state and rate, and the bytes by device and
transport."""

from __future__ import annotations

from collections.abc import Iterator

from diag.state.traffic import port_bytes
from diag.state.view import JobView

# As METRICS of prometheus.py: name, type, unit, labels, help.
NETWORK_METRICS = (
    ("diag_ib_port_up", "gauge", "", "device port", "1 where an RDMA port is active, 0 where it is not."),
    (
        "diag_ib_link_downed_total",
        "counter",
        "",
        "device port",
        "How often the link of an RDMA port went down.",
    ),
    (
        "diag_ib_port_rate_bytes_per_second",
        "gauge",
        "bytes_per_second",
        "device port",
        "Speed of an RDMA port's link.",
    ),
    (
        "diag_net_transmit_bytes_total",
        "counter",
        "bytes",
        "device transport",
        "Bytes that the node sent: ib over RDMA ports, eth over Ethernet, ipoib over IP on InfiniBand (which ib counts too).",
    ),
    (
        "diag_net_receive_bytes_total",
        "counter",
        "bytes",
        "device transport",
        "Bytes that the node received, likewise.",
    ),
)

_TRANSPORTS = {"ethernet": "eth", "infiniband": "ipoib"}

NetworkSample = tuple[str, tuple[str, ...], float, None]


def network_samples(job: JobView) -> Iterator[NetworkSample]:
    """Of the last reading; whoever reads the state holds its lock."""
    totals: dict[tuple[str, str, str], int] = {}
    if job.network.ports.last is not None:
        for port in job.network.ports.last[1].ports:
            label = (_encodable(port.device), str(port.port))
            if port.state is not None:
                yield ("diag_ib_port_up", label, float(port.active), None)
            downed = dict(port.counters).get("link_downed")
            if downed is not None:
                yield ("diag_ib_link_downed_total", label, downed, None)
            if port.rate_bytes_per_second is not None:
                yield ("diag_ib_port_rate_bytes_per_second", label, port.rate_bytes_per_second, None)
            for name, count in zip(("transmit", "receive"), port_bytes(port), strict=True):
                if count is not None:
                    key = (name, label[0], "ib")
                    totals[key] = totals.get(key, 0) + count
    if job.network.interfaces.last is not None:
        for one in job.network.interfaces.last[1].interfaces:
            if one.carries and one.kind != "loopback":
                transport = _TRANSPORTS.get(one.kind, "eth")
                totals["transmit", _encodable(one.name), transport] = one.sent_bytes
                totals["receive", _encodable(one.name), transport] = one.received_bytes
    for (name, device, transport), count in totals.items():
        yield (f"diag_net_{name}_bytes_total", (device, transport), count, None)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
