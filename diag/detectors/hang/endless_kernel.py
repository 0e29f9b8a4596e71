"""A kernel that does not end, among GPUs that all spin: distinguished from NCCL's kernels, in which the others wait for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from diag.detectors.hang.gpus import GpuReading
from diag.detectors.hang.kernels import Kernel
from diag.detectors.hang.verdict import Note, Verdict, blaming, undecided
from diag.model import Confidence
from diag.state.view import JobView
from diag.state.wait_graph import Explanation

# Of these all members have the same kernel; in all-to-alls, gathers and point-to-point calls it follows what
# each of them sends.
_ONE_KERNEL = re.compile(
    r"_?(all_?reduce|all_?gather_base|all_?gather_into_tensor|reduce_?scatter_base|reduce_?scatter_tensor)$"
)
_LESS = 0.8  # of the others' warps: their kernel cannot be among what runs there


def with_endless_kernel(
    verdict: Verdict, readings: dict[int, GpuReading], found: Explanation | None, job: JobView
) -> Verdict:
    """All GPUs spin: a kernel that does not end, put before the collective, from those that wait in NCCL's."""
    if (
        not undecided(verdict)
        or set(verdict.waiting) != set(readings)
        or not _wait_alike(verdict, found, job)
    ):
        return verdict
    front = found.front if found is not None and found.certain and found.sole else None
    one_call = front is not None and not front.is_p2p and _ONE_KERNEL.fullmatch(front.op) is not None
    ranks = endless({rank: reading.kernel for rank, reading in readings.items()}, one_call=one_call)
    kernels = [readings[rank].kernel for rank in verdict.waiting if rank not in ranks]
    others_kernels = [kernel for kernel in kernels if kernel is not None]
    notes = tuple(
        Note("nvml", f"GPU {readings[rank].index} runs {beside(kernel, others_kernels)}", rank)
        for rank in ranks[:2]
        if (kernel := readings[rank].kernel) is not None
    )
    if not notes:
        return verdict
    whole = len(readings) >= job.world_size or (found is not None and found.certain)
    sure = Confidence.MEDIUM if whole else Confidence.LOW
    verdict = replace(verdict, notes=(*notes, *verdict.notes))
    return blaming(verdict, ranks, "gpu_side", "kernel_does_not_end", sure)


def _wait_alike(verdict: Verdict, found: Explanation | None, job: JobView) -> bool:
    """In one call: as the recorder says; where it does not say surely, their stacks are the same."""
    if found is not None:
        if (
            found.kind != "all_joined"
            or found.front is None
            or not set(verdict.waiting) <= set(found.front.waiting)
        ):
            return False
        if found.certain:
            return True
    stacks = {rank.stack_signature for rank in job.ranks.known(verdict.waiting)}
    return len(stacks) == 1 and "" not in stacks


def endless(kernels: Mapping[int, Kernel | None], *, one_call: bool) -> tuple[int, ...]:
    """Ranks with a kernel that is none of NCCL's while all the others may be in one; fewer than half, or one
    of two.

    `one_call`: all are in one collective and in nothing else, as the recorder says. Its kernel is the same on
    all ranks, so one that differs from the others' is not it.
    """
    known = {rank: kernel for rank, kernel in kernels.items() if kernel is not None}
    if len(known) < len(kernels) or len(known) < 2:
        return ()
    found = tuple(sorted(rank for rank, kernel in known.items() if kernel.is_not_nccl))
    if found and not all(kernel.may_be_nccl for rank, kernel in known.items() if rank not in found):
        return ()
    if not found and one_call:
        found = _not_in_it(known)
    return found if 2 * len(found) < len(known) or len(known) == 2 == 2 * len(found) else ()


def _not_in_it(kernels: Mapping[int, Kernel]) -> tuple[int, ...]:
    """Whose kernel is not the one that most stand in, and too small to hold that one beside another."""
    common = max(
        kernels.values(),
        key=lambda kernel: (sum(kernel.equals(other) for other in kernels.values()), kernel.is_like_nccl),
    )
    if not common.is_like_nccl:
        return ()
    apart = {rank: kernel for rank, kernel in kernels.items() if not kernel.equals(common)}
    held = common.sm_ratio * common.warps
    if any(kernel.is_like_nccl or kernel.sm_ratio * kernel.warps > _LESS * held for kernel in apart.values()):
        return ()
    return tuple(sorted(apart))


def beside(culprit: Kernel, others: Iterable[Kernel]) -> str:
    """ "a kernel of 1 warp on 1 of 132 SMs, the others wait in NCCL's of 17 warps on 24 of 132 SMs"."""
    kinds = sorted({str(kernel) for kernel in others})
    return f"a kernel of {culprit}, the others wait in NCCL's of {', '.join(kinds[:3])}"
