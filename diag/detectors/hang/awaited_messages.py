"""Ranks that wait for a send or receive which they began before (isend, irecv): the wait itself is C code without a name,
and gloo's recorder keeps no such call; the program's text tells what is waited for."""

from __future__ import annotations

import re

from diag.detectors.hang.partings import path_of
from diag.detectors.hang.rank_wait import classify_rank
from diag.state.rank_view import RankView
from diag.state.view import JobView

_BEGINS = re.compile(r"\b(?:isend|irecv|batch_isend_irecv|P2POp)\b")  # of torch.distributed
_WAITS = re.compile(r"\.wait\(")


def standing_of(rank: RankView, job: JobView) -> str:
    """That of its stack; "joined" also where the text says that it waits for a peer."""
    found = classify_rank(rank)
    return "joined" if found in ("outside", "gpu") and awaited_message(rank, job) else found


def awaited_message(rank: RankView, job: JobView) -> str:
    """The statement that began it; empty where it waits for something else, or that is not known."""
    thread = rank.judged
    own = path_of(thread)
    if thread is None or not own or thread.frames[-1] != own[-1]:
        return ""  # what is called there has frames of its own
    place = job.program.at(own[-1])
    if place is None or not _WAITS.search(place.text):
        return ""
    made = place.made or place.text
    return made if _BEGINS.search(made) else ""
