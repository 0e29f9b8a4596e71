"""The limit of locked memory is too low for RDMA: reported before NCCL fails at it, and after."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import LinePattern, Lines, finding, on_ranks, quoted, ranks_of, since_of
from diag.detectors.network.evidence import place_of
from diag.detectors.network.unlogged import several_nodes
from diag.model import Finding, Severity
from diag.model.observations import LogLine, NcclVerbsError
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_bytes

# Docker's default is 8 MiB, a distribution's 64 KiB to 8 GiB; NCCL registers some GiB a rank. What is far
# above is a share of the host's memory that was chosen.
_ENOUGH_BYTES = 64 << 30
# NCCL 2.18-2.31, src/misc/ibvwrap.cc (wording read in the source; soft-RoCE gave ENOMEM over the limit, EPERM at limit 0):
#   NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory
#   NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory errno 12
_CALLS = re.compile(r"^ibv_(?:reg_mr\w*|create_qp\w*|create_cq\w*|reg_dmabuf_mr)$")
_PATIENCE_SECONDS = 10.0  # the limits of a rank are read when it is found, which may be just now
_ENOMEM, _EPERM = 12, 1


class MemlockDetector(Detector):
    name = "memlock-limit"
    listens = (LogLine,)

    def __init__(self) -> None:
        self._pattern = LinePattern.named("locked_memory")
        self._failed: dict[int | None, tuple[float, str]] = {}

    def observe(self, at: float, fact: LogLine) -> None:
        if len(self._failed) < 4096 and self._pattern.matches(fact.text):
            self._failed.setdefault(fact.rank, (at, fact.text))

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        failed: Lines = {**self._failed, **_nccl_failures(job)}
        low = [rank for rank in job.ranks.values() if _is_low(rank, job)]
        if not low and not failed:
            return
        since = since_of(failed) if failed else now
        if failed and now - since < _PATIENCE_SECONDS and _awaits_limits(job, failed):
            return
        ranks = ranks_of(failed) or tuple(rank.rank for rank in low)
        severity, what = None, "RDMA buffers could not be registered"
        if not failed:
            severity = Severity.WARNING if several_nodes(job) else Severity.INFO
            what = "RDMA buffers of that size cannot be registered, and this machine has RDMA devices"
        limit = _limits_of(job, [*ranks, *(rank.rank for rank in low)])
        yield finding(
            self.name,
            "registration_failed" if failed else "low",
            severity=severity,
            ranks=ranks,
            since=since,
            summary=f"{limit}{on_ranks(ranks)}: {what}",
            words=place_of(job, ranks[0] if ranks else 0),
            evidence=quoted(failed),
        )


def _limits_of(job: JobView, ranks: Iterable[int]) -> str:
    limits = (_limit(job.ranks.get(rank)) for rank in ranks)
    sizes = sorted({limit for limit in limits if limit is not None})
    if not sizes:
        return "locked memory ran out"
    ends = dict.fromkeys(map(format_bytes, (sizes[0], sizes[-1])))
    return f"the limit of locked memory is {' to '.join(ends)}"


def _awaits_limits(job: JobView, failed: Lines) -> bool:
    ranks = [job.ranks[rank] for rank in failed if rank is not None and rank in job.ranks]
    return any(rank.alive and rank.limits is None and rank.placement.launcher != "captured" for rank in ranks)


def _nccl_failures(job: JobView) -> Lines:
    return {
        rank: (at, f"{error.line.where} {error.line.text}".strip())
        for rank, process in job.nccl_processes.everywhere()
        for at, error in process.verbs
        if is_memlock(error) and not may_lock_all(None if rank is None else job.ranks.get(rank))
    }


def may_lock_all(rank: RankView | None) -> bool:
    """Known to be free to lock memory: a refusal has another reason (the card's resources, nvidia_peermem)."""
    if rank is None or rank.limits is None:
        return False
    return rank.limits.ipc_lock is True or dict(rank.limits.soft).get("Max locked memory", 0) is None


def is_resource(call: str) -> bool:
    """Whether this call of libibverbs locks memory."""
    return _CALLS.match(call) is not None


def is_memlock(error: NcclVerbsError) -> bool:
    """Whether this failed call is one that the limit of locked memory explains."""
    return is_resource(error.call) and error.errno in (_ENOMEM, _EPERM)


def _limit(rank: RankView | None) -> int | None:
    return None if rank is None or rank.limits is None else rank.limits.get("Max locked memory")


def _is_low(rank: RankView, job: JobView) -> bool:
    if rank.limits is None or not rank.limits.rdma_devices:
        return False  # no RDMA here: the limit does not matter
    if rank.limits.ipc_lock or (rank.rdma is not None and rank.rdma.ipc_lock):
        return False
    process = job.nccl_processes.placed().get(rank.rank)
    if process is not None and process.connected and process.nets_between_nodes() - {"Socket"}:
        return False  # it has registered what it needs
    limit = _limit(rank)
    return limit is not None and limit < _ENOUGH_BYTES
