"""What NCCL said of its network as samples of Prometheus: which one each rank uses between nodes, and where
it fell back."""

from __future__ import annotations

from collections.abc import Iterator

from diag.engine.engine import Engine

# As METRICS of prometheus.py: name, type, unit, labels, help.
NCCL_METRICS = (
    (
        "diag_nccl_net_info",
        "info",
        "",
        "rank net gdr",
        "Network that NCCL uses between nodes, as NCCL calls it; gdr is true where a GPU's memory is reached directly, empty where "
        "not known. No sample on one node. Always 1.",
    ),
    (
        "diag_nccl_fallback",
        "gauge",
        "",
        "rank cause",
        "1 while a rank is on another network than it should be (ib-fallback).",
    ),
    (
        "diag_nccl_transport_mismatch",
        "gauge",
        "",
        "",
        "1 while ranks of one communicator use different networks, 0 otherwise.",
    ),
    ("diag_nccl_warnings_total", "counter", "", "rank", "Warnings that NCCL printed."),
    (
        "diag_nccl_init_seconds_total",
        "counter",
        "seconds",
        "rank",
        "Time that NCCL took to make its communicators, all together (NCCL 2.21 and later).",
    ),
)

NcclSample = tuple[str, tuple[str, ...], float, None]
_LONGEST = 64  # of a network's name: plugins choose it


def nccl_samples(engine: Engine) -> Iterator[NcclSample]:
    """Of what was told so far; whoever reads the state holds its lock."""
    processes = engine.job.nccl_processes
    for rank, process in sorted(processes.placed().items()):
        label = (str(rank),)
        for net in sorted(process.nets_between_nodes()):
            direct = process.channels.get((net, True), 0)
            known = direct or process.channels.get((net, False), 0)
            name = net[:_LONGEST].encode("utf-8", "replace").decode("utf-8")
            yield (
                "diag_nccl_net_info",
                (*label, name, str(bool(direct)).lower() if known else ""),
                1.0,
                None,
            )
        yield ("diag_nccl_warnings_total", label, process.warnings_total, None)
        if process.init_seconds:
            yield ("diag_nccl_init_seconds_total", label, process.init_seconds, None)
    active = engine.active()
    for finding in active:
        if finding.id == "ib-fallback" and finding.severity.counts:
            for rank in finding.ranks:
                yield ("diag_nccl_fallback", (str(rank), finding.cause), 1.0, None)
    if processes.by_pid:
        yield (
            "diag_nccl_transport_mismatch",
            (),
            float(any(finding.id == "transport-mismatch" for finding in active)),
            None,
        )
