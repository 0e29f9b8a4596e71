"""Who wrote a line of NCCL_DEBUG: what comes before its text, and the level. What the text means is left to
others."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from diag.model.observations import NcclFact, NcclLine
from diag.sources.payload import from_mapping

_MARK = " NCCL "
# a host name of 253, a path of 200, a timestamp of 256 (NCCL's own bound), and some prefix
_LONGEST_HEAD = 700
# NCCL's src/debug.cc, 2.18-2.31; after the mark " NCCL ":
#   2.18-2.31  gpu-node-0:2237:2237 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0>
#   2.18-2.25  gpu-node-0:812:955 [3] misc/socket.cc:484 NCCL WARN socketProgressOpt: ...
#   2.26-2.29  [2026-11-20 22:48:18] gpu-node-0:812:955 [3] misc/socket.cc:484 NCCL WARN socketProgressOpt: ...
#   2.30-2.31  [2026-11-20 22:48:18] gpu-node-0:812:955 [3] misc/socket.cc:484 (socketTryAccept) NCCL WARN ...
#   2.18-2.31  gpu-node-0:812:955 [3] 12.345678 ncclProxyProgress:484 NCCL TRACE ...  and  gpu-node-0:812:955 NCCL CALL ...
#   plugins    ip-10-0-0-1:79:79 [0] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI ...  and a head without [gpu]
# Before it is whatever else was written there: timestamps of NCCL_DEBUG_TIMESTAMP_FORMAT, [rank0]: and
# [default0]: of torchrun, "0: " of srun, "worker-0: " of kubectl, [1,0]<stdout>: of mpirun, half a progress
# bar.
_HEAD = re.compile(
    r"(?<![\w.-])([\w.-]{1,253}):(\d{1,10}):(\d{1,10})(?: \[(-?\d{1,4})\])?"
    r"(?: \d{1,12}\.\d{1,9})?(?: ([\w./+~-]{1,200}:\d{1,6})(?: \(\S{1,200}\))?)?$"
)
_SHORTEST_LEVEL, _LONGEST_LEVEL = 4, 8  # INFO ... VERSION

# NCCL at level VERSION or WARN, 2.18-2.31 (src/init.cc showVersion): no head at all, but maybe a prefix
#   NCCL version 2.21.5+cuda12.4
_BARE_VERSION = re.compile(
    r"(?:.{0,80}[\s:\]>])?(NCCL version \d{1,4}\.\d{1,4}\.\d{1,6}\S{0,40}\+cuda\d{1,3}\.\d{1,3})\s*"
)


def reads(
    kind: type[NcclFact], pattern: re.Pattern[str], **unnamed: object
) -> Callable[[NcclLine], NcclFact | None]:
    """A reader of texts that one pattern understands: its named groups are fields of the fact. `unnamed`: what a field
    is where the text has no such group."""

    def read(line: NcclLine) -> NcclFact | None:
        match = pattern.match(line.text)
        if match is None:
            return None
        named = {name: text for name, text in match.groupdict().items() if text is not None}
        return from_mapping(kind, {**unnamed, **named}, rank=line.rank, line=line)

    return read


class _Writer(NamedTuple):
    host: str
    pid: int
    tid: int
    gpu: int | None
    where: str


class Torn(NamedTuple):
    """A line into which another writer's was written: `first` as it begins; `last` began later and runs to
    the end."""

    first: NcclLine
    last: NcclLine


# The heads of a job's threads come again and again; those with a timestamp do not, and pass through.
@lru_cache(maxsize=8192)
def _writer(head: str) -> _Writer | None:
    match = _HEAD.search(head)
    if match is None:
        return None
    host, pid, tid, gpu, where = match.groups()
    return _Writer(host, int(pid), int(tid), int(gpu) if gpu is not None else None, where or "")


def split(text: str, rank: int | None) -> NcclLine | Torn | None:
    """None for a line that only speaks of NCCL (a continuation, a quotation), or is cut within its head."""
    at = text.find(_MARK)
    if at < 0:
        return None
    if text.find(_MARK, at + 5) < 0:
        return _line(text, 0, at, rank)
    return _one_of_several(text, rank)


def _line(text: str, begin: int, at: int, rank: int | None) -> NcclLine | None:
    """The line whose mark is at `at`, if what is between `begin` and it ends with a head."""
    writer = _writer(text[max(begin, at - _LONGEST_HEAD) : at])
    if writer is None:
        return None
    host, pid, tid, gpu, where = writer
    if text.startswith("INFO ", at + 6):
        return NcclLine(rank, host, pid, tid, gpu, "INFO", text[at + 11 :], where)
    level, space, message = text[at + 6 :].partition(" ")
    if (
        not space
        or not _SHORTEST_LEVEL <= len(level) <= _LONGEST_LEVEL
        or not (level.isascii() and level.isupper())
    ):
        return None
    return NcclLine(rank, host, pid, tid, gpu, level, message, where)


def _one_of_several(text: str, rank: int | None) -> NcclLine | Torn | None:
    """Several marks: NCCL speaks of itself ("NCCL INFO NCCL version"), or two ranks wrote into one line."""
    first: NcclLine | None = None
    last: NcclLine | None = None
    begin, at = 0, text.find(_MARK)
    while at >= 0:
        line = _line(text, begin, at, rank)
        if line is not None and first is None:
            first = line
        elif line is not None:
            last = line
        if line is not None:
            begin = at + 6
        at = text.find(_MARK, at + 5)
    if first is None or last is None:
        return first
    # "Channel 00gpu-node-0:3:4": the host begins later
    if last.host != first.host and last.host.endswith(first.host):
        last = NcclLine(rank, first.host, last.pid, last.tid, last.gpu, last.level, last.text, last.where)
    return Torn(first, last)


def bare_version(text: str, rank: int | None) -> NcclLine | None:
    """The one line that NCCL prints without a head. Nobody's pid (0): several ranks' lines are the same."""
    match = _BARE_VERSION.fullmatch(text) if "NCCL version " in text else None
    return NcclLine(rank, "", 0, 0, None, "VERSION", match[1]) if match else None
