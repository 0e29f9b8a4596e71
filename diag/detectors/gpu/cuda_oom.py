"""GPU memory ran out: on which rank, what held it, whether it grew, and what would have let the allocation
in."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, row, who
from diag.detectors.gpu.evidence import mattered, victim_of_line, when
from diag.detectors.gpu.oom_cause import Holders, cause_of, holders_of, memory_advice
from diag.model import Confidence, Evidence, Finding
from diag.model.observations import CudaOutOfMemory, GpuSample
from diag.state.gpufaults import MEMORY_ERRORS
from diag.state.gpustate import gpu_of_rank
from diag.state.rank_view import RankView
from diag.state.reducer import StepMade
from diag.state.view import JobView
from diag.text.units import format_bytes, format_ranks

_KEPT = 512  # steps of which the peak is remembered
_TREND_STEPS = 24
_GROWS_RATIO = 0.03  # of the GPU's memory between the first and the last third; ours


class CudaOomDetector(Detector):
    name = "cuda-oom"
    listens = (StepMade, GpuSample)

    def __init__(self) -> None:
        self._step = 0
        self._peaks: dict[int, deque[tuple[int, int]]] = {}  # per GPU: (step, most bytes in use)
        self._total: dict[int, int] = {}

    def observe(self, at: float, fact: StepMade | GpuSample) -> None:
        if isinstance(fact, StepMade):
            self._step = fact.iteration
        elif fact.memory_used_bytes is not None:
            self._see_memory(fact.index, fact.memory_used_bytes, fact.memory_total_bytes)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        found = []
        for at, fact in sorted(job.gpu_faults.out_of_memory.values(), key=lambda item: item[0]):
            rank = victim_of_line(fact.rank, fact.device, job)
            if mattered(at, fact.text, rank, now, job):
                found.append((at, fact, rank))
        if found:
            yield self._by_message(found, job)
        else:
            yield from self._by_error(now, job)

    def _by_message(
        self, found: list[tuple[float, CudaOutOfMemory, RankView | None]], job: JobView
    ) -> Finding:
        at, fact, rank = found[0]
        gpu = gpu_of_rank(rank, job) if rank is not None else None
        holders = holders_of(fact, gpu.process_memory if gpu else (), rank.placement.pid if rank else 0)
        cause = cause_of(fact, holders, rank, job)
        # its log may come before it is found
        numbers = [line.rank if one is None else one.rank for _, line, one in found]
        ranks = tuple(sorted({number for number in numbers if number is not None}))
        first = () if numbers[0] is None else (numbers[0],)
        others = [number for number in ranks if number not in first]
        more = f"; so did {format_ranks(others)}" if len(ranks) > 1 else ""
        grew = self._growth(rank, job)
        sure = cause not in ("fragmentation", "outside_pytorch") and fact.free_bytes is not None
        return finding(
            self.name,
            cause,
            confidence=Confidence.HIGH if sure else None,
            ranks=ranks,
            since=at,
            summary=f"{who(first, 'a rank')} ran out of GPU memory{when(job)}: {_asked(fact)}; {_held(fact, holders, job)}"
            f"{'' if holders.strange else row(self.name, cause).get('short', '')}{grew}{more}",
            advice=memory_advice(cause, fact, holders, rank, job) + (row(self.name)["grew"] if grew else ""),
            evidence=[
                Evidence("output", one.text[:600], when_read, one.rank) for when_read, one, _ in found[:3]
            ],
        )

    def _by_error(self, now: float, job: JobView) -> Iterator[Finding]:
        """No numbers: a library outside PyTorch's allocator, or a first CUDA call on a full GPU."""
        errors = [
            line
            for lines in job.gpu_faults.errors.values()
            for line in lines
            if line[1].error in MEMORY_ERRORS
        ]
        for at, fact in sorted(errors, key=lambda item: item[0]):
            rank = victim_of_line(fact.rank, None, job)
            if not mattered(at, fact.text, rank, now, job):
                continue
            number = fact.rank if rank is None else rank.rank
            ranks = () if number is None else (number,)
            gpu = gpu_of_rank(rank, job) if rank is not None else None
            use = ""
            if gpu is not None and gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
                use = (
                    f"; {format_bytes(gpu.memory_used_bytes)} of {format_bytes(gpu.memory_total_bytes)} "
                    f"of GPU {gpu.index} were in use before"
                )
            yield finding(
                self.name,
                "outside_pytorch",
                ranks=ranks,
                since=at,
                advice=row(self.name, "outside_pytorch")["full_beside_it"],
                summary=f"{who(ranks, 'a rank')} ran out of GPU memory outside PyTorch's allocator{when(job)}: "
                f'"{_trim(fact.text)}"{use}',
                evidence=[Evidence("output", fact.text[:500], at, fact.rank)],
            )
            return

    # -- memory over time -----------------------------------------------------------------------------------

    def _see_memory(self, gpu: int, used: int, total: int | None) -> None:
        peaks = self._peaks.setdefault(gpu, deque(maxlen=_KEPT))
        if total:
            self._total[gpu] = total
        if peaks and peaks[-1][0] == self._step:
            peaks[-1] = (self._step, max(peaks[-1][1], used))
        else:
            peaks.append((self._step, used))

    def _growth(self, rank: RankView | None, job: JobView) -> str:
        """A clause, where the memory in use rose over the steps and never fell for long; "" otherwise."""
        gpu = gpu_of_rank(rank, job) if rank is not None else None
        steady = [item for item in self._peaks.get(gpu.index, ()) if item[0] > 0] if gpu is not None else []
        if gpu is None or len(steady) < _TREND_STEPS or not self._total.get(gpu.index):
            return ""
        third = len(steady) // 3
        low, middle, high = (
            statistics.median_high(used for _, used in steady[begin : begin + third])
            for begin in (0, third, 2 * third)
        )
        if not low < middle < high or high - low < _GROWS_RATIO * self._total[gpu.index]:
            return ""
        return (
            f"; memory in use grew from {format_bytes(low)} to {format_bytes(high)} between iterations "
            f"{steady[0][0]} and {steady[-1][0]}"
        )


