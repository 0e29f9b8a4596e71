"""What runs on the GPUs in a hang, where core dumps of them were taken: NCCL's own kernels wait for peers,
others compute."""

from __future__ import annotations

import re
from dataclasses import dataclass

from diag.model.observations import GpuKernels
from diag.state.view import JobView

# NCCL 2.28.9 in a core dump of an H200, driver 580.159.04: ncclDevKernel_AllReduce_Sum_f32_RING_LL. By their sources others are
# ncclSymkDevKernel_..., and ncclKernel_... before 2.19.
_OF_NCCL = re.compile(r"(?:\w+::)*nccl\w*Kernel")
# Others that wait for peers within the kernel, by their sources: DeepEP, NVSHMEM, TransformerEngine's
# userbuffers, torch's symmetric memory, the custom all-reduce of vLLM and SGLang.
_OF_PEERS = re.compile(
    r"\bdeep_ep::|\bk?userbuffers_|\bnvshmem|\b(?:one|two)_shot_all_reduce|\bmultimem_\w+_reduce|\bcross_device_reduce_"
)


@dataclass(frozen=True, slots=True)
class RunningKernels:
    """One rank's GPU at one moment. `other` are kernels of the program's own; `waits` NCCL's and others that
    wait for peers. `nameless`: how many may be either."""

    waits: tuple[str, ...]
    other: tuple[str, ...]
    nameless: int = 0

    def __str__(self) -> str:
        names = (*self.other, *self.waits, *["a kernel without a name"] * self.nameless)
        return "its GPU runs " + (
            ", ".join(dict.fromkeys(names[:4])) if names else "no kernel of this process"
        )


class Kernels:
    """Keeps the last dump of each rank."""

    listens = (GpuKernels,)

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, GpuKernels]] = {}

    def observe(self, at: float, fact: GpuKernels) -> None:
        if fact.rank is not None:
            self._last[fact.rank] = (at, fact)

    def read(self, job: JobView, since: float) -> dict[int, RunningKernels]:
        """Of living ranks, from dumps that were taken since nothing moves."""
        found: dict[int, RunningKernels] = {}
        for rank in job.alive_ranks():
            at, fact = self._last.get(rank.rank, (0.0, None))
            if fact is None or at < since:
                continue
            # others are queued behind those
            names = [kernel.name for kernel in fact.kernels if kernel.blocks]
            if fact.kernels and not names:
                continue  # which of them run is not known
            waits = tuple(name for name in names if _OF_NCCL.match(name) or _OF_PEERS.search(name))
            other = tuple(name for name in names if name and name not in waits)
            found[rank.rank] = RunningKernels(waits, other, names.count(""))
        return found
