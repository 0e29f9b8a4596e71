"""Ranks that a tracer (ptrace(2)) holds: a debugger, or who reads native frames. What they would do by themselves cannot be
seen, so that nothing begins and nothing ends meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from diag.model import NotChecked
from diag.state.view import JobView


def is_held(job: JobView) -> bool:
    """One is held, and the job did not move meanwhile."""
    began = [rank.traces[-1][0] for rank in job.alive_ranks() if rank.traced and rank.traces]
    return bool(began) and (job.progress.log_moved_at or 0.0) <= min(began)


def held_by_tracers(job: JobView) -> Iterator[NotChecked]:
    for rank in job.alive_ranks():
        if rank.traced and rank.tree is not None:
            pid, name = rank.tree.tracer or (0, "")
            who = f"{name} (pid {pid})" if pid else "a process that is not seen from here"
            yield NotChecked(
                f"whether rank {rank.rank} hangs",
                f"{who} holds it by ptrace (state t), as a debugger or a reader of stacks does",
                "let it go on, or end that process",
            )
