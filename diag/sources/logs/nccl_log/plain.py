"""Runs of NCCL's lines that show nothing but that it is at work (rings, trees, channels within a node), found
in whole text.

They are most of what NCCL_DEBUG=INFO prints. A run is found with one regular expression and four counts, at C
speed, and is kept as one piece from there on; its lines are those for which no reader would be found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SHORTEST_RUN = 3  # fewer lines are as cheap one by one
_MARK = " NCCL INFO Channel "
# NCCL 2.28.9, captured on 2 x H200, 2026-11-20 (in 2.18-2.31 the same):
#   gpu-node-0:566:566 [0] NCCL INFO Channel 00/24 : 0 1
#   gpu-node-0:566:566 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
#   gpu-node-0:566:566 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1
#   gpu-node-0:566:595 [0] NCCL INFO [Proxy Service] Device 0 CPU core 27
#   gpu-node-0:566:566 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, ...
# A channel "via NET/" ends the run: of those within a node (P2P/CUMEM, P2P/IPC/read, SHM/direct) none has an
# N.
_RUN = re.compile(
    r"(?:[^ ]+ \[[^ ]+ NCCL INFO (?:Channel [^N\n]*\n|(?:Trees|threadThresholds|\[Proxy|MNNVL|P2P Chunksize|Check P2P|CC"
    r"|Comm config Blocking|cudaDriverVersion|\d{1,4} coll) [^\n]*\n))+"
)


def plain_runs(text: str) -> Iterator[tuple[int, int]]:
    """Where runs begin and end in `text`, whose lines all end in a line feed."""
    at = 0
    while True:
        hit = text.find(_MARK, at)
        if hit < 0:
            return
        match = _RUN.match(text, max(text.rfind("\n", at, hit) + 1, at))
        if match is None:
            at = text.find("\n", hit) + 1 or len(text)
            continue
        begin, at = match.span()
        if _is_plain(match[0]):
            yield begin, at


def _is_plain(run: str) -> bool:
    """Whether nothing else is in it: a line torn by another writer's, a prefix that shows the rank."""
    lines = run.count("\n")
    return (
        lines >= _SHORTEST_RUN
        and "[rank" not in run
        and "\r" not in run
        and run.count(" NCCL ") == lines
        and run.count(":") == 2 * lines + run.count(_MARK)  # two in each head, one behind a channel
    )
