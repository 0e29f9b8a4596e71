"""What runs on the GPUs in a hang, where core dumps of them were taken: NCCL's own kernels wait for peers,
others compute."""

from __future__ import annotations

import re
from dataclasses import dataclass

from diag.detectors.hang.rank_wait import WAITS
from diag.detectors.hang.verdict import Note, Verdict, blaming
from diag.model import Confidence
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

# Classes that a kernel which does not end may hide behind, and the state of its rank then.
_MAY_BE_A_KERNEL = ("unknown", "peer_not_joined", "gpu_side")
_AT_THE_GPU = (*WAITS, "blind")


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


def with_core_dumps(verdict: Verdict, running: dict[int, RunningKernels], states: dict[int, str]) -> Verdict:
    """A kernel of the program's own on some GPUs, while those of the others have none: it does not end, and
    the rest wait for it. Where all have one it is a way of their own to talk to each other, and blames
    nobody."""
    if not running or verdict.klass not in _MAY_BE_A_KERNEL or verdict.cause.startswith("xid_"):
        return verdict
    everyone = tuple(sorted(set(verdict.everyone)))
    seen = [rank for rank in everyone if rank in running]
    busy = tuple(rank for rank in seen if running[rank].other)
    shown = (*busy[:3], *[rank for rank in seen if rank not in busy][:2])
    noted = verdict.noted(*(Note("cuda_coredump", str(running[rank]), rank) for rank in shown))
    lone = len(everyone) == 1 and len(busy) == 1
    if (
        not busy
        or (len(busy) == len(seen) and not lone)
        or any(states.get(rank, "blind") not in _AT_THE_GPU for rank in busy)
    ):
        return noted
    if verdict.culprits and not set(verdict.culprits) & set(busy):
        return noted  # two channels that do not agree
    if any(running[rank].nameless for rank in seen if rank not in busy):
        return noted  # what runs there may be the same
    sure = Confidence.HIGH if len(seen) == len(everyone) else Confidence.MEDIUM
    return blaming(noted, busy, "gpu_side", "kernel_does_not_end", sure, blamed_child=None)
