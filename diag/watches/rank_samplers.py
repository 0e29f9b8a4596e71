"""All samplers of a rank, which its sidecar starts."""

from __future__ import annotations

from diag.memory_peek import MemorySampler
from diag.rank_rdma import RdmaSampler
from diag.rank_stacks import StackSampler
from diag.watches.rank_collectives import CollectivesSampler
from diag.watches.rank_context import RankSampler
from diag.watches.rank_process import ExitSampler, ProcessSampler

__all__ = ["RANK_SAMPLERS"]

RANK_SAMPLERS: tuple[type[RankSampler], ...] = (
    ExitSampler,
    ProcessSampler,
    StackSampler,
    CollectivesSampler,
    RdmaSampler,
    MemorySampler,
)
