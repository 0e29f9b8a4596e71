"""What a rank printed last that shows why it ended: the exception that was not caught, or what native code prints
before it aborts.

Pure functions of lines. Which of them are a rank's own, where several share one output, is decided by `heard`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diag.detectors.echoed_errors import CASCADE
from diag.knowledge.tracebacks import CALL_STACK, CHAIN, FRAME, NOT_ITS_END, OF_LAUNCHER, PREFIX
from diag.state.rank_view import RankView
from diag.state.view import JobView

# The line of a traceback that names the exception: `[rank1]: RuntimeError: DataLoader worker (pid 20352) is
# killed ...`
NAMED = re.compile(r"^(?:\[rank\d+\]: ?)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.*")
# Below a traceback any name is one: `StopIteration`, `queue.Empty`, `mypkg.Broken: text` (CPython 3.8-3.14).
_RAISED = re.compile(r"(?:[A-Za-z_]\w{0,100}\.){0,12}[A-Za-z_]\w{0,100}(?:: .*|:)?$")
_HEAD = "Traceback (most recent call last):"
_STRANGERS = 8  # lines of others that may be between a frame and its exception

# libstdc++ 6-14, glibc 2.17-2.41, CPython 3.8-3.14, glog (`F1121 ... Check failed`), UCX 1.6-1.18:
#   [gpu-17:227  :0:227] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x28)
#   terminate called after throwing an instance of 'c10::Error'
#     what():  CUDA error: an illegal memory access was encountered
#   terminate called without an active exception
#   Fatal Python error: _enter_buffered_busy: could not acquire lock for <_io.BufferedWriter name='<stdout>'> at interpreter ...
#   free(): invalid pointer          double free or corruption (!prev)          malloc(): unaligned tcache chunk detected
#   python3: ../nptl/pthread_mutex_lock.c:94: ___pthread_mutex_lock: Assertion `mutex->__data.__owner == 0' failed.
NATIVE = re.compile(
    r"terminate called (?:after throwing|without an active)|Fatal Python error: |double free or corruption"
    r"|(?:free|malloc|realloc|munmap_chunk)\(\): |corrupted (?:size vs\. prev_size|double-linked list)"
    r"|\*\*\* stack smashing detected|Caught signal \d{1,2} \((?:Segm|Bus e|Illeg|Float|Abort)"
    r"|: Assertion `.{1,400}' failed\.|^F\d{4} \d\d:\d\d:\d\d.{1,200}Check failed"
)
_WHAT = re.compile(r"\s{1,4}what\(\): {1,4}(.+)")
# A shell's word for the death of a crashed process, which says nothing of why, and a line that does:
SHELL_S_WORD = re.compile(
    r"(?:Segmentation fault|Bus error|Aborted|Illegal instruction)(?: {1,9}\(core dumped\))?\s*$"
)
OF_FAILURE = re.compile(
    r"(?i)\b(?:fault|error|failed|fatal|abort(?:ed|ing)?|unable|cannot|invalid|illegal|corrupt\w*)\b"
)
CRASHES = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


@dataclass(frozen=True, slots=True)
class Heard:
    """`error`: the line that shows why it ended, "" where none does. `sentence`: the same in a sentence, or what
    is known instead."""

    error: str
    sentence: str
    lines: tuple[str, ...] = ()  # that hold the error, or the last ones where none does


def exceptions(lines: Iterable[str]) -> list[str]:
    """The lines that name an exception, oldest first: below frames whatever it is called, elsewhere by the
    usual endings."""
    found = []
    open_for, ignored, before = 0, False, ""
    for line in lines:
        text = PREFIX.sub("", line)
        if _HEAD in text:
            ignored, open_for = bool(NOT_ITS_END.search(before)), 0
        elif text == CALL_STACK:
            ignored, open_for = True, 0
        elif FRAME.match(text):
            open_for = _STRANGERS
        elif open_for and text and not text[0].isspace():
            open_for -= 1
            if _RAISED.match(text):
                open_for = 0
                if not ignored:
                    found.append(line)
                ignored = False
        elif NAMED.match(line):
            found.append(line)
        before = text or before
    return [line for line in found if not any(name in line for name in OF_LAUNCHER)]


def native(lines: Sequence[str]) -> str:
    """What native code printed before it aborted, with the exception's own text where it has one."""
    for place in range(len(lines) - 1, -1, -1):
        text = PREFIX.sub("", lines[place])
        if NATIVE.search(text):
            what = next(filter(None, map(_WHAT.match, lines[place + 1 : place + 4])), None)
            return f"{text.strip()}: {what[1].strip()}" if what else text.strip()
    return ""


