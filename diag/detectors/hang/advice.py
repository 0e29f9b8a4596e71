"""What to do about a hang, by the cause that the verdict found, and by whether anybody is seen to wait for
the culprits."""

from __future__ import annotations

from pathlib import Path

from diag.detectors.hang.kernel_causes import kernel_cause, placeholders
from diag.detectors.hang.messages import children_of
from diag.detectors.hang.rank_wait import WAITS, classify_rank
from diag.detectors.hang.verdict import Verdict
from diag.model import numbered
from diag.state.view import JobView
from diag.text.tables import load_table
from diag.text.units import format_ranks


def texts() -> dict[str, dict[str, str]]:
    """Read once, when a detector is made: not first in a hang."""
    return load_table(Path(__file__).parent / "advice.yaml")


def advice_for(verdict: Verdict, job: JobView) -> str:
    cause = "xid" if verdict.cause.startswith("xid_") else verdict.cause
    text = texts()["advice"].get(cause, "Run `diag dump --all-ranks` and check the ranks that differ.")
    values: dict[str, str | int] = {}
    if verdict.by_kernel and verdict.chain is not None and (found := kernel_cause(verdict.chain)) is not None:
        text, values = found.do, placeholders(verdict.chain)
    if not _somebody_waits(verdict, job):
        text = texts()["alone"].get(cause, text)
    ranks, victims = format_ranks(verdict.culprits), format_ranks(verdict.waiting)
    wait = numbered("[waits|wait]", len(verdict.waiting))
    waits = (
        f"; {victims} {wait} " + numbered("for [it|them]", len(verdict.culprits)) + ", NCCL is not at fault"
    )
    pids = [job.ranks[rank].placement.pid for rank in verdict.culprits if rank in job.ranks]
    return numbered(text, len(verdict.culprits)).format(
        Ranks=_capital(ranks),
        ranks=ranks,
        first=verdict.culprits[0] if verdict.culprits else "",
        Victims=_capital(victims),
        victims=victims,
        wait=wait,
        so_victims=waits if verdict.waiting else "",
        child=verdict.blamed_child or "PID",
        children=" ".join(map(str, children_of(verdict, job).values())) or "PID",
        pids=" ".join(map(str, pids)),
        lock=_lock(verdict, job),
        cause=verdict.cause.replace("xid_", "Xid "),
        **values,
    )


def _somebody_waits(verdict: Verdict, job: JobView) -> bool:
    """For a rank in its own code: in a call, as far as is seen. For one that is gone whoever is left waits,
    sooner or later."""
    if verdict.cause != "not_in_collective" or verdict.collectives is not None:
        return bool(verdict.waiting)
    waiting = [job.ranks[rank] for rank in verdict.waiting if rank in job.ranks]
    return any(classify_rank(rank) in WAITS for rank in waiting)


def _lock(verdict: Verdict, job: JobView) -> str:
    """The kernel tells what Python's own stack does not show: a thread that waits for another one sleeps on a
    futex."""
    trees = [job.ranks[rank].tree for rank in verdict.culprits if rank in job.ranks]
    held = [
        rank
        for rank, tree in zip(verdict.culprits, trees, strict=False)
        if tree and tree.main.wchan.startswith("futex")
    ]
    if not held:
        return " (an event, a file, a service, another process)"
    return f": {format_ranks(held)} {numbered('[waits|wait]', len(held))} for a lock or a thread"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
