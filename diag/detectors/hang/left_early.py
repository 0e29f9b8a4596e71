"""Ranks that poll in a loop of their own, without a process group: whether one that has ended is what they look for."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.partings import head_of, path_of
from diag.detectors.hang.reasons import POLLS
from diag.detectors.hang.verdict import Verdict
from diag.model import Confidence
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_ranks

# Ours: whoever went on for longer after that one had ended did not need it.
_SOON_SECONDS = 30.0
_OUTWARDS = 3  # own frames in which the loop is sought


def with_ended_ranks(verdict: Verdict, job: JobView) -> Verdict:
    """All others look for the same thing since a rank ended well. One rank that works on alone after the others, and
    ranks that look for different things, tell nothing: they wait for somebody outside."""
    pollers = [job.ranks[number] for number in verdict.culprits if number in job.ranks]
    if verdict.cause not in POLLS or verdict.waiting or len(pollers) < 2:
        return verdict
    places = {(frame.file, frame.function) for rank in pollers for frame in path_of(rank.judged)[-1:]}
    ended = tuple(sorted(rank.rank for rank in job.ranks.values() if _ended_well(rank, before=verdict.since)))
    if not ended or len(places) != 1:
        return verdict
    loop = _loop(pollers[0], job)
    since = max([verdict.since, *(job.ranks[number].exited_at or 0.0 for number in ended)])
    return replace(
        verdict,
        klass="peer_lost",
        culprits=ended,
        waiting=verdict.culprits,
        cause="left_while_others_poll",
        since=since,
        confidence=Confidence.MEDIUM,
        chain=None,
        by_kernel=False,
        reason=None,
        words=f"{format_ranks(verdict.culprits)} sleep again and again in the loop {loop}" if loop else "",
    )


def _ended_well(rank: RankView, before: float) -> bool:
    code = rank.exit.exit_code if rank.exit is not None else None
    return code == 0 and abs(before - (rank.exited_at or 0.0)) <= _SOON_SECONDS


def _loop(rank: RankView, job: JobView) -> str:
    for frame in reversed(path_of(rank.judged)[-_OUTWARDS:]):
        place = job.program.at(frame)
        loop = next((block for block in place.around if block.is_loop), None) if place is not None else None
        if loop is not None:
            return head_of(loop, frame.file, job.run.cwd)
    return ""
