"""Advice without what can only be done while a process lives: for findings that are over, and of jobs that
have ended."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Commands that look at a living process or change it. A pid that is given again belongs to a stranger by
# then. `/proc/PID/maps` and the like in general advice say how to look next time, and stay.
_LIVE = re.compile(
    r"/proc/(?:\d|PID/(?:fd|stack))|\bkill -\w+ |(?:--pid|-[pt]) ?\d|--pid PID|\(pid \d|\bdiag (?:dump|watch|top)\b"
    r"|\bstill (?:lives?|alive)\b|\bprocess (?:lives|is alive)\b|\btake its stack\b"
)
_OPENS, _CLOSES = "([", ")]"


def needs_a_process(text: str) -> bool:
    return _LIVE.search(text) is not None


def lasting(advice: str) -> str:
    """
    >>> lasting("Look at what it reads (a file); `ls -l /proc/81/fd` names it. Set num_workers=0 to go on.")
    'Look at what it reads (a file). Set num_workers=0 to go on.'
    >>> lasting("Rank 1 is stopped: `kill -CONT 81` lets it go on; find who sent SIGSTOP (a debugger; job control).")
    'Find who sent SIGSTOP (a debugger; job control).'
    """
    if not needs_a_process(advice):
        return advice
    kept = []
    for sentence in _parts(advice, "."):
        clauses = [_what_stays(_without_asides(clause)).strip(" ;.,") for clause in _parts(sentence, ";")]
        lasts = "; ".join(filter(None, clauses))
        if lasts:
            kept.append(lasts[0].upper() + lasts[1:] + ".")
    return " ".join(kept)


def _parts(text: str, mark: str) -> Iterator[str]:
    """The parts between marks that a space follows, not looking into parentheses and `commands`."""
    depth, quoted, begin = 0, False, 0
    for index, char in enumerate(text):
        if char == "`":
            quoted = not quoted
        elif not quoted:
            depth += (char in _OPENS) - (char in _CLOSES and depth > 0)
        if char == mark and not depth and not quoted and text[index + 1 : index + 2] in ("", " "):
            yield text[begin : index + 1]
            begin = index + 1
    if text[begin:].strip():
        yield text[begin:]


def _what_stays(clause: str) -> str:
    return ", and ".join(part for part in clause.split(", and ") if not needs_a_process(part))


def _without_asides(clause: str) -> str:
    """Without the parentheses that name such a command."""
    return re.sub(r" ?\([^()]*\)", lambda aside: "" if needs_a_process(aside[0]) else aside[0], clause)
