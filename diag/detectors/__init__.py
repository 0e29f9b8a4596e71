"""The judgements, one a file. A new detector is a file and a line here, or in the package that it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diag.detectors import checkpoint, gpu, memory, training
from diag.detectors.cluster.verdict import VerdictDetector
from diag.detectors.contract import Detector
from diag.detectors.environment import EnvHarmfulDetector, EnvNoEffectDetector
from diag.detectors.findings import load_all
from diag.detectors.hang import HangDetector
from diag.detectors.network import (
    DuplicateGpuDetector,
    IbErrorDetector,
    IbFallbackDetector,
    IbPortDetector,
    MemlockDetector,
    NcclInitErrorDetector,
    NoInterfaceDetector,
    TransportMismatchDetector,
)
from diag.detectors.rank_died import RankDiedDetector
from diag.detectors.signatures import SignatureDetector
from diag.detectors.store import StoreDetector

if TYPE_CHECKING:
    from diag.detectors.rules.ruleset import RuleSet

__all__ = ["DETECTORS", "make_detectors"]

DETECTORS: tuple[type[Detector], ...] = (
    HangDetector,
    RankDiedDetector,
    StoreDetector,
    *memory.DETECTORS,
    *gpu.DETECTORS,
    *checkpoint.DETECTORS,
    MemlockDetector,
    *training.DETECTORS,
    IbFallbackDetector,
    TransportMismatchDetector,
    IbPortDetector,
    IbErrorDetector,
    NoInterfaceDetector,
    DuplicateGpuDetector,
    NcclInitErrorDetector,
    EnvHarmfulDetector,
    EnvNoEffectDetector,
    SignatureDetector,
)


def make_detectors(rules: RuleSet | None = None) -> list[Detector]:
    """Fresh ones: detectors hold state of one job. `rules` in place of those that come with diag. The last
    passes on what the job hub reports."""
    load_all()
    return [
        *(SignatureDetector(rules) if kind is SignatureDetector else kind() for kind in DETECTORS),
        VerdictDetector(),
    ]
