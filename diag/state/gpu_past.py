"""What the GPUs of this node came to while the job ran: for a comparison with another run."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations import GpuSample
from diag.state.reducer import Reducer, takes

# Ours: below, a clock is that of a GPU which waits, and says nothing of what it can do.
_BUSY_RATIO = 0.5
_MOST_GPUS = 64


@dataclass(slots=True)
class GpuWas:
    """`clock_hertz` sums those of `busy` samples in which it was at work."""

    memory_peak_bytes: int = 0
    busy: int = 0
    clock_hertz: float = 0.0

    @property
    def busy_clock_hertz(self) -> float | None:
        """On average."""
        return self.clock_hertz / self.busy if self.busy else None


class GpuPast(Reducer):
    def __init__(self) -> None:
        self.by_index: dict[int, GpuWas] = {}

    @takes(GpuSample)
    def _sample(self, at: float, fact: GpuSample) -> None:
        if fact.index not in self.by_index and len(self.by_index) >= _MOST_GPUS:
            return
        was = self.by_index.setdefault(fact.index, GpuWas())
        was.memory_peak_bytes = max(was.memory_peak_bytes, fact.memory_used_bytes or 0)
        if (fact.utilization_ratio or 0.0) >= _BUSY_RATIO and fact.sm_clock_hertz:
            was.busy += 1
            was.clock_hertz += fact.sm_clock_hertz
