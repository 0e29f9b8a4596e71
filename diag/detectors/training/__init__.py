"""Whether training goes at the speed it had, and to where it should: throughput, stragglers, loss and gradients."""

from __future__ import annotations

from diag.detectors.training.straggler import StragglerDetector
from diag.engine import Detector

__all__ = ["DETECTORS"]

DETECTORS: tuple[type[Detector], ...] = (StragglerDetector,)
