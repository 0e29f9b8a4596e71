"""Who may have stopped a rank: a process of the job whose script stops others."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.partings import head_of
from diag.detectors.hang.verdict import Note, Verdict
from diag.model.observations import ProgramRead
from diag.state.view import JobView
from diag.text.units import format_path

_MOST = 2
ADVICE = (
    "By its text the process shown stops others and may have stopped this one: see why it did, and what would have made it go on "
    "(a stopped process frees nothing and reaches nothing by itself). End it first, or it may stop the rank again."
)


def with_stopper(verdict: Verdict, job: JobView) -> Verdict:
    """As far as scripts were read. The kernel does not keep who sent a signal."""
    if verdict.cause != "sigstop" or not job.program.stoppers:
        return verdict
    texts = [_sends(one, job) for one in job.program.stoppers[:_MOST]]
    words = ", and ".join(filter(None, (verdict.words, *texts)))
    notes = [Note("program", text) for text in texts]
    return replace(verdict, words=words, origin=verdict.origin or ADVICE).noted(*notes)


def _sends(read: ProgramRead, job: JobView) -> str:
    first = read.statements[0]
    cwd = job.run.cwd
    text = (
        f"pid {read.pid} (`{read.command}`) stops processes by `{first.text}` "
        f"({format_path(first.file, cwd)}:{first.line})"
    )
    return f"{text} under {head_of(first.around[0], first.file, cwd)}" if first.around else text
