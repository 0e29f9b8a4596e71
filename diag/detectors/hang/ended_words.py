"""What the advice of the catalogue may name of those that ended, and for whom somebody waits still: a worker, a consumer."""

from __future__ import annotations

from collections.abc import Callable

from diag.detectors.hang.verdict import Verdict
from diag.state.python_waits import python_wait
from diag.state.view import JobView


def _limit_of_queue(verdict: Verdict, job: JobView) -> str:
    """What keeps the next one from waiting at a queue for ever: only a put has a time limit."""
    rank = verdict.culprit(job)
    judged = rank.judged if rank is not None else None
    found = python_wait(judged) if judged is not None else None
    if found is not None and found.kind == "queue_join":
        return "call task_done in a finally block, and see before the join whether the thread that takes is alive"
    return "give the put a timeout"


def _its_exception(verdict: Verdict, job: JobView) -> str:
    """Of a thread that has ended, and whose exception an object may keep."""
    if " keeps the exception " in verdict.words:
        return "Mend what raised the exception that is shown above"
    return "Look for its exception (also one that it caught and only logged)"


def _why_it_ended(verdict: Verdict, job: JobView) -> str:
    """Of a process that is gone: what to look at, by what is known of its end."""
    if "SIGKILL (out of memory)" in verdict.words:
        return (
            "the kernel ended it for memory: run fewer of its kind at one time, or give each a smaller task"
        )
    if " of SIG" in verdict.words:
        return (
            "it crashed in native code. PYTHONFAULTHANDLER=1 prints the Python stack of that: look at that line for what is "
            "passed to C (an offset, a length, a file that is cut off), or for a library that does not fit"
        )
    if "RLIMIT_CPU" in verdict.words:
        return "the limit of CPU time shown may have ended it (`ulimit -t`)"
    return "see why it ended by its own lines in the output, and by the kernel's log (`dmesg`) where that may be read"


ENDED_FACTS: dict[str, Callable[[Verdict, JobView], str]] = {
    "its_exception": _its_exception,
    "limit_of_queue": _limit_of_queue,
    "why_it_ended": _why_it_ended,
}
