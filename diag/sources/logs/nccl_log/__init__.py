"""Lines of NCCL_DEBUG: each one split (host, pid, tid, GPU, level, text), and what it says as one typed fact.

`head` splits; `setup`, `communicators` and `errors` read the texts, found by their first word. Most lines
(channels within a node, trees) decide nothing: `plain_runs` finds runs of them in whole text, and one alone costs
no regular expression. The wordings are those of NCCL 2.18-2.31, read in the sources and in the strings of the
released libraries; others' nets (HPC-X, aws-ofi-nccl) and RCCL keep NCCL's head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from diag.model.observations import NcclFact, NcclLine, Observation
from diag.sources.logs.nccl_log import communicators, errors, setup
from diag.sources.logs.nccl_log.errors import driver_missing
from diag.sources.logs.nccl_log.head import Torn, bare_version, split

__all__ = ["driver_missing", "plain_runs", "read_line"]

# a path of NCCL's sources with its line; what is remembered of a stranger's text stays small
_LONGEST_WORD = 240
_Reader = Callable[[NcclLine], NcclFact | None]


def read_line(text: str, rank: int | None) -> Sequence[Observation]:
    """The line and at most one fact. A line that says NCCL and has no NCCL head (a quotation) gives nothing.

    Of two writers' lines in one the first is the line (its text is both), and the fact is the last's, which
    is whole.
    """
    found = split(text, rank) or bare_version(text, rank)
    if found is None:
        return ()
    line, whole = found if isinstance(found, Torn) else (found, found)
    read = _reader(whole.text[:_LONGEST_WORD].partition(" ")[0])
    fact = read(whole) if read is not None else None
    return (line,) if fact is None else (line, fact)


def _net_ib(line: NcclLine) -> NcclFact | None:
    message = line.text.partition(":")[2].strip()
    return setup.ib_setup(line, message) or errors.ib_error(line, message) or setup.gpu_direct(line)


def _net_or_peer(line: NcclLine) -> NcclFact | None:
    return setup.net_interface(line) or errors.peer(line)


_READERS: dict[str, _Reader] = {
    **setup.READERS,
    **communicators.READERS,
    **errors.READERS,
    "Net": _net_or_peer,
}


@lru_cache(maxsize=4096)
def _reader(word: str) -> _Reader | None:
    """Who reads a text that begins with this word; None for one that has no fact."""
    read = _READERS.get(word)
    if read is not None:
        return read
    if word.startswith("NET/IB"):
        return _net_ib
    if word.startswith("NET/"):
        return setup.gpu_direct
    if word.startswith(("NCCL_", "RCCL_", "UCX_", "SHARP_")):
        return setup.variable
    if word.startswith("ncclComm"):
        return communicators.communicator
    if "ocket" in word and word.startswith(("socket", "nccl")):
        return errors.peer
    if word[-1:].isdigit() and ":" in word:
        return errors.result
    return None


# --- runs of lines that show nothing but that it is at work (rings, trees, channels within a node): most of what
# --- NCCL_DEBUG=INFO prints. Found with one regular expression and four counts, at C speed, and kept as one piece

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
