"""Health of the ranks' GPUs as samples of Prometheus: faults, memory errors, links, and what holds their
clocks back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from diag.model.observations import GpuHealth, GpuSample
from diag.state.gpustate import gpus_of_ranks, rank_of_bus
from diag.state.view import JobView

# As METRICS of prometheus.py: name, type, unit, labels, help.
GPU_METRICS = (
    (
        "diag_gpu_xid_total",
        "counter",
        "",
        "rank xid",
        "Faults (Xid) that the driver reported for the rank's GPU since the run began; the same one again within 10 s counts once.",
    ),
    (
        "diag_gpu_throttled",
        "gauge",
        "",
        "rank reason",
        "1 while the driver holds the GPU's clocks back for this reason, 0 while not: sw_thermal, hw_thermal, power_brake, "
        "hw_slowdown, power_cap (normal at full load).",
    ),
    (
        "diag_gpu_throttled_seconds_total",
        "counter",
        "seconds",
        "rank reason",
        "Time for which the clocks were held back since the driver was loaded: thermal, power.",
    ),
    (
        "diag_gpu_ecc_errors_total",
        "counter",
        "",
        "rank kind",
        "Memory errors since the driver was loaded: corrected, uncorrected.",
    ),
    (
        "diag_gpu_row_remap_pending",
        "gauge",
        "",
        "rank",
        "1 while a bad memory row waits for a reset of the GPU to be mapped out.",
    ),
    ("diag_gpu_nvlinks_up", "gauge", "", "rank", "NVLinks of the rank's GPU that are up."),
    ("diag_gpu_memory_temperature_celsius", "gauge", "celsius", "rank", "Temperature of the GPU's memory."),
)

# nvml.h, nvmlClocksEventReason*
_REASONS = {"power_cap": 0x4, "hw_slowdown": 0x8, "sw_thermal": 0x20, "hw_thermal": 0x40, "power_brake": 0x80}

GpuMetricSample = tuple[str, tuple[str, ...], float, None]


def gpu_samples(job: JobView) -> Iterator[GpuMetricSample]:
    """Of what was told so far; whoever reads the state holds its lock."""
    for rank, gpu in sorted(gpus_of_ranks(job).items()):
        label = (str(rank),)
        if job.ranks[rank].alive:
            yield from _throttled(label, gpu)
        if gpu.index in job.machine.gpu_health:
            yield from _health(label, job.machine.gpu_health[gpu.index][1])
    faults: Counter[tuple[int, int]] = Counter()
    for event in job.gpu_faults.xids:
        users = set(rank_of_bus(event.fact.pci_bus_id, job))
        users.update(rank for pid in event.pids for rank in [job.ranks.rank_of_pid(pid)] if rank is not None)
        faults.update((rank, event.xid) for rank in users if event.last_at >= job.ranks[rank].found_at)
    for (rank, xid), count in sorted(faults.items()):
        yield ("diag_gpu_xid_total", (str(rank), str(xid)), count, None)


def _throttled(label: tuple[str], gpu: GpuSample) -> Iterator[GpuMetricSample]:
    if gpu.throttle_reasons is not None:
        for reason, bit in _REASONS.items():
            yield ("diag_gpu_throttled", (*label, reason), float(bool(gpu.throttle_reasons & bit)), None)


def _health(label: tuple[str], health: GpuHealth) -> Iterator[GpuMetricSample]:
    for name, more, value in (
        ("diag_gpu_throttled_seconds_total", ("thermal",), health.thermal_violation_seconds),
        ("diag_gpu_throttled_seconds_total", ("power",), health.power_violation_seconds),
        ("diag_gpu_ecc_errors_total", ("corrected",), health.ecc_corrected_volatile),
        ("diag_gpu_ecc_errors_total", ("uncorrected",), health.ecc_uncorrected_volatile),
        ("diag_gpu_row_remap_pending", (), health.remap_pending),
        (
            "diag_gpu_nvlinks_up",
            (),
            sum(bool(link.active) for link in health.nvlinks) if health.nvlinks else None,
        ),
        ("diag_gpu_memory_temperature_celsius", (), health.memory_celsius),
    ):
        if value is not None:
            yield (name, (*label, *more), float(value), None)
