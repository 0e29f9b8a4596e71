"""What held the GPU's memory when it ran out, by the numbers of PyTorch's message, and what to change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from diag.detectors.findings import row, with_words
from diag.model.observations import CudaOutOfMemory
from diag.state.gpustate import gpu_of_rank
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_bytes

_GIB = 1 << 30
# cudaMemGetInfo leaves out what the driver keeps: of an H200 alone with one process 0.01 GiB belong to none
# (capture, 2026-11-20).
_HIDDEN_BYTES = _GIB
# A CUDA context, NCCL's buffers and the libraries' workspaces: 1.5 GiB on an H200 with one communicator, up
# to some GiB with many.
_OUTSIDE_BYTES = 4 * _GIB
_OUTSIDE_RATIO = 0.1
# Where the message names no process, not even its own (torch 2.0 and older, torch_npu): so large a share of the GPU is
# no context, and no library's workspace. Ours.
_STRANGE_RATIO = 0.4
# Of the GPU: with less than this in pieces it is full, whatever the pieces. Megatron-DeepSpeed on 16 GB V100s (torch
# 2.1): 16 MiB refused with 10 free and 133 unused of 15 GiB, 14 GiB in tensors. Ours.
_PIECES_RATIO = 0.02


@dataclass(frozen=True, slots=True)
class Holders:
    """Bytes on the GPU by holder; None for what the message does not say."""

    own: int | None
    outside: int | None  # of our own: not PyTorch's (CUDA context, NCCL, libraries)
    others: tuple[tuple[int, int], ...]  # (pid, bytes)
    hidden: int | None  # no process in the message has it: processes of other containers, or the driver's own
    strange: int = (
        0  # of a message without processes: neither free nor PyTorch's, and more than a context takes
    )

    @property
    def others_bytes(self) -> int:
        return sum(size for _, size in self.others)


def holders_of(fact: CudaOutOfMemory, seen: Sequence[tuple[int, int]] = (), pid: int = 0) -> Holders:
    """In a container the process finds itself in the list under its number outside, and not as "this
    process".

    `seen`: the processes on the GPU as NVML showed them last, for torch 2.0 and older, which names none; `pid`
    is the rank's own.
    """
    pytorch = (fact.allocated_bytes or 0) + (fact.reserved_bytes or 0)
    own, others = fact.in_use_bytes, list(fact.others)
    if own is None and others:
        fits = [item for item in others if item[1] >= 0.99 * pytorch]
        if fits:
            ours = min(fits, key=lambda item: item[1])
            others.remove(ours)
            own = ours[1]
    if own is None and not others and pid in dict(seen):
        own, others = dict(seen)[pid], [item for item in seen if item[0] != pid]
    outside = None if own is None or fact.allocated_bytes is None else max(0, own - pytorch)
    hidden, strange = None, 0
    if fact.total_bytes is not None and fact.free_bytes is not None:
        taken = fact.total_bytes - fact.free_bytes
        if own is not None:
            hidden = max(0, taken - own - sum(size for _, size in others))
        elif not others and fact.allocated_bytes is not None:
            strange = taken - pytorch if taken - pytorch >= _STRANGE_RATIO * fact.total_bytes else 0
    return Holders(own, outside, tuple(others), hidden, strange)


def cause_of(fact: CudaOutOfMemory, holders: Holders, rank: RankView | None, job: JobView) -> str:
    """fragmentation, capacity, other_process, shared_gpu, outside_pytorch or memory_fraction: what, had it
    not been, would have let the allocation in; capacity where nothing would have."""
    if fact.free_bytes is None or fact.total_bytes is None:
        return "capacity"
    tried, free, unused = fact.tried_bytes, fact.free_bytes, fact.reserved_bytes or 0
    if fact.allowed_bytes is not None and free >= tried:
        return "memory_fraction"
    if not holders.strange and free + unused >= tried and unused >= _PIECES_RATIO * fact.total_bytes:
        return "fragmentation"
    without = free + unused
    if holders.others_bytes and without + holders.others_bytes >= tried:
        ranks = [pid for pid, _ in holders.others if job.ranks.rank_of_pid(pid) is not None]
        return "shared_gpu" if ranks or _shares_its_gpu(rank, job) else "other_process"
    if holders.hidden is not None and holders.hidden >= _HIDDEN_BYTES and without + holders.hidden >= tried:
        return "other_process"
    if holders.strange and without + holders.strange >= tried:
        return "other_process"
    outside = holders.outside or 0
    if outside >= max(_OUTSIDE_BYTES, _OUTSIDE_RATIO * fact.total_bytes) and without + outside >= tried:
        return "outside_pytorch"
    return "capacity"


def _shares_its_gpu(rank: RankView | None, job: JobView) -> bool:
    """In a container the pids of the message are the host's: then the order of the devices shows it."""
    gpu = gpu_of_rank(rank, job) if rank is not None else None
    others = [gpu_of_rank(one, job) for one in job.ranks.values() if one is not rank]
    return gpu is not None and any(other is not None and other.index == gpu.index for other in others)


def memory_advice(
    cause: str, fact: CudaOutOfMemory, holders: Holders, rank: RankView | None, job: JobView
) -> str:
    """What to change; of what takes less memory the cheapest first."""
    known = row("cuda-oom", cause)
    advice: str = known["advice"]
    if cause == "fragmentation":
        variables = rank.variables if rank is not None else {}
        setting = variables.get("PYTORCH_ALLOC_CONF", "") + variables.get("PYTORCH_CUDA_ALLOC_CONF", "")
        if "expandable_segments:true" in setting.lower():
            advice = known["expands"]
        elif " (GPU " in fact.text and " total capacity; " in fact.text:
            advice = known["old_torch"]  # 2.0 and older has no expandable segments
        name = "PYTORCH_ALLOC_CONF" if "PYTORCH_ALLOC_CONF" in fact.text else "PYTORCH_CUDA_ALLOC_CONF"
        return with_words(advice, {"name": name})
    if cause == "other_process":
        pids = ",".join(str(pid) for pid, _ in holders.others[:8])
        return with_words(known["advice" if pids else "unseen"], {"pids": pids})
    if cause != "capacity":
        return advice
    needs = known["no_numbers"]
    if fact.free_bytes is not None:
        if fact.free_bytes >= fact.tried_bytes:
            return cast("str", known["not_full"])
        short = format_bytes(fact.tried_bytes - fact.free_bytes)
        needs = f"{short} more were needed for this one allocation. "
    return with_words(advice, {"needs": needs, "steps": "; ".join(_steps(job))})


def _steps(job: JobView) -> Sequence[str]:
    command = " ".join(job.run.argv)
    steps: dict[str, Any] = row("cuda-oom", "capacity")["steps"]
    if job.phase in ("model_load", "launch", "rendezvous", "comm_init"):
        return cast("list[str]", steps["load_megatron" if "megatron" in command else "load"])
    if "megatron" not in command:
        return cast("list[str]", steps["swift" if "swift" in command else "other"])
    flags = command.replace("-", "_").replace("__", "--")

    def value(name: str) -> str:
        match = re.search(rf"--{name}[= ](\S{{1,20}})", flags)
        return match[1] if match else ""

    return [
        step["step"]
        for step in steps["megatron"]
        if all(value(flag) in values for flag, values in step.get("where", {}).items())
        and not any(value(flag) in values for flag, values in step.get("unless", {}).items())
    ]
