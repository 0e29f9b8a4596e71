"""What a person is to do: the one command to type next, of what a report shows; and advice without what can only be done
while a process lives, for findings that are over and jobs that have ended. Reads the engine, judges nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from diag.engine.engine import Engine
from diag.model import Finding
from diag.outputs.view.classes import StackClass, stack_classes

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


def next_command(engine: Engine, classes: Sequence[StackClass] | None = None) -> tuple[str, str]:
    """(command, why); both empty where nothing was found. `classes`: the merged stacks, where they were made
    already."""
    if engine.job.returncode is not None:
        return _to_read(engine.all_findings())
    for number, rank in sorted(engine.job.ranks.items()):
        if rank.alive and rank.tree is not None and rank.tree.main.state in "Tt":
            return (
                f"kill -CONT {rank.placement.pid}",
                f"rank {number} is stopped (state {rank.tree.main.state})",
            )
    hang = next(
        (one for one in engine.active() if one.id in ("hang", "held-up") and one.severity.counts), None
    )
    if hang is not None:
        return _of_hang(engine, hang, stack_classes(engine) if classes is None else classes)
    return _to_read(engine.all_findings())


def _to_read(findings: Sequence[Finding]) -> tuple[str, str]:
    """Of the first that counts; nothing that needs a living process."""
    first = next((finding for finding in findings if finding.severity.counts), None)
    return (
        ("", "")
        if first is None
        else (f"diag explain {shlex.quote(first.id)}", f"what {first.id} means and what to do")
    )


def _of_hang(engine: Engine, hang: Finding, classes: Sequence[StackClass]) -> tuple[str, str]:
    named = hang.ranks or hang.waiting_ranks
    for item in classes:  # a child that is blocked in its own work, of a culprit
        if (
            item.kind == "child"
            and set(item.ranks) & set(named)
            and hang.klass in ("data_loading", "checkpoint_io")
        ):
            return (
                f"ls -l /proc/{item.pids[0]}/fd",
                f"files that child {item.pids[0]} of rank {item.ranks[0]} has open",
            )
    for rank in (engine.job.ranks[number] for number in named if number in engine.job.ranks):
        if rank.alive and rank.tree is not None and rank.tree.main.state == "D":
            return (
                f"cat /proc/{rank.placement.pid}/stack",
                f"where rank {rank.rank} is blocked in the kernel (needs root)",
            )
        if rank.alive and hang.klass in ("checkpoint_io", "resource_wait"):
            return f"ls -l /proc/{rank.placement.pid}/fd", f"files that rank {rank.rank} has open"
    if any(item.kind == "rank" for item in classes):
        return (
            "diag dump --native",
            "C frames below the Python ones; pauses one rank of each class for about a second",
        )
    return f"diag explain {hang.id}", "what each class of hang means and what to do"
