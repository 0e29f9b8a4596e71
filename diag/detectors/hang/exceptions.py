"""The error behind a wait: the exception in whose handler a thread waits, and those that the objects at which it waits keep
for whoever asks. Read from memory, with the line that raised each."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.program_lines import thread_of
from diag.detectors.hang.raised import format_kept, format_raised, handled_in, kept_in
from diag.detectors.hang.verdict import Note, Verdict
from diag.model.observations import Raised
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame
from diag.state.view import JobView

_MOST_EVIDENCE = 4  # frames of a traceback


def with_exceptions(verdict: Verdict, job: JobView) -> Verdict:
    """Of the first culprit, in the thread that waits. Unchanged where it computes: then nothing is left to be asked for."""
    rank = verdict.culprit(job)
    thread = thread_of(rank, verdict) if rank is not None else None
    if rank is None or thread is None or verdict.is_of("computes", "child_computes"):
        return verdict
    pid = _pid_of(rank, verdict)
    read = job.program.variables(rank.rank, pid)
    if read is None:
        return verdict
    cwd = job.run.cwd
    clauses = []
    if (caught := handled_in(read, thread)) is not None:
        clauses.append(f"the exception that it has caught is {format_raised(caught, cwd)}")
    kept = next(kept_in(read, thread), None)
    if kept is not None and caught != kept and f"`{kept.name}` keeps" not in verdict.words:
        clauses.append(format_kept(kept, cwd))
    notes = [
        Note("variables", f"{one.error}: {path}", rank.rank)
        for one in (caught, kept)
        if one is not None and (path := _path(one, cwd))
    ]
    words = ", and ".join(filter(None, (verdict.words, *clauses)))
    return replace(verdict, words=words).noted(*notes)


def _path(one: Raised, cwd: str) -> str:
    return " < ".join(format_frame(frame, cwd) for frame in reversed(one.frames[-_MOST_EVIDENCE:]))


def _pid_of(rank: RankView, verdict: Verdict) -> int:
    return verdict.blamed_child or rank.placement.pid
