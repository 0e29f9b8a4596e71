"""A record that ends before its run does: what may have ended both."""

from __future__ import annotations

from collections.abc import Iterable

from diag.model import NotChecked
from diag.state.rank import RankState

__all__ = ["broken_off"]

_FULL = 0.8  # of its limit when last read: a save takes the rest in less than the time between two readings


def broken_off(ranks: Iterable[RankState]) -> NotChecked:
    """diag was killed together with the job (a container that the kernel kills as a whole), or alone, or the
    run goes on."""
    groups = [rank.cgroup for rank in ranks if rank.cgroup is not None and rank.cgroup.limit_bytes]
    full = max(groups, key=lambda group: group.usage_bytes / (group.limit_bytes or 1), default=None)
    reason = "the record breaks off without the run's end: diag was killed, with the job or alone, or it still runs"
    remedy = "if the run is over, see how the container ended (`kubectl describe pod`, `docker inspect`) and dmesg of the host"
    if full is not None and full.limit_bytes:
        share = full.usage_bytes / full.limit_bytes
        reason += f"; cgroup {full.path} was at {share:.0%} of its limit of {full.limit_bytes / (1 << 30):.1f} GiB when last read"
        if share >= _FULL:
            remedy += (
                ": the kernel may have killed it as a whole for memory (memory.oom.group, which Kubernetes sets on cgroup v2). "
                "`diag watch` in a container of its own beside it (shareProcessNamespace) outlives that"
            )
    return NotChecked("how the run ended", reason, remedy)
