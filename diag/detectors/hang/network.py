"""Errors of the network that NCCL printed while the job fell silent."""

from __future__ import annotations

import re

from diag.jobstate import JobState
from diag.observations import NcclLine, Observation

__all__ = ["Network"]

# NCCL's src/transport/net_ib.cc, read in the sources of 2.18-2.30 (never captured here: there is no InfiniBand):
#   2.18-2.19  NET/IB : Got completion from peer 10.0.0.2<42443> with error 12, opcode 0, len 0, vendor err 129
#   2.20-2.27  NET/IB: Got completion from peer 10.0.0.2<42443> with status=12 opcode=0 len=0 vendor err 129 (Send) ... hca mlx5_0
#   2.28-2.29  NET/IB: Got completion from peer 10.0.0.2<42443> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=... vendor_err=129
#   2.23-2.27  NET/IB : mlx5_0:1 Got async error event: port error
_ERROR = re.compile(
    r"NET/IB ?: (?:Got completion from peer .{1,80} with (?:error|status=)"
    r"|.{0,40}Got (?:non-fatal )?async (?:error )?event ?: port error)"
)


class Network:
    """Per rank the first error of the network in its NCCL lines, and when."""

    def __init__(self) -> None:
        self._errors: list[tuple[float, NcclLine]] = []

    def observe(self, at: float, fact: Observation) -> None:
        if isinstance(fact, NcclLine) and fact.level == "WARN" and len(self._errors) < 1000 and _ERROR.search(fact.text):
            self._errors.append((at, fact))

    def errors(self, job: JobState) -> dict[int, NcclLine]:
        found: dict[int, NcclLine] = {}
        for at, line in self._errors:
            rank = job.rank_of_pid(line.pid) if line.rank is None else line.rank
            if rank is not None and rank in job.ranks and at >= job.ranks[rank].found_at:
                found.setdefault(rank, line)
        return found
