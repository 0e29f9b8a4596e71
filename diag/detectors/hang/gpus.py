"""What the GPUs say to a hang: full utilisation at flat, low power is a wait inside a collective; none is no work at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from diag.jobstate import JobState
from diag.observations import EnvironmentSeen, GpuSample, Observation, RankFound, XidReported

__all__ = ["HARDWARE_XIDS", "GpuReading", "Gpus"]

# Seen on 2 x H200 (NCCL 2.28.9), several hangs: a rank in a collective 100 % at 122-130 W of 700 W, within 1 W for as long as
# it waits; the rank that they wait for 0 %. A training step moves between 0.2 and 0.9 of the limit.
_SPIN_UTILIZATION = 0.98
_IDLE_UTILIZATION = 0.02
_LOW_POWER_RATIO = 0.45
_FLAT_POWER_WATTS = 8.0
_SAMPLES = 3
_WINDOW_SECONDS = 20.0
_KEPT = 128
# NVIDIA's Xid catalogue: errors of the GPU, its memory, links or firmware. 13, 31, 43, 45, 94 come from the program, 63, 92,
# 106, 107, 154 are notices.
HARDWARE_XIDS = frozenset({
    46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 144, 145, 146, 147, 148, 149, 150, 155, 156, 158,
})


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One rank's GPU during the silence. `state`: spins, idle, works (power moves or is high), mixed."""

    index: int
    state: str
    utilization_ratio: float
    watts: float | None
    limit_watts: float | None
    seconds: float

    def __str__(self) -> str:
        power = "" if self.watts is None else f" at {self.watts:.0f} W"
        limit = f" of {self.limit_watts:.0f} W" if power and self.limit_watts else ""
        return f"GPU {self.index} {100 * self.utilization_ratio:.0f} %{power}{limit} for {self.seconds:.0f} s"


class Gpus:
    """Keeps the last samples of each GPU, which rank uses which, and what the driver reported."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[tuple[float, GpuSample]]] = {}
        self._visible: dict[int, str] = {}
        self._xids: list[tuple[float, XidReported]] = []

    def observe(self, at: float, fact: Observation) -> None:
        if isinstance(fact, GpuSample):
            self._samples.setdefault(fact.index, deque(maxlen=_KEPT)).append((at, fact))
        elif isinstance(fact, XidReported):
            if fact.xid in HARDWARE_XIDS and len(self._xids) < 1000:
                self._xids.append((at, fact))
        elif isinstance(fact, EnvironmentSeen) and fact.rank is not None:
            self._visible[fact.rank] = dict(fact.variables).get("CUDA_VISIBLE_DEVICES", "")
        elif isinstance(fact, RankFound):
            self._visible.pop(fact.placement.rank, None)

    def read(self, now: float, job: JobState, since: float) -> dict[int, GpuReading]:
        """Per living rank how its GPU stood from `since` on (at most the last 20 s); of ranks whose GPU is known."""
        found = {}
        for rank in job.alive_ranks():
            index = self._gpu_of(rank.rank, job)
            series = self._samples.get(index, deque()) if index is not None else deque()
            recent = [sample for at, sample in series if at >= max(since, now - _WINDOW_SECONDS)]
            times = [at for at, _ in series if at >= max(since, now - _WINDOW_SECONDS)]
            if index is not None and len(recent) >= _SAMPLES:
                reading = _reading(index, recent, times[-1] - times[0])
                if reading is not None:
                    found[rank.rank] = reading
        return found

    def faults(self, job: JobState) -> dict[int, XidReported]:
        """Ranks whose GPU the driver reported as broken since they started."""
        found: dict[int, XidReported] = {}
        for at, xid in self._xids:
            for rank in job.alive_ranks():
                index = self._gpu_of(rank.rank, job)
                series = self._samples.get(index) if index is not None else None
                same = series is not None and _same_bus(series[-1][1].pci_bus_id, xid.pci_bus_id)
                if at >= rank.found_at and (xid.pid == rank.placement.pid or same):
                    found[rank.rank] = xid
        return found

    def _gpu_of(self, number: int, job: JobState) -> int | None:
        rank = job.ranks[number]
        for index, series in self._samples.items():
            if rank.placement.pid in series[-1][1].pids:
                return index
        # NVML names processes of the host; in a container the numbers are others. Then the order of the devices tells.
        visible = [word.strip() for word in self._visible.get(number, "").split(",") if word.strip()]
        local = rank.placement.local_rank
        if not visible:
            return local if local in self._samples else None
        if local >= len(visible):
            return None
        word = visible[local] if len(visible) > 1 else visible[0]
        if word.isdigit():
            return int(word) if int(word) in self._samples else None
        return next((index for index, series in self._samples.items() if series[-1][1].uuid.startswith(word)), None)


def _reading(index: int, samples: Iterable[GpuSample], seconds: float) -> GpuReading | None:
    samples = list(samples)
    used = [sample.utilization_ratio for sample in samples if sample.utilization_ratio is not None]
    watts = [sample.power_watts for sample in samples if sample.power_watts is not None]
    limit = next((sample.power_limit_watts for sample in samples if sample.power_limit_watts), None)
    if not used:
        return None
    mean = sum(watts) / len(watts) if watts else None
    flat = not watts or max(watts) - min(watts) <= _FLAT_POWER_WATTS
    low = mean is None or limit is None or mean <= _LOW_POWER_RATIO * limit
    if max(used) <= _IDLE_UTILIZATION:
        state = "idle"
    elif min(used) >= _SPIN_UTILIZATION and flat and low and watts:
        state = "spins"
    elif not flat or not low:
        state = "works"
    else:
        state = "mixed"
    return GpuReading(index, state, sum(used) / len(used), mean, limit, seconds)


def _same_bus(ours: str, reported: str) -> bool:
    """NVML says 00000000:00:07.0, the kernel log 0000:00:07."""
    def short(text: str) -> tuple[str, ...]:
        return tuple(part.lstrip("0") for part in text.lower().partition(".")[0].split(":"))

    return bool(ours) and short(ours) == short(reported)
