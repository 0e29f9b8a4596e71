"""What only the job hub can know, from the digests of all nodes; and, on every node, what the job hub reports."""

from __future__ import annotations

from diag.detectors.cluster.first_death import FirstDeathDetector
from diag.detectors.cluster.launch import LaunchMismatchDetector
from diag.detectors.cluster.missing import RendezvousDetector
from diag.detectors.cluster.node_failure import NodeFailureDetector
from diag.detectors.cluster.node_findings import NodeFindingsDetector
from diag.detectors.cluster.slow_link import SlowLinkDetector
from diag.detectors.contract import Detector
from diag.detectors.hang import HangDetector
from diag.detectors.network.transport_mismatch import TransportMismatchDetector
from diag.detectors.training.straggler import StragglerDetector

# Of the engine that is given digests. The first three are those of a single node, given all ranks.
JOB_DETECTORS: tuple[type[Detector], ...] = (
    HangDetector,
    StragglerDetector,
    TransportMismatchDetector,
    FirstDeathDetector,
    SlowLinkDetector,
    NodeFailureDetector,
    RendezvousDetector,
    LaunchMismatchDetector,
    NodeFindingsDetector,
)


def make_job_detectors() -> list[Detector]:
    """Fresh ones: detectors hold state of one job."""
    return [kind() for kind in JOB_DETECTORS]
