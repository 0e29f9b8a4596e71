"""What the GPUs show of a hang: full utilisation at flat, low power is a wait inside a collective; none is no
work at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from diag.detectors.hang.kernels import Kernel
from diag.detectors.hang.verdict import Note, Verdict, blaming, raised, undecided
from diag.knowledge.xids import xid_of
from diag.model import Confidence
from diag.model.observations import GpuSample, XidReported
from diag.state.gpustate import gpu_of_rank, is_its_own, rank_of_bus
from diag.state.view import JobView
from diag.text.units import format_quantity, format_ratio, format_seconds

# Seen on 2 x H200 (NCCL 2.28.9), several hangs: a rank in a collective 100 % at 122-130 W of 700 W, within 1
# W for as long as it waits; the rank that they wait for 0 %. A training step moves between 0.2 and 0.9 of the
# limit.
_SPIN_UTILIZATION = 0.98
_IDLE_UTILIZATION = 0.02
_LOW_POWER_RATIO = 0.45
_FLAT_POWER_WATTS = 8.0
_SAMPLES = 3
_WINDOW_SECONDS = 20.0
_KEPT = 128


_STATES = {"idle": "runs nothing", "spins": "is busy at low power", "works": "works"}
# Classes in which the culprit might compute: its GPU decides whether it does.
_MAY_COMPUTE = ("peer_not_joined", "gpu_side", "unknown", "compile_wait")


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One rank's GPU during the silence. `state`: spins, idle, works (power moves or is high), mixed.
    `kernel`: what runs on one that spins, where the GPU shows it."""

    index: int
    state: str
    utilization_ratio: float
    watts: float | None
    limit_watts: float | None
    seconds: float
    kernel: Kernel | None = None

    def __str__(self) -> str:
        if self.index < 0:
            return f"its GPU {_STATES.get(self.state, self.state)}, as its own node reports"
        power = "" if self.watts is None else f" at {format_quantity(self.watts, 'W')}"
        limit = f" of {format_quantity(self.limit_watts, 'W')}" if power and self.limit_watts else ""
        kernel = "" if self.kernel is None else f", {self.kernel}"
        return f"GPU {self.index} {format_ratio(self.utilization_ratio)}{power}{limit} for {format_seconds(self.seconds)}{kernel}"


class Gpus:
    """Keeps the last samples of each GPU."""

    listens = (GpuSample,)

    def __init__(self) -> None:
        self._samples: dict[int, deque[tuple[float, GpuSample]]] = {}

    def observe(self, at: float, fact: GpuSample) -> None:
        self._samples.setdefault(fact.index, deque(maxlen=_KEPT)).append((at, fact))

    def read(self, now: float, job: JobView, since: float) -> dict[int, GpuReading]:
        """Per living rank how its GPU stood from `since` on (at most the last 20 s); of ranks whose GPU is
        known and nobody else's."""
        found: dict[int, GpuReading] = {}
        if not self._samples:
            return found  # of other nodes' ranks: their hubs report it
        for rank in job.alive_ranks():
            gpu = gpu_of_rank(rank, job)
            index = gpu.index if gpu is not None else None
            series = self._samples.get(index, deque()) if index is not None else deque()
            recent = [sample for at, sample in series if at >= max(since, now - _WINDOW_SECONDS)]
            times = [at for at, _ in series if at >= max(since, now - _WINDOW_SECONDS)]
            if not all(is_its_own(sample.pids, rank.rank, job) for sample in recent):
                continue  # power and use are those of a neighbour too
            if index is not None and len(recent) >= _SAMPLES:
                reading = _reading(index, recent, times[-1] - times[0])
                if reading is not None:
                    found[rank.rank] = reading
        return found

    def faults(self, job: JobView) -> dict[int, XidReported]:
        """Ranks whose GPU the driver reported as broken since they started."""
        found: dict[int, XidReported] = {}
        for event in job.gpu_faults.xids:
            if not xid_of(event.xid).ends_gpu or event.kind != "hardware":
                continue
            users = rank_of_bus(event.fact.pci_bus_id, job)
            for rank in job.alive_ranks():
                if event.last_at >= rank.found_at and (
                    rank.placement.pid in event.pids or rank.rank in users
                ):
                    found[rank.rank] = event.fact
        return found


def reported_readings(job: JobView) -> dict[int, GpuReading]:
    """Of ranks on other nodes, as their hubs read them."""
    return {
        rank.rank: GpuReading(-1, rank.gpu_told, 0.0 if rank.gpu_told == "idle" else 1.0, None, None, 0.0)
        for rank in job.alive_ranks()
        if rank.gpu_told
    }


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
    kernel = Kernel.of(samples) if state == "spins" else None
    return GpuReading(index, state, sum(used) / len(used), mean, limit, seconds, kernel)


def computes(verdict: Verdict, readings: dict[int, GpuReading]) -> bool:
    """A long kernel moves no counter of the process, but its GPU's power: that job is slow, not hung."""
    if undecided(verdict):
        return any(reading.state == "works" for reading in readings.values())
    return verdict.klass in _MAY_COMPUTE and any(
        rank in readings and readings[rank].state == "works" for rank in verdict.culprits
    )


def with_gpus(verdict: Verdict, readings: dict[int, GpuReading]) -> Verdict:
    """Idle among GPUs that spin in a collective: that rank's kernel never came."""
    idle = tuple(sorted(rank for rank, reading in readings.items() if reading.state == "idle"))
    spins = tuple(sorted(rank for rank, reading in readings.items() if reading.state == "spins"))
    if undecided(verdict):
        verdict = verdict.noted(
            *(Note("nvml", str(readings[rank]), rank) for rank in (*idle[:2], *spins[:1]))
        )
        if idle and spins and len(idle) <= len(spins) and set(verdict.waiting) == set(readings):
            return blaming(verdict, idle, "gpu_side", "gpu_idle_among_waiting", Confidence.MEDIUM)
        return verdict
    culprits = sorted(set(idle).intersection(verdict.culprits))
    waiting = sorted(set(spins).intersection(verdict.waiting))
    if (
        culprits
        and waiting
        and len(culprits) == len(verdict.culprits)
        and len(waiting) == len(verdict.waiting)
    ):
        shown = (Note("nvml", str(readings[rank]), rank) for rank in (culprits[0], waiting[0]))
        return replace(verdict, confidence=raised(verdict.confidence)).noted(*shown)
    return verdict
