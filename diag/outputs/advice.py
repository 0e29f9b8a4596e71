"""The one command to type next, of what a report shows. Reads the engine, judges nothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from diag.engine.engine import Engine
from diag.model import Finding
from diag.outputs.view.classes import StackClass, stack_classes


def next_command(engine: Engine, classes: Sequence[StackClass] | None = None) -> tuple[str, str]:
    """(command, why); both empty where nothing was found. `classes`: the merged stacks, where they were made
    already."""
    if engine.job.returncode is not None:
        return _to_read(engine.all_findings())
    for number, rank in sorted(engine.job.ranks.items()):
        if rank.stopped:
            return f"kill -CONT {rank.placement.pid}", f"rank {number} is stopped (state T)"
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
