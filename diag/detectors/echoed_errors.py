"""Lines that only look like an error: a sample of the data that a trainer prints, an example. Shared by
detectors."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from diag.knowledge.tracebacks import FRAME, PREFIX
from diag.state.rank_view import RankView
from diag.state.view import JobView

_UNCAUGHT = re.compile(
    r"^\[rank\d{1,6}\]: ?(?:[\w.]{1,200}\.)?[A-Z]\w{0,100}(?:Error|Exception|Interrupt|Exit)\b"
)
# What a rank prints when ANOTHER one went away (gloo of torch 2.13, 2026-11-21; NCCL 2.28.9 and c10d of torch
# 2.11):
#   RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:17577. ...
#   ... NCCL WARN [Service thread] Accept failed Resource temporarily unavailable / ncclRemoteError
#   torch.distributed.DistNetworkError: failed to recv, got 0 bytes
# One that never had a connection lost none (torch 2.2-2.13):
#   torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (node-0, 29500).
#   torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, ...
CASCADE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|ncclRemoteError"
    r"|DistNetworkError(?!: The (?:client|server) socket)|Watchdog caught collective operation timeout"
    r"|recvValue failed|Socket Timeout"
)
# Between the last frame and the exception: its source, the carets, a message of several lines.
_TRACED_LINES = 8
_LONGEST = 500
_MOST_RANKS = 32  # the first that failed
# ranks that fail wait for each other, then torchelastic ends them
_JUST_BEFORE_SECONDS, _BEFORE_DEATH_SECONDS = (5.0, 120.0)


def failed_soon(job: JobView, at: float) -> bool:
    """Whether the job, or a rank, failed soon after this moment, or may have, where its end is not known: what a
    program survives is no failure."""
    if job.run.end_unknown and job.returncode is None:
        return True
    ends = [
        rank.exited_at
        for rank in (*job.ranks.values(), *job.ranks.past)
        if rank.failed and rank.exited_at is not None
    ]
    if job.returncode not in (None, 0) and job.run.ended_at is not None:
        ends.append(job.run.ended_at)
    return any(-_JUST_BEFORE_SECONDS <= end - at <= _BEFORE_DEATH_SECONDS for end in ends)


def is_traced(above: Iterable[str]) -> bool:
    """Whether the last of these lines, oldest first, are of a traceback: the line below them is an
    exception's."""
    return any(FRAME.match(PREFIX.sub("", line[:_LONGEST])) for line in list(above)[-_TRACED_LINES:])


def only_quoted(job: JobView, text: str, ranks: Iterable[RankView] | None = None) -> bool:
    """Whether the ranks that failed (or these) died of something else by their own last lines.

    ms-swift prints a sample of the data at the start, and such data hold whole errors of other people's jobs.
    What a rank dies of has torch's prefix or is under a traceback.
    """
    if PREFIX.match(text):
        return False
    beginning = text.strip()[:80]
    asked = ranks if ranks is not None else (*job.ranks.values(), *job.ranks.past)
    failed = sorted((one for one in asked if one.failed), key=lambda one: one.exited_at or 0.0)[:_MOST_RANKS]
    last = [
        line
        for rank in failed
        if rank.exit is None or rank.exit.signal not in (signal.SIGTERM, signal.SIGINT)
        for line in list(rank.tail)
        if _UNCAUGHT.match(line) and not CASCADE.search(line[:_LONGEST])
    ]
    if not last or any(beginning in line for line in last):
        return False
    return not any(
        line == text and is_traced(tail[:place])
        for tail in map(list, (job.log.tail, *(rank.tail for rank in failed)))
        for place, line in enumerate(tail)
    )