def heard(rank: RankView, job: JobView, alone: bool) -> Heard:
    """What the rank printed. Where its output is not its own but shared, only a rank that failed `alone` is
    taken at its word."""
    own = list(rank.tail)
    error = _why(own, rank)
    if error:
        return Heard(error, f'it printed: "{_trim(_told(own, error))}"{_handling(own, error)}', tuple(own))
    others = {line for one in (*job.ranks.values(), *job.ranks.past) if one is not rank for line in one.tail}
    shared = [line for line in job.log.tail if line not in others]
    error = _why(shared, rank)
    if error:
        says = "it printed" if alone else "the output that the ranks share shows"
        return Heard(
            error, f'{says}: "{_trim(_told(shared, error))}"{_handling(shared, error)}', tuple(shared)
        )
    last = next((line for line in reversed(own) if line.strip()), "")
    if SHELL_S_WORD.match(last) and (before := _before_it(list(job.log.tail), last)):
        own, last = [], before  # both stand in what the ranks share
    if last:
        return Heard("", f'its output holds no exception, and ends: "{_trim(last)}"', (*shared, *own))
    if not job.log.lines or not job.sources.failed.keys().isdisjoint(
        (("output", rank.rank), ("output", None))
    ):
        return Heard("", "none of its output was read")
    return Heard("", "the job's output holds no exception")


def _before_it(lines: Sequence[str], word: str) -> str:
    """The line just above a shell's word for a death that says that something failed; "" where it is no such line."""
    at = next((place for place in range(len(lines) - 1, 0, -1) if lines[place] == word), 0)
    above = next((line for line in reversed(lines[max(0, at - 2) : at]) if line.strip()), "")
    return above if OF_FAILURE.search(above) else ""


def _told(lines: Sequence[str], error: str) -> str:
    """With the condition of a bare assertion, or the message that begins below the exception's name.

    >>> _told(["    assert rows > 0", "           ^^^^^^^^", "AssertionError"], "AssertionError")
    'assert rows > 0 ... AssertionError'
    >>> _told(["ShapeError:", "", "rows differ", "more"], "ShapeError:"), _told(["KeyError: 1"], "KeyError: 1")
    ('ShapeError: rows differ', 'KeyError: 1')
    """
    bare = PREFIX.sub("", error).strip()
    place = next((at for at in range(len(lines) - 1, -1, -1) if lines[at] == error), 0)
    if bare == "AssertionError":
        above = (PREFIX.sub("", line).strip() for line in reversed(lines[max(0, place - 3) : place]))
        source = next((line for line in above if line.strip("^~ ")), "")
        return f"{source} ... {bare}" if source.startswith("assert") else error
    if bare.endswith(":"):
        below = (PREFIX.sub("", line).strip() for line in lines[place + 1 : place + 4])
        return f"{error.rstrip()} {next(filter(None, below), '')}".rstrip()
    return error


def _handling(lines: Sequence[str], error: str) -> str:
    """The first exception of the chain whose last is `error`: what went wrong before the program reacted to it.

    >>> _handling(["OSError: gone", "", "During handling of the above exception, another exception occurred:", "", _HEAD,
    ...            "ValueError: no data"], "ValueError: no data")
    ', raised while handling "OSError: gone"'
    """
    place = next((at for at in range(len(lines) - 1, -1, -1) if lines[at] == error), 0)
    first = ""
    while (head := _above(lines, place, _HEAD)) is not None:
        link = next(
            (at for at in range(head - 1, max(-1, head - 4), -1) if PREFIX.sub("", lines[at]).strip()), None
        )
        if link is None or CHAIN not in lines[link]:
            break
        raised = (at for at in range(link - 1, -1, -1) if _RAISED.match(PREFIX.sub("", lines[at])))
        place = next(raised, -1)
        if place < 0:
            break
        first = lines[place]
    return f', raised while handling "{_trim(first)}"' if first and first != error else ""


def _above(lines: Sequence[str], place: int, text: str) -> int | None:
    return next((at for at in range(place - 1, -1, -1) if text in lines[at]), None)


def _why(lines: list[str], rank: RankView) -> str:
    raised = exceptions(lines)
    own = [line for line in raised if not CASCADE.search(line)]
    # what a program catches and prints has no prefix
    uncaught = [line for line in own if line.startswith("[rank")]
    crashed = rank.exit is not None and not CRASHES.isdisjoint(
        (rank.exit.signal, (rank.exit.exit_code or 0) - 128)
    )
    # Of what torch's hook printed the first is the cause; of the rest the last is what nothing came after.
    return (
        next(iter(uncaught[:1] or own[-1:]), "")
        or (native(lines) if crashed else "")
        or next(iter(raised), "")
    )


def _trim(line: str) -> str:
    line = line.split("]: ", 1)[-1] if line.startswith("[rank") else line.strip()
    return line if len(line) <= 200 else line[:197] + "..."
