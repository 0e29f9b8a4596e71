"""What PyTorch's NCCL watchdog prints when a collective timed out: who waited in which call, and how far each
rank got.

The ranks that print a timeout are those that waited: the culprit is the one that is behind them, or that says
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.model.observations import CollectiveTimedOut, Observation, WatchdogState

# torch 2.11.0, NCCL 2.28.9, two H200, 2026-11-20 (before the ]: [rank0]:[E1120 22:50:13.696955209
# ProcessGroupNCCL.cpp:689):
#   [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=22, OpType=ALLREDUCE, NumelIn=1048576,
#   NumelOut=1048576, Timeout(ms)=30000) ran for 30031 milliseconds before timing out.
_TIMED_OUT = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,64}), "
    r"NumelIn=(\d{1,18}), NumelOut=(\d{1,18}), Timeout\(ms\)=\d{1,18}\) ran for (\d{1,18}) milliseconds"
)
# The same run; of the rank that did not come to the call:
#   [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a collective timeout from  rank 0 and we will try our
#   best to dump the debug info. Last enqueued NCCL work: 21, last completed NCCL work: 21.
_STATE = re.compile(
    r"\[PG ID (\d{1,9}) PG GUID ([^\s(]{1,64})\(([^)]{0,128})\) Rank (\d{1,7})\].{1,300}?"
    r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18}), last completed (?:NCCL )?work: (-?\d{1,18})"
)


# One of these stands in each line that tells something here: what a large log is searched for.
WORDS = ("Watchdog caught", "ast enqueued")


def read_line(text: str, rank: int | None) -> Iterator[Observation]:
    """`rank` is that of the line's prefix or file. The [Rank n] in the text counts within the process group:
    for the default group it is the same, for others only the prefix tells."""
    if "Watchdog caught" in text:
        if match := _TIMED_OUT.search(text):
            who = rank if rank is not None else int(match[1])
            yield CollectiveTimedOut(
                who, int(match[2]), match[3].lower(), int(match[4]), int(match[5]), int(match[6]) / 1000
            )
    elif "ast enqueued" in text:
        match = _STATE.search(text)
        if match and (rank is not None or match[3] == "default_pg"):
            who = rank if rank is not None else int(match[4])
            yield WatchdogState(who, match[2], match[3], int(match[5]), int(match[6]))
