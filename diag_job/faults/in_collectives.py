"""Faults in what ranks call together: calls that do not fit, groups in opposite order, a rank that leaves
early.

gloo compares nothing: a message that is too long for its receiver ends that process, one that is too short
passes. Sizes and dtypes that differ therefore hang only where the messages are equal and their number is not,
which NCCL needs no help with. gloo reduces in rings of 1 MiB segments, so the tensors here are whole segments
(torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .runtime import Runtime

_SEGMENT_ELEMENTS = (1 << 20) // 4  # of float32; gloo/allreduce.cc, kMaxSegmentSize

# The other ranks have their part in these: the call that is made together.
ON_EVERY_RANK = ("wrong-size", "wrong-dtype", "wrong-op", "opposite-groups")


def _announce(runtime: Runtime) -> None:
    if runtime.is_culprit:
        runtime.announce()


def _extra_collective(runtime: Runtime) -> None:
    import torch.distributed as dist
    from megatron.core import parallel_state

    runtime.announce()
    group = parallel_state.get_data_parallel_group()
    dist.all_gather([_ones(1) for _ in range(dist.get_world_size(group))], _ones(1), group=group)


def _ones(elements: int, dtype: Any = None) -> Any:
    import torch

    return torch.ones(
        elements, dtype=dtype, device="cpu" if _on_gloo() else "cuda"
    )  # NCCL takes nothing in host memory


def _on_gloo() -> bool:
    import torch.distributed as dist

    return str(dist.get_backend()) == "gloo"


def _whole_segments() -> int:
    import torch.distributed as dist

    return 2 * dist.get_world_size() * _SEGMENT_ELEMENTS


def _wrong_size(runtime: Runtime) -> None:
    import torch.distributed as dist

    _announce(runtime)
    dist.all_reduce(_ones(_whole_segments() * (2 if runtime.is_culprit else 1)))


def _wrong_dtype(runtime: Runtime) -> None:
    import torch
    import torch.distributed as dist

    _announce(runtime)
    dist.all_reduce(_ones(_whole_segments(), torch.float64 if runtime.is_culprit else torch.float32))


def _wrong_op(runtime: Runtime) -> None:
    import torch.distributed as dist

    _announce(runtime)
    if runtime.is_culprit:
        dist.broadcast(_ones(64), src=0 if runtime.rank else 1)
    else:
        dist.all_reduce(_ones(64))


def _opposite_groups(runtime: Runtime) -> None:
    import torch.distributed as dist

    groups = [dist.new_group(group_desc=name) for name in ("METRICS", "GRADIENTS")]
    if not _on_gloo():
        # NCCL makes a communicator in a group's first call: without these the ranks would wait there, not in what is meant.
        for group in groups:
            dist.all_reduce(_ones(8), group=group)
    _announce(runtime)
    for group in reversed(groups) if runtime.is_culprit else groups:
        dist.all_reduce(_ones(8), group=group)


def _p2p_mismatch(runtime: Runtime) -> None:
    import torch.distributed as dist
    from megatron.core import parallel_state

    runtime.announce(f"peer={parallel_state.get_pipeline_model_parallel_next_rank()}")
    dist.recv(_ones(8), src=parallel_state.get_pipeline_model_parallel_next_rank())


def _uneven_data(runtime: Runtime) -> None:
    import torch.distributed as dist

    runtime.announce()
    dist.barrier()


def _left_early(runtime: Runtime) -> None:
    runtime.announce()
    raise SystemExit(0)


STRIKES: dict[str, Callable[[Runtime], None]] = {
    "extra-collective": _extra_collective,
    "wrong-size": _wrong_size,
    "wrong-dtype": _wrong_dtype,
    "wrong-op": _wrong_op,
    "opposite-groups": _opposite_groups,
    "p2p-mismatch": _p2p_mismatch,
    "uneven-data": _uneven_data,
    "left-early": _left_early,
}
