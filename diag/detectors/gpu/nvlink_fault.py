"""NVLinks that are down among those that should be up, or that repeat and repair transfers."""

from __future__ import annotations

from collections.abc import Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding
from diag.detectors.gpu.evidence import has_xid, increase
from diag.model import Evidence, Finding, Severity
from diag.model.observations import GpuHealth, NvlinkSeen
from diag.state.gpustate import gpus_of_ranks
from diag.state.view import JobView
from diag.text.units import format_ranks

# In a minute: NVLink repeats a damaged flit by itself, and a sound link of an H200 counts none at all
# (2026-11-21, 36 links).
_MANY_REPEATS = 100
_REPORTED_SECONDS = 150.0  # a rise is reported for that long: two readings and a half


class NvlinkFaultDetector(Detector):
    name = "nvlink-fault"
    listens = (GpuHealth,)

    def __init__(self) -> None:
        self._up: dict[int, set[int]] = {}  # links that were up, by GPU
        self._two: dict[int, tuple[GpuHealth, GpuHealth]] = {}  # the last two readings
        self._rose: dict[int, tuple[float, str]] = {}

    def observe(self, at: float, fact: GpuHealth) -> None:
        self._up.setdefault(fact.index, set()).update(_up(fact))
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
            if len(used) < 2 or not ranks:
                continue  # one GPU alone talks to no other over NVLink
            if has_xid(job, health, "nvlink", ("hardware", "application", "consequence")):
                continue
            alike = [
                one for _, one in job.machine.gpu_health.values() if names.get(one.index) == names.get(index)
            ]
            found = self._wrong(index, at, health, max(len(_up(one)) for one in alike), now)
            if found is None:
                continue
            cause, since, what = found
            states = " ".join(f"{link.link}:{'up' if link.active else 'down'}" for link in health.nvlinks)
            yield finding(
                self.name,
                cause,
                subject=f"GPU {index}",
                severity=Severity.CRITICAL if cause == "went_down" and not _up(health) else None,
                ranks=ranks,
                since=since,
                summary=f"GPU {index} of {format_ranks(ranks)} ({health.pci_bus_id}): {what}",
                evidence=[Evidence("nvml", states, since, ranks[0])],
            )

    def _wrong(
        self, index: int, at: float, health: GpuHealth, most: int, now: float
    ) -> tuple[str, float, str] | None:
        """Cause, since when, and what happened; `most` links are up on GPUs of its kind."""
        up = _up(health)
        lost = sorted(self._up.get(index, set()) - up)
        if lost:
            links = ", ".join(map(str, lost))
            return "went_down", at, f"NVLink {links} went down, {len(up)} of {len(health.nvlinks)} are up"
        if health.nvlinks and len(up) < most:
            return "down", at, f"only {len(up)} of its NVLinks are up, {most} on others of its kind"
        since, rose = self._rose.get(index, (at, ""))
        return ("errors", since, rose) if rose and now - since < _REPORTED_SECONDS else None


def _up(health: GpuHealth) -> set[int]:
    return {link.link for link in health.nvlinks if link.active}


def _rise(before: tuple[NvlinkSeen, ...], after: tuple[NvlinkSeen, ...]) -> str:
    """What rose between two readings."""
    known = {link.link: link for link in before}
    parts = []
    for link in after:
        old = known.get(link.link, link)
        recoveries = increase(old.recoveries, link.recoveries)
        repeats = increase(old.replays, link.replays) + increase(old.crc_errors, link.crc_errors)
        if recoveries or repeats >= _MANY_REPEATS:
            parts.append(
                f"NVLink {link.link} recovered {recoveries} times and replayed {repeats} flits in a minute"
            )
    return "; ".join(parts[:3])
