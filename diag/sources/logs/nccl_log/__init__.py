"""Lines of NCCL_DEBUG: each one split (host, pid, tid, GPU, level, text), and what it says as one typed fact.

`head` splits; `setup`, `communicators` and `errors` read the texts, found by their first word. Most lines
(channels within a node, trees) decide nothing: `plain` finds runs of them in whole text, and one alone costs
no regular expression. The wordings are those of NCCL 2.18-2.31, read in the sources and in the strings of the
released libraries; others' nets (HPC-X, aws-ofi-nccl) and RCCL keep NCCL's head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from diag.model.observations import NcclFact, NcclLine, Observation
from diag.sources.logs.nccl_log import communicators, errors, setup
from diag.sources.logs.nccl_log.errors import driver_missing
from diag.sources.logs.nccl_log.head import Torn, bare_version, split
from diag.sources.logs.nccl_log.plain import plain_runs

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
    said = line.text.partition(":")[2].strip()
    return setup.ib_setup(line, said) or errors.ib_error(line, said) or setup.gpu_direct(line)


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
