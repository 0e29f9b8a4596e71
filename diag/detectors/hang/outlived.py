"""All ranks have ended, and the command that diag runs waits for a process of its own that was there beside them: a `tail`
of their logs, an uploader, whoever kept a pipe open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diag.detectors.hang.verdict import Note, Verdict
from diag.detectors.hang.wait_text import format_chain
from diag.model import Confidence, numbered
from diag.model.observations.waits import WaitsRead
from diag.state.view import JobView
from diag.state.wait_chain import Chain, Step, follow
from diag.text.units import format_seconds

_ENDED_SECONDS = 5.0  # so late the end of a rank may be known: who began since may be the command's next work
_SHOWN = 2
# With a time of their own, or in the hands of somebody at a terminal, of a device, of a core.
_ENDS = (
    "sleep",
    "running",
    "terminal",
    "file_io",
    "page_fault",
    "memory",
    "vfork",
    "exiting",
    "ended",
    "unreadable",
)
_CLOSED = ("file_lock", "fifo_open")  # a program at work on what the ranks have left is not for long in these


def outlived_ranks(job: JobView) -> Verdict | None:
    """None while a rank of the job lives or is not known, or where anything may still be at work."""
    run, ranks = job.run, [rank for rank in job.ranks.values() if rank.distributed]
    if run.outlives is None or job.cluster.nodes or not ranks or job.alive_ranks():
        return None
    if len(ranks) < max(job.world_size, len(job.ranks)):
        return None  # the others may run on other machines
    ended = max(rank.exited_at or 0.0 for rank in ranks)
    chains = [*_ways(run.outlives, run.pid)]
    beside = run.outlives_at - ended + _ENDED_SECONDS
    if not chains or not all(_holds_up(chain, beside) for chain in chains):
        return None
    who = numbered(f"[the only rank has|all {len(ranks)} ranks have]", len(ranks))
    subject = f"{who} ended, and the command (pid {run.pid}) has waited without a move"
    words = ", and ".join(format_chain(chain, "it") for chain in chains[:_SHOWN])
    if len(chains) > _SHOWN:
        words += f", and for {len(chains) - _SHOWN} more"
    since = max(run.outlives_since, ended)
    chain = chains[0] if len(chains) == 1 else None
    verdict = Verdict("teardown", (), (), "command_outlives_ranks", since, Confidence.HIGH, chain=chain)
    return replace(verdict, words=words, subject=subject).noted(*_notes(chains, run.outlives_at - ended))


def _notes(chains: list[Chain], ended_seconds: float) -> Iterator[Note]:
    for chain in chains[:_SHOWN]:
        yield Note("waits", f"pid {chain.steps[0].process.pid}: {format_chain(chain)}")
        last = chain.last.process
        if last.age_seconds is not None:
            ran = f"pid {last.pid} has run for {format_seconds(last.age_seconds)}"
            yield Note("waits", f"{ran}, and the last rank ended {format_seconds(ended_seconds)} ago")


def _ways(read: WaitsRead, pid: int) -> Iterator[Chain]:
    """From its main thread, one over each child that it, or a child of it, waits for."""
    chain = follow(read, pid)
    for at, step in enumerate(chain.steps if chain is not None else ()):
        if step.wait.kind == "child" and len(step.wait.pids) > 1 and chain is not None:
            for other in step.wait.others:
                one = Step(step.process, replace(step.thread, wait=replace(step.wait, others=(other,))))
                for rest in _ways(read, other.pid):
                    yield replace(rest, steps=(*chain.steps[:at], one, *rest.steps), at=rest.at + at + 1)
            return
    if chain is not None and chain.last.wait.kind != "ended":
        yield chain


def _holds_up(chain: Chain, beside: float) -> bool:
    """It leads over a child to one that waits without a limit, and was there when the ranks were, so many seconds ago; or
    one that nobody can let go."""
    if not any(step.wait.kind == "child" for step in chain.steps) or any(
        _may_end(step) for step in chain.steps
    ):
        return False
    if chain.end in ("dead_end", "cycle") or chain.last.wait.kind in _CLOSED:
        return True
    return (chain.last.process.age_seconds or 0.0) > beside and chain.last.wait.kind != "child"


def _may_end(step: Step) -> bool:
    wait = step.wait
    return (
        wait.timed
        or wait.seconds is not None
        or wait.kind in _ENDS
        or (step.process.job and not step.thread.same)
    )
