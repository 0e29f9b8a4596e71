"""Ranks that wait in init_process_group for each other and never meet: one was started again, its peers go on in the processes
that they had, and each side has its own idea of where they meet next; or all were, and find what the attempt before left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from diag.detectors.hang.partings import path_of
from diag.detectors.hang.verdict import Verdict, blaming, format_who
from diag.model import Confidence, numbered
from diag.model.observations import ProgramPlace
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_ranks, format_seconds

_MEETS = "init_process_group"
_MOST_PIDS = 4
_TICKS = 100  # a second, in /proc/PID/stat (USER_HZ)


def with_generations(verdict: Verdict, job: JobView) -> Verdict:
    """Where all ranks of the job are in init_process_group, and only some of them in a process that was started again: ranks
    that go by one store and one prefix meet there at once."""
    ranks = job.alive_ranks()
    if (
        verdict.klass not in ("rendezvous", "comm_init")
        or verdict.culprits
        or len(ranks) < max(2, job.world_size)
    ):
        return verdict
    if not all(
        rank.judged is not None and any(one.function == _MEETS for one in rank.judged.frames)
        for rank in ranks
    ):
        return verdict
    before = {one.rank for one in job.ranks.past}
    anew = [rank for rank in ranks if rank.rank in before]
    kept = [rank for rank in ranks if rank.rank not in before]
    if anew and not kept:
        return _all_anew(verdict, anew, job)
    if not anew or not _seconds_apart(anew, kept):
        return verdict
    culprits = tuple(rank.rank for rank in anew)
    apart = format_seconds(_seconds_apart(anew, kept))
    words = (
        f"{format_who(culprits, '[runs|run]')} in {numbered('[a process|processes]', len(anew))} {_pids(anew)} started {apart} "
        f"after those of {format_ranks(tuple(rank.rank for rank in kept))} "
        f"{_pids(kept)}, and all wait in {_MEETS}"
    )
    differs = next(_differing(ranks, job), "")
    sure = Confidence.HIGH if differs else Confidence.MEDIUM
    words = ", ".join(filter(None, (words, differs)))
    return replace(
        blaming(verdict, culprits, "rendezvous", "started_again_alone", sure, words=words),
        chain=None,
        reason=None,
    )


def _all_anew(verdict: Verdict, anew: list[RankView], job: JobView) -> Verdict:
    failed = [one for one in job.ranks.past if one.failed and not one.was_ended]
    if not failed:
        return verdict
    last = max(failed, key=lambda one: one.exited_at or 0.0)
    words = f"they run in processes {_pids(anew)} started again after {format_ranks((last.rank,))} {_pids([last])} had failed"
    return replace(verdict, cause="started_again_together", words=words, chain=None, reason=None)


def _seconds_apart(anew: list[RankView], kept: list[RankView]) -> float:
    """From the last start of the one to the first of the other, on one machine; 0 where that is not after it."""
    if len({rank.placement.host for rank in (*anew, *kept)}) > 1:
        return max(0.0, min(rank.found_at for rank in anew) - max(rank.found_at for rank in kept))
    first = min(rank.placement.start_ticks for rank in anew)
    return max(0, first - max(rank.placement.start_ticks for rank in kept)) / _TICKS


def _pids(ranks: list[RankView]) -> str:
    shown = ", ".join(str(rank.placement.pid) for rank in ranks[:_MOST_PIDS])
    return f"({numbered('[pid|pids]', len(ranks))} {shown}{', ...' if len(ranks) > _MOST_PIDS else ''})"


def _differing(ranks: list[RankView], job: JobView) -> Iterator[str]:
    """Numbers and texts of which the place where they meet is made, as far as the text of that line shows."""
    read = {rank.rank: _values(rank, job) for rank in ranks}
    own = path_of(ranks[0].judged)
    place = job.program.at(own[-1]) if own else None
    names = dict.fromkeys(name for values in read.values() for name in values)
    for name in names:
        texts: dict[str, list[int]] = {}
        for number, values in read.items():
            texts.setdefault(values.get(name, ""), []).append(number)
        of_rank = all(text == str(of[0]) for text, of in texts.items())
        if len(texts) != 2 or "" in texts or of_rank or not _is_used(name, place):
            continue
        parts = [f"{text} on {format_ranks(tuple(of))}" for text, of in texts.items()]
        yield f"`{name}` was {' and '.join(parts)} when read"


def _is_used(name: str, place: ProgramPlace | None) -> bool:
    texts = (place.text, *(one.text for one in place.names)) if place is not None else ()
    return any(re.search(rf"(?<![\w.]){re.escape(name)}\b", text) for text in texts)


def _values(rank: RankView, job: JobView) -> Mapping[str, str]:
    """Of the innermost function of the program's own."""
    own = path_of(rank.judged)
    read = job.program.variables(rank.rank, rank.placement.pid)
    return {
        one.name: one.text
        for frame in (read.frames if read is not None else ())
        if own and not frame.called and (frame.file, frame.function) == (own[-1].file, own[-1].function)
        for one in frame.variables
        if not one.text.startswith("<")
    }