def _asked(fact: CudaOutOfMemory) -> str:
    where = f" of GPU {fact.device}" if fact.device is not None else ""
    if fact.free_bytes is None or fact.total_bytes is None:
        return f"it asked for {format_bytes(fact.tried_bytes)}{where}"
    missing = fact.tried_bytes - fact.free_bytes
    short = f", {format_bytes(missing)} short" if missing > 0 else ""
    return (
        f"it asked for {format_bytes(fact.tried_bytes)}{where} with {format_bytes(fact.free_bytes)} of "
        f"{format_bytes(fact.total_bytes)} free{short}"
    )


def _held(fact: CudaOutOfMemory, holders: Holders, job: JobView) -> str:
    parts = []
    if fact.allocated_bytes is not None:
        graphs = f" ({format_bytes(fact.private_bytes)} of it in CUDA graphs)" if fact.private_bytes else ""
        unused = format_bytes(fact.reserved_bytes or 0)
        parts.append(
            f"PyTorch holds {format_bytes(fact.allocated_bytes)} in tensors{graphs} and {unused} unused"
        )
    if holders.outside is not None:
        outside = format_bytes(holders.outside)
        parts.append(f"{outside} of the process are outside PyTorch (CUDA context, NCCL, libraries)")
    for pid, size in sorted(holders.others, key=lambda item: -item[1])[:4]:
        rank = job.ranks.rank_of_pid(pid)
        whose = f" (rank {rank})" if rank is not None else ""
        parts.append(f"process {pid}{whose} holds {format_bytes(size)}")
    if holders.hidden is not None and holders.hidden >= 1 << 30:
        parts.append(f"{format_bytes(holders.hidden)} are held by processes that the message does not name")
    if holders.strange:
        strange = format_bytes(holders.strange)
        parts.append(
            f"{strange} are neither free nor PyTorch's: other processes, or other libraries of this one"
        )
    if fact.allowed_bytes is not None:
        parts.append(f"the program limits itself to {format_bytes(fact.allowed_bytes)}")
    return ", ".join(parts) or "the message has no more numbers"


def _trim(text: str) -> str:
    text = text.split("]: ", 1)[-1] if text.startswith("[rank") else text
    return text if len(text) <= 200 else text[:197] + "..."
