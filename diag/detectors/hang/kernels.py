"""A kernel as the GPU shows it, NCCL's or another: `endless_kernel` judges those of ranks that all wait.

Utilisation and power are the same for both (100 %, 124 W on H200). A kernel that stands has constant figures
in NVML's GPM: which share of the SMs holds a block, and how many warps there are on each of those.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diag.model.observations import GpuSample
from diag.text.units import format_ratio

_WARPS_OF_AN_SM = 64  # compute capability 9.0 and 10.0; where it is 48, warps come out a third too many, which blames no rank
_SAMPLES = 3
# Seen on 4 x H200: within 0.0006 of the mean for as long as a kernel stands; occupancy has four decimals of a
# percent.
_STEADY_RATIO = 0.02
_LEAST_SM_RATIO = 0.003  # half an SM of 160
# NCCL 2.18 to 2.28, enqueue.cc and device.h: a block has at least 96 threads and at most 640, a kernel at most 64 blocks.
# Seen: 17 warps on 24 SMs, 9 on 16 and on 1, 3 on 1, and 16 on 3 (LL has no warp more than its threads need).
_LEAST_WARPS, _MOST_WARPS = 2.75, 20.5
_MOST_BLOCKS = 64
_MOST_SM_RATIO = (
    0.9  # where the number of SMs is not known: 64 of the 78 that the smallest Hopper has are 0.82
)
_WHOLE_WARPS = 0.12


@dataclass(frozen=True, slots=True)
class Kernel:
    """What has stood on a GPU: the share of SMs that hold a block, warps on each of them, SMs of the GPU
    (None: not known)."""

    sm_ratio: float
    warps: float
    sm_count: int | None = None

    @classmethod
    def of(cls, samples: Iterable[GpuSample]) -> Kernel | None:
        """None where the figures are missing, few or move, or more than one process is on the GPU."""
        known = [
            (sample.sm_utilization_ratio, sample.sm_occupancy_ratio, sample)
            for sample in samples
            if sample.sm_utilization_ratio is not None and sample.sm_occupancy_ratio is not None
        ]
        if len(known) < _SAMPLES or any(len(set(sample.pids)) > 1 for _, _, sample in known):
            return None
        busy, held = [used for used, _, _ in known], [share for _, share, _ in known]
        if min(busy) < _LEAST_SM_RATIO or min(held) <= 0 or not (_steady(busy) and _steady(held)):
            return None
        ratio = sum(busy) / len(busy)
        return cls(ratio, _WARPS_OF_AN_SM * sum(held) / len(held) / ratio, known[-1][2].sm_count)

    @property
    def sms(self) -> int | None:
        """How many SMs; None where their number is not known or does not fit."""
        count = self.sm_ratio * self.sm_count if self.sm_count else 0.0
        return round(count) if count and abs(count - round(count)) < 0.1 else None

    @property
    def is_not_nccl(self) -> bool:
        too_many = self.sms > _MOST_BLOCKS if self.sms is not None else self.sm_ratio > _MOST_SM_RATIO
        return self.warps < _LEAST_WARPS or too_many

    @property
    def may_be_nccl(self) -> bool:
        return not self.is_not_nccl and self.warps <= _MOST_WARPS

    @property
    def is_like_nccl(self) -> bool:
        """A warp beside an even number: so NCCL waits in most of its kernels, and hardly anybody else writes
        one."""
        whole = round(self.warps)
        return self.may_be_nccl and whole % 2 == 1 and abs(self.warps - whole) <= _WHOLE_WARPS

    def equals(self, other: Kernel) -> bool:
        return _steady((self.sm_ratio, other.sm_ratio)) and _steady((self.warps, other.warps))

    def __str__(self) -> str:
        return f"{_warps(self.warps)} on {self.place}"

    @property
    def place(self) -> str:
        return (
            f"{self.sms} of {self.sm_count} SMs"
            if self.sms is not None
            else f"{format_ratio(self.sm_ratio)} of the SMs"
        )


def _warps(count: float) -> str:
    return f"{count:.0f} warp{'' if round(count) == 1 else 's'}"


def _steady(values: Iterable[float]) -> bool:
    values = tuple(values)
    return max(values) - min(values) <= _STEADY_RATIO * max(values)
