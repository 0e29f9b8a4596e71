"""Two ranks of a communicator on one GPU."""

from __future__ import annotations

from collections.abc import Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, who
from diag.detectors.network.evidence import line_evidence
from diag.model import Finding
from diag.state.ncclprocess import NcclProcess
from diag.state.view import JobView


class DuplicateGpuDetector(Detector):
    name = "duplicate-gpu"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        refused = [process for process in job.nccl_processes.living() if process.duplicates]
        if not refused:
            return
        process = refused[0]
        fact = process.duplicates[0]
        world = job.nccl_processes.world_size() or job.world_size
        whole = all(comm.size == world for comm in process.communicators.values())
        ranks, bus = _same_gpu(job.nccl_processes.placed())
        if not ranks and whole and fact.comm_rank >= 0:
            ranks, bus = tuple(sorted((fact.comm_rank, fact.other_rank))), fact.bus_id
        where = "on one GPU" if len(ranks) < 3 else "two or more to a GPU"
        slot = f" (PCI bus {bus})" if bus else ""
        yield finding(
            self.name,
            "same_gpu",
            ranks=ranks,
            since=process.told.get(fact.line, now),
            summary=f"{who(ranks, 'two ranks of a communicator')} are {where}{slot}: NCCL refuses that",
            evidence=[line_evidence(one.duplicates[0].line, one, one.rank, now) for one in refused[:3]],
        )


def _same_gpu(placed: dict[int, NcclProcess]) -> tuple[tuple[int, ...], str]:
    """Ranks that reported one node and one PCI bus, and that bus."""
    there: dict[tuple[str, str], set[int]] = {}
    for rank, process in placed.items():
        for comm in process.communicators.values():
            if comm.bus_id:
                there.setdefault((process.node, comm.bus_id), set()).add(rank)
    shared = {key: ranks for key, ranks in there.items() if len(ranks) > 1}
    buses = {bus for _, bus in shared}
    ranks = tuple(sorted(rank for there in shared.values() for rank in there))
    return ranks, buses.pop() if len(buses) == 1 else ""
