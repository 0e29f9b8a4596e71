"""Whether training goes at the speed it had, and to where it should: throughput, stragglers, loss and
gradients."""

from __future__ import annotations

from diag.detectors.contract import Detector
from diag.detectors.training.loss_collapse import LossCollapseDetector
from diag.detectors.training.loss_level import LossDivergenceDetector, LossSpikeDetector
from diag.detectors.training.nan import GradNanDetector, LossNanDetector
from diag.detectors.training.overflow import Fp16OverflowDetector
from diag.detectors.training.passed_mismatch import PassedMismatchDetector
from diag.detectors.training.straggler import StragglerDetector
from diag.detectors.training.throughput import SlowDetector, ThroughputDropDetector

__all__ = ["DETECTORS"]

DETECTORS: tuple[type[Detector], ...] = (
    StragglerDetector,
    ThroughputDropDetector,
    SlowDetector,
    LossNanDetector,
    GradNanDetector,
    Fp16OverflowDetector,
    LossCollapseDetector,
    LossSpikeDetector,
    LossDivergenceDetector,
    PassedMismatchDetector,
)
