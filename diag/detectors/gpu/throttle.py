"""GPUs that are held back while they work: by heat, or by the power supply."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, row
from diag.model import Evidence, Finding, NotChecked
from diag.model.observations import GpuSample
from diag.state.gpustate import gpus_of_ranks
from diag.state.view import JobView
from diag.text.units import format_quantity, format_ranks, format_seconds

# nvml.h, nvmlClocksEventReason*. Not of interest: idle 0x1, application clocks 0x2, the power cap of the
# software 0x4 (what a GPU at full load does), sync boost 0x10, display 0x100.
_HW_SLOWDOWN, _SW_THERMAL, _HW_THERMAL, _POWER_BRAKE = 0x8, 0x20, 0x40, 0x80
_WINDOW_SECONDS = 60.0
_SAMPLES = 6
_MOST_OF_THEM = 0.8
_BUSY = 0.5
_SLOWER = 0.95  # of the highest clock: a bit that costs no speed does no harm


@dataclass(frozen=True, slots=True)
class _Held:
    index: int
    bits: int
    clock: float
    best: float
    celsius: float | None
    seconds: float
    since: float
    watts: float | None

    @property
    def state(self) -> str:
        """As the driver reports it."""
        heat = f", {format_quantity(self.celsius, '°C')}" if self.celsius is not None else ""
        watts = f", {format_quantity(self.watts, 'W')}" if self.watts is not None else ""
        return f"clocks event reasons 0x{self.bits:x}, {_megahertz(self.clock)}{heat}{watts}"


class _ThrottleDetector(Detector):
    """Keeps a minute of each GPU's samples."""

    listens = (GpuSample,)

    def __init__(self) -> None:
        self._samples: dict[int, deque[tuple[float, GpuSample]]] = {}
        self._best: dict[int, float] = {}  # the highest clock that was seen

    def observe(self, at: float, fact: GpuSample) -> None:
        if fact.throttle_reasons is None:
            return
        samples = self._samples.setdefault(fact.index, deque(maxlen=256))
        samples.append((at, fact))
        while samples and samples[0][0] < at - _WINDOW_SECONDS:
            samples.popleft()
        if fact.sm_clock_hertz:
            self._best[fact.index] = max(self._best.get(fact.index, 0.0), fact.sm_clock_hertz)

    def _held(self, mask: int, now: float, job: JobView) -> dict[int, _Held]:
        """GPUs of the job that work and that one of these bits has held back for most of the last minute."""
        found = {}
        for index in {gpu.index for gpu in gpus_of_ranks(job).values()}:
            hit = self._hit(index, mask, now)
            clocks = [one.sm_clock_hertz for _, one in hit if one.sm_clock_hertz]
            health = job.machine.gpu_health.get(index)
            best = max(self._best.get(index, 0.0), (health[1].max_sm_clock_hertz or 0.0) if health else 0.0)
            if not clocks or (clock := statistics.median_high(clocks)) > _SLOWER * best:
                continue
            bits = reduce(or_, ((one.throttle_reasons or 0) & mask for _, one in hit))
            last = hit[-1][1]
            found[index] = _Held(
                index, bits, clock, best, last.temperature_celsius,
                hit[-1][0] - hit[0][0], hit[0][0], last.power_watts,
            )  # fmt: skip
        return found

    def _hit(self, index: int, mask: int, now: float) -> list[tuple[float, GpuSample]]:
        """The samples of the last minute in which this GPU works and is held back, where they are most of it."""
        recent = [(at, one) for at, one in self._samples.get(index, ()) if at >= now - _WINDOW_SECONDS]
        busy = [(at, one) for at, one in recent if (one.utilization_ratio or 0.0) >= _BUSY]
        hit = [(at, one) for at, one in busy if (one.throttle_reasons or 0) & mask]
        return hit if len(hit) >= max(_SAMPLES, _MOST_OF_THEM * len(recent)) else []

    def _clocks(self, indexes: Iterable[int]) -> list[float]:
        """The last clocks of these GPUs, where they work."""
        last = [self._samples[index][-1][1] for index in indexes if self._samples.get(index)]
        return [
            one.sm_clock_hertz
            for one in last
            if one.sm_clock_hertz and (one.utilization_ratio or 0.0) >= _BUSY
        ]

    def _finding(self, cause: str, held: Mapping[int, _Held], job: JobView) -> Finding:
        used = gpus_of_ranks(job)
        gpus = {gpu.index for gpu in used.values()}
        ranks = tuple(sorted(rank for rank, gpu in used.items() if gpu.index in held))
        worst = min(held.values(), key=lambda one: one.clock)
        which, slowest = f"GPU {worst.index} of {format_ranks(ranks)} is", ""
        if len(held) > 1:
            which = f"{len(held)} of {len(gpus)} GPUs of {format_ranks(ranks)} are"
            slowest = f"GPU {worst.index} "
        heat = f" at {format_quantity(worst.celsius, '°C')}" if worst.celsius is not None else ""
        others = self._clocks(gpus - set(held))
        rest = f"; the others run at {_megahertz(statistics.median_high(others))}" if others else ""
        return finding(
            self.name,
            cause,
            ranks=ranks,
            since=worst.since,
            summary=f"{which} held back by {row(self.name, cause)['by']}: {slowest}{_megahertz(worst.clock)} of "
            f"{_megahertz(worst.best)}{heat} for {format_seconds(worst.seconds)} while it works{rest}",
            evidence=[
                Evidence("nvml", f"GPU {one.index}: {one.state}", one.since, next(iter(ranks), None))
                for one in list(held.values())[:4]
            ],
        )


class ThermalThrottleDetector(_ThrottleDetector):
    name = "thermal-throttle"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        held = self._held(_SW_THERMAL | _HW_THERMAL, now, job)
        if held:
            hard = any(one.bits & _HW_THERMAL for one in held.values())
            yield self._finding("hw_thermal" if hard else "sw_thermal", held, job)

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        blind = sorted(
            index
            for index, (_, gpu) in job.machine.gpus.items()
            if gpu.throttle_reasons is None and gpu.utilization_ratio is not None
        )
        if blind:
            yield NotChecked(
                f"what holds back the clocks of GPU {', '.join(map(str, blind))}",
                "the driver does not report it",
                "",
            )


class PowerBrakeDetector(_ThrottleDetector):
    name = "power-brake"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        held = self._held(_POWER_BRAKE | _HW_SLOWDOWN, now, job)
        hot = self._held(_HW_THERMAL, now, job)
        held = {index: one for index, one in held.items() if one.bits & _POWER_BRAKE or index not in hot}
        if held:
            brake = any(one.bits & _POWER_BRAKE for one in held.values())
            yield self._finding("power_brake" if brake else "hw_slowdown", held, job)


def _megahertz(hertz: float) -> str:
    return format_quantity(hertz / 1e6, "MHz")
