"""Memory errors of a GPU that are new, or that wait for a reset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diag.knowledge.xids import advice, xid_of
from diag.model import Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import GpuHealth
from diag.state.gpufaults import same_bus
from diag.state.gpustate import ranks_of_gpu
from diag.state.view import JobView
from diag.text.units import format_ranks

_MANY_CORRECTED = 1000  # since the job's first reading; single ones are what ECC is for. Ours


class EccErrorDetector:
    """Meaning: a GPU's memory had errors while the job ran, or has rows that wait to be mapped out.

    Evidence: NVML's counters each minute against the first reading of this job, the row remapper, Xid 63 and
    92. An error that ended a program (Xid 48, 94, 95 ...) is a gpu-fault.

    What to do: a pending remapping needs a reset of the GPU, at best when the job is over; a failed one means
    that the spare rows are used up and the GPU has to be replaced.

    False alarms: errors of earlier days (aggregate counters, rows remapped long ago) are not reported: the
    GPU has dealt with them.
    """

    name = "ecc-error"
    listens = (GpuHealth,)

    def __init__(self) -> None:
        self._first: dict[int, tuple[float, GpuHealth]] = {}

    def observe(self, at: float, fact: GpuHealth) -> None:
        self._first.setdefault(fact.index, (at, fact))

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        for index, (at, health) in sorted(job.machine.gpu_health.items()):
            ranks = ranks_of_gpu(index, job)
            if not ranks or _is_a_fault(health, job):
                continue
            found = self._judge(index, health, job)
            if found is not None:
                cause, severity, what, advice = found
                yield Finding(
                    id="ecc-error",
                    subject=f"GPU {index}",
                    severity=severity,
                    confidence=Confidence.HIGH,
                    ranks=ranks,
                    since=self._first[index][0] if index in self._first and cause.startswith("remap") else at,
                    cause=cause,
                    summary=f"GPU {index} of {format_ranks(ranks)} ({health.pci_bus_id}): {what}",
                    advice=advice,
                    evidence=(Evidence("nvml", _counters(health), at, ranks[0]),),
                    holds_seconds=120.0,
                )

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

    def _judge(self, index: int, health: GpuHealth, job: JobView) -> tuple[str, Severity, str, str] | None:
        """Cause, severity, the sentence's middle, advice; None for a sound GPU."""
        first = self._first[index][1] if index in self._first else health
        uncorrected = _rise(first.ecc_uncorrected_volatile, health.ecc_uncorrected_volatile)
        corrected = _rise(first.ecc_corrected_volatile, health.ecc_corrected_volatile)
        if health.remap_failed:
            return (
                "remap_failed",
                Severity.WARNING,
                "a bad memory row could not be mapped out: the spare rows are used up",
                advice("replace"),
            )
        if uncorrected:
            return (
                "uncorrected",
                Severity.WARNING,
                f"{uncorrected} memory errors that ECC could not correct since the job began",
                advice("reset_gpu", index),
            )
        if health.remap_pending or health.retired_pages_pending:
            return (
                "remap_pending",
                Severity.WARNING,
                "a bad memory row waits to be mapped out, which a reset of the GPU does",
                advice("reset_and_watch", index),
            )
        told = [
            event.xid
            for event in job.gpu_faults.xids
            if event.xid in (63, 92) and same_bus(health.pci_bus_id, event.fact.pci_bus_id)
        ]
        if told:
            xid = xid_of(told[0])
            return (
                f"xid_{xid.number}",
                Severity.WARNING,
                f"Xid {xid.number}, {xid.meaning}",
                advice(xid.action, index),
            )
        if corrected >= _MANY_CORRECTED:
            return (
                "corrected_storm",
                Severity.INFO,
                f"ECC corrected {corrected} memory errors since the job began: no harm yet",
                "Watch the GPU: many corrected errors often come before one that cannot be corrected.",
            )
        return None


def _rise(first: int | None, last: int | None) -> int:
    return max(0, last - first) if first is not None and last is not None else 0


def _is_a_fault(health: GpuHealth, job: JobView) -> bool:
    """gpu-fault says it, with the program that it ended."""
    return any(
        xid_of(event.xid).part == "memory"
        and event.kind == "hardware"
        and same_bus(health.pci_bus_id, event.fact.pci_bus_id)
        for event in job.gpu_faults.xids
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
