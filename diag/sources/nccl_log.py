"""Lines of NCCL_DEBUG: split into host, pid, tid, GPU, level and text. What they mean is left to detectors."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.observations import NcclLine, Observation

__all__ = ["read_line"]

# NCCL 2.28.9, captured on 2 x H200, 2026-11-20:
#   gpu-node-0:2237:2237 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0>
# NCCL 2.18-2.31 may put a timestamp before it (NCCL_DEBUG_TIMESTAMP_FORMAT) and, for WARN, a line break:
#   [2026-11-20 22:48:18] gpu-node-0:812:955 [3] src/misc/socket.cc:484 NCCL WARN socketProgressOpt: ...
_LINE = re.compile(
    r"(?:\[[^\]]{0,40}\] )?(?<![\w.-])(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) "
    r"(?:\[(?P<gpu>-?\d{1,4})\] )?(?P<at>[\w./+-]{1,120}:\d{1,6} )?NCCL (?P<level>[A-Z]{4,8}) (?P<text>.*)"
)


def read_line(text: str, rank: int | None) -> Iterator[Observation]:
    """A line that says NCCL and has no NCCL head (a continuation, a quotation) yields nothing."""
    if " NCCL " not in text:
        return
    match = _LINE.search(text)
    if match is None:
        return
    gpu = match["gpu"]
    yield NcclLine(
        rank,
        match["host"],
        int(match["pid"]),
        int(match["tid"]),
        int(gpu) if gpu is not None else None,
        match["level"],
        (match["at"] or "") + match["text"],
    )
