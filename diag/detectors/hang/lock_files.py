"""Who made the file that ranks wait to go away: by the number of a process that is written in it, or its age."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.partings import path_of
from diag.detectors.hang.verdict import Note, Verdict
from diag.model.observations import Mark, VariablesRead
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_seconds

_POLLS = "polls_for_lock_file"
_ENDED = ("gone", "replaced")
_STARTS_SECONDS = 5.0  # a rank is found so long after its start
ADVICE = (
    "The file that is waited for to go away is none of a rank's that runs now: an attempt or a job before this one has left it. "
    "See that nobody else uses it (another job, another machine), then delete it."
)


def with_lock_file(verdict: Verdict, job: JobView) -> Verdict:
    """By the variables of the first culprit; where nobody is to blame, of the first rank."""
    everybody = verdict.everyone
    rank = job.ranks.get(everybody[0]) if everybody and verdict.cause == _POLLS else None
    read = job.program.variables(rank.rank, rank.placement.pid) if rank is not None else None
    if rank is None or read is None or not read.marks:
        return verdict
    numbered = [one for one in read.marks if one.pid]
    if not numbered:
        return _with_old_file(verdict, read, rank, job)
    mark = next((one for one in numbered if one.state in _ENDED), numbered[0])
    owner = next(
        (one.rank for one in job.ranks.values() if one.placement.pid == mark.pid and one.alive), None
    )
    text = _words(mark, owner, job.run.cwd)
    words = ", and ".join(filter(None, (verdict.words, text)))
    described = replace(verdict, words=words).noted(Note("variables", text, rank.rank))
    return (
        replace(described, cause="lock_file_left_behind", reason=None) if mark.state in _ENDED else described
    )


def _with_old_file(verdict: Verdict, read: VariablesRead, rank: RankView, job: JobView) -> Verdict:
    """One that the innermost function names and that was there before any rank that runs now."""
    began = min((one.found_at for one in job.alive_ranks()), default=0.0)
    named = [
        variable.text
        for frame in read.frames
        if not frame.called and (own := path_of(rank.judged))
        if (frame.file, frame.function) == (own[-1].file, own[-1].function)
        for variable in frame.variables
    ]
    for mark in read.marks:
        path = mark.path.removeprefix(f"{job.run.cwd}/") if job.run.cwd else mark.path
        if not read.time or read.time - mark.age_seconds > began - _STARTS_SECONDS:
            continue
        if any(path in text or mark.path in text for text in named):
            text = f"{path} ({format_seconds(mark.age_seconds)} old when read) was there before any rank that runs now"
            words = ", and ".join(filter(None, (verdict.words, text)))
            return replace(verdict, words=words, origin=ADVICE).noted(Note("variables", text, rank.rank))
    return verdict


def _words(mark: Mark, owner: int | None, cwd: str) -> str:
    """ "cache/code.lock (2 min 3 s old when read) has the number of pid 812, and there is no such process any more"."""
    path = mark.path.removeprefix(f"{cwd}/") if cwd else mark.path
    older = " and older than this rank" if mark.older else ""
    whose = {
        "gone": f"pid {mark.pid}, and there is no such process any more",
        "replaced": f"pid {mark.pid}, which is another process since",
        "lives": f"pid {mark.pid}, which is running" + (f" (rank {owner})" if owner is not None else ""),
    }.get(mark.state, f"pid {mark.pid}")
    return f"{path} ({format_seconds(mark.age_seconds)} old when read{older}) has the number of {whose}"
