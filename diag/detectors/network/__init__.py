"""The network between nodes: `ib_fallback` and why (`causes`, `advice`; `unlogged` where NCCL prints nothing),
and its errors."""

from diag.detectors.network.duplicate_gpu import DuplicateGpuDetector
from diag.detectors.network.ib_error import IbErrorDetector
from diag.detectors.network.ib_fallback import IbFallbackDetector
from diag.detectors.network.ib_port import IbPortDetector
from diag.detectors.network.memlock import MemlockDetector
from diag.detectors.network.nccl_init import NcclInitErrorDetector
from diag.detectors.network.no_interface import NoInterfaceDetector
from diag.detectors.network.transport_mismatch import TransportMismatchDetector

__all__ = [
    "DuplicateGpuDetector",
    "IbErrorDetector",
    "IbFallbackDetector",
    "IbPortDetector",
    "MemlockDetector",
    "NcclInitErrorDetector",
    "NoInterfaceDetector",
    "TransportMismatchDetector",
]
