"""A rank that has written into a file's mapping that is its own alone, while others, who have the file mapped too, look for
what it wrote."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.verdict import Note, Verdict, format_who, others
from diag.model import Confidence
from diag.model.observations import Mapped
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path, format_ranks


def with_private_map(verdict: Verdict, job: JobView) -> Verdict:
    """Of ranks that look again and again in a loop that others came past in the same round. One that has written into such a
    mapping itself no longer sees the file there, and is no proof against another."""
    if verdict.cause != "condition_was_met":
        return verdict
    polling = job.ranks.known(verdict.culprits)
    reads = [{one.path for one in _mapped(rank, job) if not one.written} for rank in polling]
    if not reads:
        return verdict
    common = set.intersection(*reads)
    writers: dict[str, list[int]] = {}
    for rank in job.ranks.known(verdict.waiting):
        for one in _mapped(rank, job):
            if one.path in common and one.private and one.written:
                writers.setdefault(one.path, []).append(rank.rank)
    if len(writers) != 1:
        return verdict
    (path, found), cwd = next(iter(writers.items())), job.run.cwd
    ranks = tuple(sorted(found))
    words = (
        f"{format_who(ranks, '[has|have]')} mapped {format_path(path, cwd)} privately (copy on write) and written there, which "
        f"reaches {'its' if len(ranks) == 1 else 'their'} own copy alone: {format_ranks(verdict.culprits)}, where that file is "
        "mapped as well, cannot see it"
    )
    looked = (Note("program", verdict.words, verdict.culprits[0]),) if verdict.words else ()
    everyone = tuple(sorted(verdict.everyone))
    return replace(
        verdict, cause="written_to_private_map", culprits=ranks, waiting=others(everyone, ranks), chain=None, reason=None,
        confidence=Confidence.MEDIUM, words=words,
    ).noted(Note("variables", words, ranks[0]), *looked)  # fmt: skip


def _mapped(rank: RankView, job: JobView) -> tuple[Mapped, ...]:
    read = job.program.variables(rank.rank, rank.placement.pid)
    return read.mapped if read is not None else ()
