"""What the advice of the catalogue may name of those that ended, and for whom somebody waits still: a worker, a consumer."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

from diag.detectors.hang.verdict import Verdict
from diag.state.python_waits import python_wait
from diag.state.rank_view import RankView
from diag.state.view import JobView

# Of signal(7): what a timer sends, which ends a process that has no handler for it; and what native code that crashes brings.
_TIMERS = ("SIGALRM", "SIGVTALRM", "SIGPROF")
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")
_OF_SIGNAL = re.compile(r" ended [^,;]*\bof (?P<name>SIG[A-Z0-9]+)")


def format_end(rank: RankView, pid: int, at: float) -> str:
    """ " of SIGALRM", " with exit code 3" of a process below the rank, missed at that time; empty where it is not known."""
    end = rank.end_of_child(pid, at)
    if end is None:
        return ""
    if end.signal is None:
        return f" with exit code {end.exit_code}"
    try:
        return f" of {signal.Signals(end.signal).name}"
    except ValueError:
        return f" of signal {end.signal}"


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
    if "RLIMIT_CPU" in verdict.words:
        return "the limit of CPU time shown may have ended it (`ulimit -t`)"
    found = _OF_SIGNAL.search(verdict.words)
    name = found["name"] if found is not None else ""
    if name in _TIMERS:
        return (
            f"{name} is what a timer sends (signal.alarm, setitimer), and ends a process that has no handler for it. A handler is "
            "the process's own: one that the parent has set is not there in a process that was spawned, or started anew: set it "
            "in that process itself (the initializer of a pool), or use another time limit"
        )
    if name == "SIGKILL":
        return (
            "SIGKILL comes from the kernel (short of memory: `dmesg`, memory.events of its cgroup; past the hard limit of CPU time: "
            "`ulimit -Ht`), or from somebody who called kill"
        )
    if name and name not in _CRASHES:
        return f"somebody has sent it {name}, or it has sent that to itself: look for who does"
    if name:
        return (
            "it crashed in native code. PYTHONFAULTHANDLER=1 prints the Python stack of that: look at that line for what is "
            "passed to C (an offset, a length, a file that is cut off), or for a library that does not fit"
        )
    return "see why it ended by its own lines in the output, and by the kernel's log (`dmesg`) where that may be read"


ENDED_FACTS: dict[str, Callable[[Verdict, JobView], str]] = {
    "its_exception": _its_exception,
    "limit_of_queue": _limit_of_queue,
    "why_it_ended": _why_it_ended,
}
