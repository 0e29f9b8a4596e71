"""The sizes of model parallelism that a Megatron command asks for."""

from __future__ import annotations

from dataclasses import dataclass

from diag.launch.launchers.command.flags import Flags

_MOST = 4096


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int


def parallel_sizes(flags: Flags) -> ParallelSizes:
    """Raises EstimateError for what is not such a size."""
    return ParallelSizes(
        tp=flags.whole("tensor_model_parallel_size", default=1, most=_MOST),
        pp=flags.whole("pipeline_model_parallel_size", default=1, most=_MOST),
        cp=flags.whole("context_parallel_size", default=1, most=_MOST),
        ep=flags.whole("expert_model_parallel_size", default=1, most=_MOST),
        # Megatron-LM takes TP where it is not given; ms-swift 3.7 leaves it to Megatron, from 3.9 on it is 1.
        etp=flags.whole("expert_tensor_parallel_size", default=1, most=_MOST),
    )
