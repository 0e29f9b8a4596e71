"""Which GPU is which rank's, and the other way round; and whether a sample of it shows that rank alone."""

from __future__ import annotations

from collections.abc import Iterable

from diag.model.observations import GpuSample
from diag.state.gpufaults import same_bus
from diag.state.rank_view import RankView
from diag.state.view import JobView


def gpu_of_rank(rank: RankView, job: JobView) -> GpuSample | None:
    """By the processes that NVML has seen on it, else by the order of the devices that the rank may see.

    NVML names processes of the host; in a container the numbers are others, and then the order is all there
    is.
    """
    index = rank.gpu_index if rank.gpu_index is not None else _by_order(rank, job)
    return job.machine.gpus[index][1] if index is not None and index in job.machine.gpus else None


def gpus_of_ranks(job: JobView) -> dict[int, GpuSample]:
    """Ranks whose GPU is known, dead ones too: the driver's last reading of them stays."""
    found = {number: gpu_of_rank(rank, job) for number, rank in sorted(job.ranks.items())}
    return {number: gpu for number, gpu in found.items() if gpu is not None}


def ranks_of_gpu(index: int, job: JobView) -> tuple[int, ...]:
    return ranks_of_gpus(job).get(index, ())


def ranks_of_gpus(job: JobView) -> dict[int, tuple[int, ...]]:
    """By the index of each GPU that is some rank's."""
    found: dict[int, list[int]] = {}
    for rank, gpu in gpus_of_ranks(job).items():
        found.setdefault(gpu.index, []).append(rank)
    return {index: tuple(ranks) for index, ranks in found.items()}


def rank_of_bus(bus: str, job: JobView) -> tuple[int, ...]:
    """The ranks whose GPU has this PCI address, as the driver or the kernel writes it."""
    return tuple(rank for rank, gpu in gpus_of_ranks(job).items() if same_bus(gpu.pci_bus_id, bus))


def is_its_own(pids: Iterable[int], rank: int, job: JobView) -> bool:
    """Of these processes on its GPU none is another rank's or another job's: then a sample shows this rank.

    Where the driver shows no process of the job (a container without the host's pids) that is not known, and
    what the sample shows is taken for the rank's: see `pids_are_seen`.
    """
    return not pids_are_seen(job) or all(job.ranks.rank_of_pid(pid) == rank for pid in pids)


def pids_are_seen(job: JobView) -> bool:
    """NVML has shown a process of this job on some GPU: the pids that it shows are those that diag sees."""
    return any(rank.gpu_index is not None for rank in job.ranks.values())


def device_of(visible: str, local_rank: int) -> str:
    """The rank's own device in CUDA_VISIBLE_DEVICES, a number or (the begin of) a uuid; "" where it has none.

    Launchers either show all devices to all ranks, or one to each.

    >>> device_of("2,3", 1), device_of("5", 1), device_of("GPU-1b,GPU-2c", 0), device_of("", 0), device_of("2,3", 7)
    ('3', '5', 'GPU-1b', '', '')
    """
    devices = [device.strip() for device in visible.split(",") if device.strip()]
    if len(devices) == 1:
        return devices[0]
    return devices[local_rank] if 0 <= local_rank < len(devices) else ""


def _by_order(rank: RankView, job: JobView) -> int | None:
    visible, local = rank.variables.get("CUDA_VISIBLE_DEVICES", ""), rank.placement.local_rank
    if not visible:
        return local if rank.variables or _is_one_gpu_a_rank(job) else None
    word = device_of(visible, local)
    if word.isdigit():
        return int(word)
    gpus = (gpu.index for _, gpu in job.machine.gpus.values() if word and gpu.uuid.startswith(word))
    return next(gpus, None)


def _is_one_gpu_a_rank(job: JobView) -> bool:
    """Where what the ranks may see could not be read."""
    # asked for each line of each rank: thousands of ranks are not sorted for it
    if len(job.ranks) != len(job.machine.gpus):
        return False
    local = sorted(rank.placement.local_rank for rank in job.ranks.values())
    return bool(local) and local == sorted(job.machine.gpus)
