"""Hubs of several nodes as samples of Prometheus: who judges the job, who was heard, and what the digests
cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from diag.outputs.view.view import ClusterFacts

# As METRICS of prometheus.py: name, type, unit, labels, help.
CLUSTER_METRICS = (
    ("diag_job_hub", "gauge", "", "", "1 where this hub judges the whole job, 0 where another does."),
    ("diag_nodes_expected", "gauge", "", "", "Nodes of the job, as its launchers say; on the job hub."),
    ("diag_nodes_heard", "gauge", "", "", "Nodes whose hubs report, this one too; on the job hub."),
    (
        "diag_digests_total",
        "counter",
        "",
        "direction result",
        "Digests sent to the job hub, and taken from other nodes.",
    ),
    (
        "diag_digest_bytes_total",
        "counter",
        "bytes",
        "direction",
        "Bytes of digests sent, and of their answers.",
    ),
    ("diag_link_round_trip_seconds", "gauge", "seconds", "", "Time of the last exchange with the job hub."),
    (
        "diag_job_finding_active",
        "gauge",
        "",
        "kind severity",
        "Findings open on the whole job, by kind; on the job hub.",
    ),
)

ClusterSample = tuple[str, tuple[str, ...], float, None]


def cluster_samples(facts: ClusterFacts | None) -> Iterator[ClusterSample]:
    """None: this hub has not joined others."""
    if facts is None:
        return
    yield ("diag_job_hub", (), float(facts.is_job_hub), None)
    if facts.is_job_hub:
        yield ("diag_nodes_expected", (), float(facts.expected), None)
        yield ("diag_nodes_heard", (), float(facts.heard), None)
        for key, count in Counter(facts.findings).items():
            yield ("diag_job_finding_active", key, float(count), None)
    for key, count in facts.digests.items():
        yield ("diag_digests_total", key, float(count), None)
    for direction, size in facts.digest_bytes.items():
        yield ("diag_digest_bytes_total", (direction,), float(size), None)
    if facts.round_trip is not None:
        yield ("diag_link_round_trip_seconds", (), facts.round_trip, None)
