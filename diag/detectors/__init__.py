"""The judgements, one a file. A new detector is a file and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diag.detectors.checkpoint.corrupt import CheckpointCorruptDetector
from diag.detectors.checkpoint.disk import DiskFullDetector
from diag.detectors.checkpoint.lines import CheckpointArgsMismatchDetector, CheckpointWriteErrorDetector
from diag.detectors.checkpoint.missing import CheckpointMissingDetector
from diag.detectors.checkpoint.slow_save import SlowSaveDetector
from diag.detectors.cluster.verdict import VerdictDetector
from diag.detectors.contract import Detector
from diag.detectors.environment import EnvHarmfulDetector, EnvNoEffectDetector
from diag.detectors.findings import load_all
from diag.detectors.gpu.cuda_oom import CudaOomDetector
from diag.detectors.gpu.ecc_error import EccErrorDetector
from diag.detectors.gpu.gpu_fault import GpuFaultDetector
from diag.detectors.gpu.nvlink_fault import NvlinkFaultDetector
from diag.detectors.gpu.throttle import PowerBrakeDetector, ThermalThrottleDetector
from diag.detectors.hang import HangDetector
from diag.detectors.memory.forecast import HostOomForecastDetector
from diag.detectors.memory.host_oom import HostOomDetector
from diag.detectors.memory.limits import FdLimitDetector, ShmDetector
from diag.detectors.memory.pids_limit import PidsLimitDetector
from diag.detectors.network.duplicate_gpu import DuplicateGpuDetector
from diag.detectors.network.ib_error import IbErrorDetector
from diag.detectors.network.ib_fallback import IbFallbackDetector
from diag.detectors.network.ib_port import IbPortDetector
from diag.detectors.network.memlock import MemlockDetector
from diag.detectors.network.nccl_init import NcclInitErrorDetector
from diag.detectors.network.no_interface import NoInterfaceDetector
from diag.detectors.network.transport_mismatch import TransportMismatchDetector
from diag.detectors.rank_died import RankDiedDetector
from diag.detectors.signatures import SignatureDetector
from diag.detectors.store import StoreDetector
from diag.detectors.training.loss_collapse import LossCollapseDetector
from diag.detectors.training.loss_level import LossDivergenceDetector, LossSpikeDetector
from diag.detectors.training.nan import GradNanDetector, LossNanDetector
from diag.detectors.training.overflow import Fp16OverflowDetector
from diag.detectors.training.passed_mismatch import PassedMismatchDetector
from diag.detectors.training.straggler import StragglerDetector
from diag.detectors.training.throughput import SlowDetector, ThroughputDropDetector

if TYPE_CHECKING:
    from diag.detectors.rules.ruleset import RuleSet

DETECTORS: tuple[type[Detector], ...] = (
    HangDetector,
    RankDiedDetector,
    StoreDetector,
    HostOomDetector,
    HostOomForecastDetector,
    PidsLimitDetector,
    ShmDetector,
    FdLimitDetector,
    CudaOomDetector,
    GpuFaultDetector,
    EccErrorDetector,
    NvlinkFaultDetector,
    ThermalThrottleDetector,
    PowerBrakeDetector,
    DiskFullDetector,
    CheckpointWriteErrorDetector,
    CheckpointCorruptDetector,
    CheckpointMissingDetector,
    CheckpointArgsMismatchDetector,
    SlowSaveDetector,
    MemlockDetector,
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
