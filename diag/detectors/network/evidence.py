"""Lines of NCCL as evidence."""

from __future__ import annotations

from collections.abc import Sequence

from diag.model import Evidence
from diag.model.observations import NcclLine
from diag.state.ncclprocess import NcclProcess
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
