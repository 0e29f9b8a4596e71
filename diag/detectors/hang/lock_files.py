"""Who made the file that ranks wait to go away: by the number of a process that is written in it."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.verdict import Note, Verdict
from diag.model.observations import Mark
from diag.state.view import JobView
from diag.text.units import format_seconds

_POLLS = "polls_for_lock_file"
_ENDED = ("gone", "replaced")


def with_lock_file(verdict: Verdict, job: JobView) -> Verdict:
    """By the variables of the first culprit; where nobody is to blame, of the first rank."""
    everybody = verdict.everyone
    rank = job.ranks.get(everybody[0]) if everybody and verdict.cause == _POLLS else None
    read = job.program.variables(rank.rank, rank.placement.pid) if rank is not None else None
    if rank is None or read is None or not read.marks:
        return verdict
    mark = next((one for one in read.marks if one.state in _ENDED), read.marks[0])
    owner = next(
        (one.rank for one in job.ranks.values() if one.placement.pid == mark.pid and one.alive), None
    )
    text = _words(mark, owner, job.run.cwd)
    words = ", and ".join(filter(None, (verdict.words, text)))
    described = replace(verdict, words=words).noted(Note("variables", text, rank.rank))
    return (
        replace(described, cause="lock_file_left_behind", reason=None) if mark.state in _ENDED else described
    )


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
