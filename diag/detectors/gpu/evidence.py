"""What the findings about GPUs share: whether an error mattered, whose it was and when, and Xids of a GPU."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection

from diag.detectors.echoed_errors import only_quoted
from diag.knowledge.xids import xid_of
from diag.model.observations import GpuHealth
from diag.state.gpufaults import SETTLE_SECONDS, same_bus
from diag.state.rank_view import RankView
from diag.state.view import JobView

# torch's own hook for uncaught exceptions writes the rank before each line; what a program catches and prints
# has none.
_UNCAUGHT = re.compile(r"^\[rank\d+\]: ?(?:[\w.]+\.)?[A-Z]\w*Error: ")
_STANDS_SECONDS = 30.0  # as long as a hang in set-up


def mattered(at: float, text: str, rank: RankView | None, now: float, job: JobView) -> bool:
    """A failure that the program catches and survives (a search for the batch size) is no finding, nor are a
    dataset's words."""
    if job.progress.iteration_at is not None and job.progress.iteration_at > at + SETTLE_SECONDS:
        return False  # steps were made after it
    if _UNCAUGHT.match(text):
        return True
    own = rank is not None and rank.failed and rank.exit is not None and rank.exit.signal != signal.SIGTERM
    if only_quoted(job, text, (rank,) if rank is not None and own else None):
        return False
    if job.run.may_have_failed:
        return True
    if rank is None:
        return any(one.failed for one in job.ranks.values())
    if rank.failed:
        return True
    # it hangs in its own clean-up
    return rank.alive and now - at >= _STANDS_SECONDS and rank.last_moved() <= at + 2.0


def victim_of_line(rank: int | None, device: int | None, job: JobView) -> RankView | None:
    """Whose line it was: the log of several ranks does not always show it; then who failed, on that device, those
    last whom the launcher ended."""
    if rank is not None:
        return job.ranks.get(rank)
    failed = sorted(
        (one for one in job.ranks.values() if one.failed),
        key=lambda one: (one.was_ended, one.exited_at or 0.0),
    )
    there = [one for one in failed if one.placement.local_rank == device]
    return next(iter(there or failed), None)


def has_xid(job: JobView, health: GpuHealth, part: str, kinds: Collection[str]) -> bool:
    """Whether the driver reported an Xid of this part (`Xid.part`) of this GPU: then the error is gpu-fault's."""
    return any(
        xid_of(event.xid).part == part
        and event.kind in kinds
        and same_bus(health.pci_bus_id, event.fact.pci_bus_id)
        for event in job.gpu_faults.xids
    )


def increase(before: int | None, after: int | None) -> int:
    """Of a counter between two readings; one that began anew rose by nothing."""
    return max(0, after - before) if before is not None and after is not None else 0


def when(job: JobView) -> str:
    """With a space before it: ` after iteration 12/200`; nothing of an excerpt that does not show it."""
    if job.phase == "ckpt_save":
        return " while saving a checkpoint"
    if job.iteration is not None:
        return f" after {job.progress.step_words()}"
    if job.phase == "ended" or (job.phases.now == "launch" and job.run.end_unknown):
        return ""
    return f" in phase {job.phase}"
