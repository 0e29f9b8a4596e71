"""Checkpoints: whether they are whole, and whether the disk holds them."""

from __future__ import annotations

from diag.detectors.checkpoint.corrupt import CheckpointCorruptDetector
from diag.detectors.checkpoint.disk import DiskFullDetector
from diag.detectors.checkpoint.mismatch import CheckpointArgsMismatchDetector
from diag.detectors.checkpoint.missing import CheckpointMissingDetector
from diag.detectors.checkpoint.slow_save import SlowSaveDetector
from diag.detectors.checkpoint.write_error import CheckpointWriteErrorDetector
from diag.detectors.contract import Detector

__all__ = ["DETECTORS"]

DETECTORS: tuple[type[Detector], ...] = (
    DiskFullDetector,
    CheckpointWriteErrorDetector,
    CheckpointCorruptDetector,
    CheckpointMissingDetector,
    CheckpointArgsMismatchDetector,
    SlowSaveDetector,
)
