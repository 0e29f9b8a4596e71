"""GPUs that are held back while they work: by heat, or by the power supply."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity
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
_SLOWER = 0.95  # of the highest clock: a bit that costs no speed harms nobody


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
    limit: float | None


class _Throttled:
    """Keeps a minute of each GPU's samples."""

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

    def held(self, mask: int, now: float, job: JobView) -> dict[int, _Held]:
        """GPUs of the job that work and that one of these bits has held back for most of the last minute."""
        found = {}
        for index in {gpu.index for gpu in gpus_of_ranks(job).values()}:
            recent = [(at, one) for at, one in self._samples.get(index, ()) if at >= now - _WINDOW_SECONDS]
            busy = [(at, one) for at, one in recent if (one.utilization_ratio or 0.0) >= _BUSY]
            hit = [(at, one) for at, one in busy if (one.throttle_reasons or 0) & mask]
            if len(recent) < _SAMPLES or len(hit) < max(_SAMPLES, _MOST_OF_THEM * len(recent)):
                continue
            clocks = sorted(one.sm_clock_hertz for _, one in hit if one.sm_clock_hertz)
            health = job.machine.gpu_health.get(index)
            best = max(self._best.get(index, 0.0), (health[1].max_sm_clock_hertz or 0.0) if health else 0.0)
            if not clocks or clocks[len(clocks) // 2] > _SLOWER * best:
                continue
            last = hit[-1][1]
            bits = 0
            for _, one in hit:
                bits |= (one.throttle_reasons or 0) & mask
            found[index] = _Held(
                index,
                bits,
                clocks[len(clocks) // 2],
                best,
                last.temperature_celsius,
                hit[-1][0] - hit[0][0],
                hit[0][0],
                last.power_watts,
                last.power_limit_watts,
            )
        return found

    def clocks(self, indexes: Iterable[int]) -> list[float]:
        """The last clocks of these GPUs, where they work."""
        last = [self._samples[index][-1][1] for index in indexes if self._samples.get(index)]
        return sorted(
            one.sm_clock_hertz
            for one in last
            if one.sm_clock_hertz and (one.utilization_ratio or 0.0) >= _BUSY
        )


class ThermalThrottleDetector:
    """Meaning: GPUs are too hot and lower their clocks while they work; the whole job goes at the pace of the
    slowest.

    Evidence: NVML's reasons for lower clocks (hardware or software thermal slowdown) in most samples of a
    minute in which the GPU works, with clocks below its best.

    What to do: cooling: fans, dust, room, a neighbour's load; meanwhile a lower power limit (`nvidia-smi
    -pl`) for all GPUs keeps them alike.

    False alarms: idle GPUs, application clocks and the power cap of a GPU at full load are no reason, nor is
    a bit that costs no speed.
    """

    name = "thermal-throttle"
    listens = (GpuSample,)

    def __init__(self) -> None:
        self._throttled = _Throttled()

    def observe(self, at: float, fact: GpuSample) -> None:
        self._throttled.observe(at, fact)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        held = self._throttled.held(_SW_THERMAL | _HW_THERMAL, now, job)
        if held:
            hard = any(one.bits & _HW_THERMAL for one in held.values())
            yield _finding(
                "thermal-throttle",
                "hw_thermal" if hard else "sw_thermal",
                "heat",
                held,
                self._throttled,
                job,
                "Cool it: fans and their policy, dust, the room, what runs beside it; see `nvidia-smi -q -d "
                "TEMPERATURE,PERFORMANCE`. Until "
                "then a lower power limit on all GPUs (`nvidia-smi -pl WATTS`) keeps the ranks alike, or take the node out.",
            )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        blind = sorted(
            index
            for index, (_, gpu) in job.machine.gpus.items()
            if gpu.throttle_reasons is None and gpu.utilization_ratio is not None
        )
        if blind:
            yield NotChecked(
                f"what holds back the clocks of GPU {', '.join(map(str, blind))}",
                "the driver does not tell",
                "",
            )


class PowerBrakeDetector:
    """Meaning: the server's power supply, or the board, makes GPUs run at a fraction of their clocks while
    they work.

    Evidence: NVML's reason "hardware power brake" (a signal from outside the GPU), or a hardware slowdown
    that is not for heat, in most samples of a minute in which the GPU works.

    What to do: the power supplies, their redundancy and the node's power cap (BMC); it is nothing that a job
    can change.

    False alarms: the software's power cap is what a GPU at full load runs into and is not reported.
    """

    name = "power-brake"
    listens = (GpuSample,)

    def __init__(self) -> None:
        self._throttled = _Throttled()

    def observe(self, at: float, fact: GpuSample) -> None:
        self._throttled.observe(at, fact)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        held = self._throttled.held(_POWER_BRAKE | _HW_SLOWDOWN, now, job)
        hot = self._throttled.held(_HW_THERMAL, now, job)
        held = {index: one for index, one in held.items() if one.bits & _POWER_BRAKE or index not in hot}
        if held:
            brake = any(one.bits & _POWER_BRAKE for one in held.values())
            yield _finding(
                "power-brake",
                "power_brake" if brake else "hw_slowdown",
                "the power supply" if brake else "the hardware",
                held,
                self._throttled,
                job,
                "Have the node's power supplies, their redundancy and the power cap of the BMC checked (`ipmitool sdr type "
                "'Power Supply'`, `nvidia-smi -q -d PERFORMANCE`); take the node out meanwhile: all ranks wait for the slow "
                "ones.",
            )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()


def _finding(  # noqa: PLR0917 - two callers, side by side
    name: str,
    cause: str,
    what: str,
    held: Mapping[int, _Held],
    throttled: _Throttled,
    job: JobView,
    advice: str,
) -> Finding:
    used = gpus_of_ranks(job)
    ranks = tuple(sorted(rank for rank, gpu in used.items() if gpu.index in held))
    worst = min(held.values(), key=lambda one: one.clock)
    others = throttled.clocks({gpu.index for gpu in used.values()} - set(held))
    which = (
        f"GPU {worst.index}"
        if len(held) == 1
        else f"{len(held)} of {len({gpu.index for gpu in used.values()})} GPUs"
    )
    heat = f" at {format_quantity(worst.celsius, '°C')}" if worst.celsius is not None else ""
    rest = f"; the others run at {format_quantity(others[len(others) // 2] / 1e6, 'MHz')}" if others else ""
    slowest = "" if len(held) == 1 else f"GPU {worst.index} "
    return Finding(
        id=name,
        subject=JOB,
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        ranks=ranks,
        since=worst.since,
        cause=cause,
        summary=f"{which} of {format_ranks(ranks)} {'is' if len(held) == 1 else 'are'} held back by {what}: {slowest}"
        f"{format_quantity(worst.clock / 1e6, 'MHz')} of {format_quantity(worst.best / 1e6, 'MHz')}{heat} "
        f"for {format_seconds(worst.seconds)} while it works{rest}",
        advice=advice,
        holds_seconds=120.0,
        evidence=tuple(
            Evidence(
                "nvml",
                f"GPU {one.index}: clocks event reasons 0x{one.bits:x}, {format_quantity(one.clock / 1e6, 'MHz')}"
                + (f", {format_quantity(one.celsius, '°C')}" if one.celsius is not None else "")
                + (f", {format_quantity(one.watts, 'W')}" if one.watts is not None else ""),
                one.since,
                next(iter(ranks), None),
            )
            for one in list(held.values())[:4]
        ),
    )
