"""GPUs: memory that ran out, faults, links, clocks."""

from __future__ import annotations

from diag.detectors.contract import Detector
from diag.detectors.gpu.cuda_oom import CudaOomDetector
from diag.detectors.gpu.ecc_error import EccErrorDetector
from diag.detectors.gpu.gpu_fault import GpuFaultDetector
from diag.detectors.gpu.nvlink_fault import NvlinkFaultDetector
from diag.detectors.gpu.throttle import PowerBrakeDetector, ThermalThrottleDetector

__all__ = ["DETECTORS"]

DETECTORS: tuple[type[Detector], ...] = (
    CudaOomDetector,
    GpuFaultDetector,
    EccErrorDetector,
    NvlinkFaultDetector,
    ThermalThrottleDetector,
    PowerBrakeDetector,
)
