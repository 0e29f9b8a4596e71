"""Which GPU is which rank's, and the other way round."""

from __future__ import annotations

from diag.gpufaults import same_bus
from diag.jobstate import JobState
from diag.observations import GpuSample
from diag.rankstate import RankState

__all__ = ["gpu_of_rank", "gpus_of_ranks", "rank_of_bus", "ranks_of_gpu"]


def gpu_of_rank(rank: RankState, job: JobState) -> GpuSample | None:
    """By the processes that NVML has seen on it, else by the order of the devices that the rank may see.

    NVML names processes of the host; in a container the numbers are others, and then the order is all there is.
    """
    index = rank.gpu_index if rank.gpu_index is not None else _by_order(rank, job)
    return job.gpus[index][1] if index is not None and index in job.gpus else None


def gpus_of_ranks(job: JobState) -> dict[int, GpuSample]:
    """Ranks whose GPU is known, dead ones too: the driver's last reading of them stands."""
    found = {number: gpu_of_rank(rank, job) for number, rank in sorted(job.ranks.items())}
    return {number: gpu for number, gpu in found.items() if gpu is not None}


def ranks_of_gpu(index: int, job: JobState) -> tuple[int, ...]:
    return tuple(rank for rank, gpu in gpus_of_ranks(job).items() if gpu.index == index)


def rank_of_bus(bus: str, job: JobState) -> tuple[int, ...]:
    """The ranks whose GPU has this PCI address, in the driver's or the kernel's words."""
    return tuple(rank for rank, gpu in gpus_of_ranks(job).items() if same_bus(gpu.pci_bus_id, bus))


def _by_order(rank: RankState, job: JobState) -> int | None:
    visible = [word.strip() for word in rank.variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    local = rank.placement.local_rank
    if not visible:
        return local if rank.variables or _is_one_gpu_a_rank(job) else None
    if len(visible) > 1 and local >= len(visible):
        return None
    word = visible[local] if len(visible) > 1 else visible[0]
    if word.isdigit():
        return int(word)
    return next((gpu.index for _, gpu in job.gpus.values() if gpu.uuid and gpu.uuid.startswith(word)), None)


def _is_one_gpu_a_rank(job: JobState) -> bool:  # nobody could read what the ranks may see
    local = sorted(rank.placement.local_rank for rank in job.ranks.values())
    return bool(local) and local == sorted(job.gpus)
