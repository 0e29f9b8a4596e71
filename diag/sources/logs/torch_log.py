"""Lines of PyTorch and torchelastic: which worker failed, with what exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.model.observations import Observation, WorkerFailureReported, WorkerNamed

# torch 2.4-2.13 prefix each line of an uncaught exception and of the C++ log with the rank:
#   [rank1]: RuntimeError: DataLoader worker (pid 20352) is killed by signal: Killed.
#   [rank1]:[W1120 22:48:19.163027360 WorkerServer.cpp:155] [c10d] Server listening to TCP :::0
# torchrun --tee prefixes with the role and the LOCAL rank ([default1]:), which is not a rank: not taken.
_RANK_PREFIX = re.compile(r"^\[rank(\d{1,6})\]:")

# torch 2.13.0 elastic agent, captured on two gloo ranks, 2026-11-21:
#   E1121 00:37:02.756000 20337 .../multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 20342) of binary: ...
_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,9}) \(pid: (\d{1,9})\)")

# The table that torchrun prints last (ChildFailedError), same capture:
#     rank      : 1 (local_rank: 1)
#     exitcode  : -15 (pid: 20341)  (SIGTERM)
_TABLE_RANK = re.compile(r"^\s+rank\s+: (\d{1,9}) \(local_rank: \d{1,9}\)")
_TABLE_EXIT = re.compile(r"^\s+exitcode\s+: (-?\d{1,9}) \(pid: (\d{1,9})\)")


# One of these stands in each line that tells something here: what a large log is searched for.
WORDS = ("[rank", "exitcode", "local_rank")


def rank_of_line(text: str) -> int | None:
    """The rank that torch put before the line, if it did."""
    if not text.startswith("[rank"):
        return None
    match = _RANK_PREFIX.match(text)
    return int(match[1]) if match else None


def read_line(text: str, rank: int | None) -> Iterator[Observation]:
    if "exitcode" in text:
        if match := _FAILED.search(text):
            yield WorkerFailureReported(None, int(match[1]), int(match[3]), text.strip())
            return
        if match := _TABLE_EXIT.match(text):
            yield WorkerFailureReported(None, int(match[1]), int(match[2]), text.strip())
    elif "local_rank" in text and (match := _TABLE_RANK.match(text)):
        yield WorkerNamed(int(match[1]))
