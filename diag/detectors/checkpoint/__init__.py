"""Checkpoints: whether they are whole, and whether the disk holds them."""

from __future__ import annotations

from diag.engine import Detector

__all__ = ["DETECTORS"]

DETECTORS: tuple[type[Detector], ...] = ()
