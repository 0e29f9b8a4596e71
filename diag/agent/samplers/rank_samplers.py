"""All samplers of a rank, which its sidecar starts."""

from __future__ import annotations

from diag.agent.memory_sampler import MemorySampler
from diag.agent.rdma_sampler import RdmaSampler
from diag.agent.samplers.rank_collectives import CollectivesSampler
from diag.agent.samplers.rank_context import RankSampler
from diag.agent.samplers.rank_files import WrittenSampler
from diag.agent.samplers.rank_process import ExitSampler, ProcessSampler
from diag.agent.samplers.rank_variables import VariableSampler
from diag.agent.samplers.rank_waits import WaitSampler
from diag.agent.stack_sampler import StackSampler

RANK_SAMPLERS: tuple[type[RankSampler], ...] = (
    ExitSampler,
    ProcessSampler,
    StackSampler,
    WrittenSampler,
    WaitSampler,
    VariableSampler,
    CollectivesSampler,
    RdmaSampler,
    MemorySampler,
)
