"""What findings about the network share: NCCL's lines as evidence, and what to change where a rank runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from diag.detectors.findings import load, row, with_words
from diag.model import Evidence
from diag.model.observations import NcclLine
from diag.state.ncclprocess import NcclProcess
from diag.state.view import JobView
from diag.text.units import format_ranks


def line_evidence(line: NcclLine, process: NcclProcess | None, rank: int | None, at: float = 0.0) -> Evidence:
    """The line with its head, at the time at which it came (`at` where that was not kept). A rank below 0 is
    none."""
    where = f"{line.where} " if line.where else ""
    came = process.told.get(line, at) if process is not None else at
    return Evidence(
        "nccl",
        f"{line.host}:{line.pid} {where}NCCL {line.level} {line.text}"[:500],
        came,
        rank if rank is None or rank >= 0 else None,
    )


def who(ranks: Sequence[int], others: Sequence[NcclProcess]) -> str:
    """Ranks, and the processes whose rank is not known.

    >>> who([0, 1], [])
    'ranks 0-1'
    >>> who([], [NcclProcess("node-b", 7), NcclProcess("node-b", 8)])
    '2 processes on node-b'
    """
    parts = [format_ranks(ranks)] if ranks else []
    if others:
        hosts = sorted({process.host for process in others})
        shown = ", ".join(hosts[:4]) + (" ..." if len(hosts) > 4 else "")
        parts.append(f"{len(others)} process{'es' if len(others) > 1 else ''} on {shown}")
    return " and ".join(parts)


def place_of(job: JobView, rank: int) -> Mapping[str, str]:
    """How to change things where this rank runs (kubernetes, docker, podman, slurm, else bare or not known):
    words for the advice of a finding."""
    state = job.ranks.get(rank)
    place = ""
    if state is not None and state.rdma is not None and state.rdma.container:
        place = state.rdma.container
    elif state is not None and "KUBERNETES_SERVICE_HOST" in state.variables:
        place = "kubernetes"
    elif state is not None and "SLURM_JOB_ID" in state.variables:
        place = "slurm"
    return cast("Mapping[str, str]", load("network/places.yaml")[place])


def advice_for(cause: str, job: JobView, rank: int) -> str:
    """The remedy for a cause of docs/reference/network.md, for the place where this rank runs."""
    return with_words(row("ib-fallback", cause)["advice"], place_of(job, rank))
