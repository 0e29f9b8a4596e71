"""Two ranks of a communicator on one GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diag.detectors.network.evidence import line_evidence
from diag.model import JOB, Confidence, Finding, NotChecked, Severity
from diag.state.ncclprocess import NcclProcess
from diag.state.view import JobView
from diag.text.units import format_ranks


class DuplicateGpuDetector:
    """Meaning: two ranks of one communicator run on the same GPU, which NCCL refuses.

    Evidence: NCCL's `Duplicate GPU detected`; from 2.30 on `Multiple Ranks are using the same GPU/Partition`,
    which names nobody: then the GPUs that the communicator's members told.

    What to do: one GPU a rank: torch.cuda.set_device(LOCAL_RANK) before the first call, and as many GPUs as
    ranks on the node.

    False alarms: none known.
    """

    name = "duplicate-gpu"
    listens = ()

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
        who = format_ranks(ranks) if ranks else "two ranks of a communicator"
        yield Finding(
            id="duplicate-gpu",
            subject=JOB,
            severity=Severity.CRITICAL,
            confidence=Confidence.HIGH,
            ranks=ranks,
            since=process.told.get(fact.line, now),
            cause="same_gpu",
            summary=f"{who} are {where}{f' (PCI bus {bus})' if bus else ''}: NCCL refuses that",
            advice="Give each rank its own GPU: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first CUDA call, "
            "no more ranks on a node (NPROC_PER_NODE) than GPUs it shows (CUDA_VISIBLE_DEVICES, nvidia.com/gpu).",
            evidence=tuple(line_evidence(one.duplicates[0].line, one, one.rank, now) for one in refused[:3]),
            final=True,
        )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()


def _same_gpu(placed: dict[int, NcclProcess]) -> tuple[tuple[int, ...], str]:
    """Ranks that told one node and one PCI bus, and that bus."""
    there: dict[tuple[str, str], set[int]] = {}
    for rank, process in placed.items():
        for comm in process.communicators.values():
            if comm.bus_id:
                there.setdefault((process.node, comm.bus_id), set()).add(rank)
    shared = {key: ranks for key, ranks in there.items() if len(ranks) > 1}
    buses = {bus for _, bus in shared}
    return tuple(sorted(rank for ranks in shared.values() for rank in ranks)), buses.pop() if len(
        buses
    ) == 1 else ""
