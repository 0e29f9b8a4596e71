"""NVLinks that are down among those that should be up, or that repeat and repair transfers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diag.knowledge.xids import xid_of
from diag.model import Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import GpuHealth, NvlinkSeen
from diag.state.gpufaults import same_bus
from diag.state.gpustate import gpus_of_ranks
from diag.state.view import JobView
from diag.text.units import format_ranks

# In a minute: NVLink repeats a damaged flit by itself, and a sound link of an H200 counts none at all
# (2026-11-21, 36 links).
_MANY_REPEATS = 100


class NvlinkFaultDetector:
    """Meaning: a GPU has lost NVLinks, or its links repeat transfers: collectives within the node are slow,
    or fail.

    Evidence: NVML's state and error counters of each link once a minute. A link counts as lost where it was
    up before in this job, or where GPUs of the same kind in this node have more links up.

    What to do: check the fabric manager, then reset all GPUs of the node or reboot; a link that stays down is
    a matter of the board, its seat or the NVSwitch.

    False alarms: links that no GPU of the node has up are taken as not connected (bridges between some GPUs,
    virtual machines).
    """

    name = "nvlink-fault"
    listens = (GpuHealth,)

    def __init__(self) -> None:
        self._up: dict[int, set[int]] = {}  # links that were up, by GPU
        self._two: dict[int, tuple[GpuHealth, GpuHealth]] = {}  # the last two readings
        self._rose: dict[int, tuple[float, str]] = {}

    def observe(self, at: float, fact: GpuHealth) -> None:
        self._up.setdefault(fact.index, set()).update(link.link for link in fact.nvlinks if link.active)
        before = self._two[fact.index][1] if fact.index in self._two else fact
        self._two[fact.index] = (before, fact)
        what = _rise(before.nvlinks, fact.nvlinks)
        if what:
            self._rose[fact.index] = (at, what)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        used = gpus_of_ranks(job)
        names = {gpu.index: gpu.name for _, gpu in job.machine.gpus.values()}
        for index, (at, health) in sorted(job.machine.gpu_health.items()):
            ranks = tuple(rank for rank, gpu in used.items() if gpu.index == index)
            if len(used) < 2 or not ranks or _is_a_fault(health, job):
                continue  # one GPU alone talks to nobody over NVLink
            up = {link.link for link in health.nvlinks if link.active}
            lost = sorted(self._up.get(index, set()) - up)
            alike = [
                one for _, one in job.machine.gpu_health.values() if names.get(one.index) == names.get(index)
            ]
            most = max(len([link for link in one.nvlinks if link.active]) for one in alike)
            if lost:
                what = (
                    f"NVLink {', '.join(map(str, lost))} went down, {len(up)} of {len(health.nvlinks)} are up"
                )
                yield _finding(
                    "went_down",
                    index,
                    ranks,
                    at,
                    what,
                    health,
                    Severity.CRITICAL if not up else Severity.WARNING,
                )
            elif health.nvlinks and len(up) < most:
                what = f"only {len(up)} of its NVLinks are up, {most} on others of its kind"
                yield _finding("down", index, ranks, at, what, health, Severity.WARNING)
            elif index in self._rose and now - self._rose[index][0] < 150.0:
                yield _finding(
                    "errors",
                    index,
                    ranks,
                    self._rose[index][0],
                    self._rose[index][1],
                    health,
                    Severity.WARNING,
                )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()


def _rise(before: tuple[NvlinkSeen, ...], after: tuple[NvlinkSeen, ...]) -> str:
    """What rose between two readings, in words; a counter that began anew rose by nothing."""
    known = {link.link: link for link in before}
    parts = []
    for link in after:
        old = known.get(link.link, link)
        recoveries = _more(old.recoveries, link.recoveries)
        repeats = _more(old.replays, link.replays) + _more(old.crc_errors, link.crc_errors)
        if recoveries or repeats >= _MANY_REPEATS:
            parts.append(
                f"NVLink {link.link} was set up anew {recoveries} times and repeated {repeats} flits in a minute"
            )
    return "; ".join(parts[:3])


def _more(before: int | None, after: int | None) -> int:
    return max(0, after - before) if before is not None and after is not None else 0


def _is_a_fault(health: GpuHealth, job: JobView) -> bool:
    """gpu-fault says it, by the driver's own report."""
    return any(
        xid_of(event.xid).part == "nvlink"
        and event.kind != "notice"
        and same_bus(health.pci_bus_id, event.fact.pci_bus_id)
        for event in job.gpu_faults.xids
    )


def _finding(  # noqa: PLR0917 - one caller
    cause: str,
    index: int,
    ranks: tuple[int, ...],
    at: float,
    what: str,
    health: GpuHealth,
    severity: Severity,
) -> Finding:
    states = " ".join(f"{link.link}:{'up' if link.active else 'down'}" for link in health.nvlinks)
    return Finding(
        id="nvlink-fault",
        subject=f"GPU {index}",
        severity=severity,
        ranks=ranks,
        since=at,
        cause=cause,
        confidence=Confidence.HIGH if cause != "down" else Confidence.MEDIUM,
        summary=f"GPU {index} of {format_ranks(ranks)} ({health.pci_bus_id}): {what}",
        advice="See `nvidia-smi nvlink -s` and `-e` and the fabric manager (`systemctl status nvidia-fabricmanager`); end the "
        "job, reset all GPUs of the node (`nvidia-smi --gpu-reset`) or reboot. Until then NCCL takes slower paths (PCIe, "
        "shared memory), or fails.",
        evidence=(Evidence("nvml", states, at, ranks[0]),),
        holds_seconds=120.0,
    )
