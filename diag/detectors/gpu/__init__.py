"""GPUs: memory that ran out, faults, links, clocks."""

from __future__ import annotations

from diag.engine import Detector

__all__ = ["DETECTORS"]

DETECTORS: tuple[type[Detector], ...] = ()
