"""Host memory and the limits beside it: what ran out, what will."""

from __future__ import annotations

from diag.detectors.contract import Detector
from diag.detectors.memory.forecast import HostOomForecastDetector
from diag.detectors.memory.host_oom import HostOomDetector
from diag.detectors.memory.limits import FdLimitDetector, ShmDetector
from diag.detectors.memory.pids_limit import PidsLimitDetector

__all__ = ["DETECTORS"]

DETECTORS: tuple[type[Detector], ...] = (
    HostOomDetector,
    HostOomForecastDetector,
    PidsLimitDetector,
    ShmDetector,
    FdLimitDetector,
)
