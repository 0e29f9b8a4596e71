"""Memory errors of a GPU that are new, or that wait for a reset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, row, with_words
from diag.detectors.gpu.evidence import has_xid, increase
from diag.knowledge.xids import advice, xid_of
from diag.model import Evidence, Finding, NotChecked
from diag.model.observations import GpuHealth
from diag.state.gpufaults import same_bus
from diag.state.gpustate import ranks_of_gpu
from diag.state.view import JobView
from diag.text.units import format_ranks

_MANY_CORRECTED = 1000  # since the job's first reading; single ones are what ECC is for. Ours


class EccErrorDetector(Detector):
    name = "ecc-error"
    listens = (GpuHealth,)

    def __init__(self) -> None:
        self._first: dict[int, tuple[float, GpuHealth]] = {}

    def observe(self, at: float, fact: GpuHealth) -> None:
        self._first.setdefault(fact.index, (at, fact))

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        for index, (at, health) in sorted(job.machine.gpu_health.items()):
            ranks = ranks_of_gpu(index, job)
            if not ranks or has_xid(job, health, "memory", ("hardware",)):
                continue
            began, first = self._first.get(index, (at, health))
            found = _error(first, health, job)
            if found is None:
                continue
            cause, what, remedy = found
            yield finding(
                self.name,
                cause,
                subject=f"GPU {index}",
                ranks=ranks,
                since=began if cause.startswith("remap") else at,
                summary=f"GPU {index} of {format_ranks(ranks)} ({health.pci_bus_id}): {what}",
                advice=remedy.replace("INDEX", str(index)),
                evidence=[Evidence("nvml", _counters(health), at, ranks[0])],
            )

        if not job.machine.gpu_health and job.log.ended is not None:
            yield from _by_log(job)

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        off = sorted(
            index for index, (_, health) in job.machine.gpu_health.items() if health.ecc_enabled is False
        )
        if off:
            yield NotChecked(
                f"memory errors of GPU {', '.join(map(str, off))}",
                "ECC is off, so that the GPU does not see them",
                "`nvidia-smi -e 1` and a reset of the GPU, where nothing speaks against it",
            )


def _by_log(job: JobView) -> Iterator[Finding]:
    """Of a log alone: which GPUs are the job's it does not tell, and what the driver reports of one is a fact all the same."""
    seen: set[str] = set()
    for event in job.gpu_faults.xids:
        xid, bus = xid_of(event.xid), event.fact.pci_bus_id
        if event.kind != "notice" or xid.part != "memory" or bus in seen:
            continue
        seen.add(bus)
        yield finding(
            "ecc-error",
            f"xid_{xid.number}",
            subject=f"GPU {bus or '?'}",
            since=event.at,
            summary=f"the driver reports Xid {xid.number} of GPU {bus or '?'}: {xid.meaning}",
            advice=advice(xid.action),
            evidence=[Evidence(event.fact.origin, event.fact.text, event.at)],
        )


def _error(first: GpuHealth, health: GpuHealth, job: JobView) -> tuple[str, str, str] | None:
    """Cause, the middle of the sentence, advice; None for a sound GPU."""
    uncorrected = increase(first.ecc_uncorrected_volatile, health.ecc_uncorrected_volatile)
    corrected = increase(first.ecc_corrected_volatile, health.ecc_corrected_volatile)
    if health.remap_failed:
        return _of_row("remap_failed")
    if uncorrected:
        return _of_row("uncorrected", uncorrected)
    if health.remap_pending or health.retired_pages_pending:
        return _of_row("remap_pending")
    for event in job.gpu_faults.xids:
        if event.xid in (63, 92) and same_bus(health.pci_bus_id, event.fact.pci_bus_id):
            xid = xid_of(event.xid)
            return f"xid_{xid.number}", f"Xid {xid.number}, {xid.meaning}", advice(xid.action)
    return _of_row("corrected_storm", corrected) if corrected >= _MANY_CORRECTED else None


def _of_row(cause: str, count: int = 0) -> tuple[str, str, str]:
    known = row("ecc-error", cause)
    return (
        cause,
        with_words(known["what"], {"count": str(count)}),
        known.get("advice") or advice(known["action"]),
    )


def _counters(health: GpuHealth) -> str:
    rows = (health.remapped_rows_corrected, health.remapped_rows_uncorrected)
    return (
        f"since the driver was loaded: {_number(health.ecc_corrected_volatile)} corrected, "
        f"{_number(health.ecc_uncorrected_volatile)} uncorrected; ever: {_number(health.ecc_corrected_aggregate)}, "
        f"{_number(health.ecc_uncorrected_aggregate)}; remapped rows {_number(rows[0])} and {_number(rows[1])}, "
        f"pending {_number(health.remap_pending)}, failed {_number(health.remap_failed)}"
    )


def _number(value: int | None) -> str:
    return "?" if value is None else str(int(value))
