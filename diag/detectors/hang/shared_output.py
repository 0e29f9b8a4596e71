"""A pipe that all ranks write to: who fills it first is not to blame that nobody reads it."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.verdict import Verdict
from diag.state.view import JobView

_OF_A_READER = ("process_does_not_read", "reader_waits_for_itself")


def with_shared_output(verdict: Verdict, job: JobView) -> Verdict:
    if not writes_where_all_do(verdict, job):
        return verdict
    words = ", ".join(filter(None, (verdict.words, "all ranks write to that pipe")))
    return replace(verdict, words=words)


def writes_where_all_do(verdict: Verdict, job: JobView) -> bool:
    """By the kernel: each rank of the job has the pipe open to write that the culprit waits at, and a process that is no
    rank, nor below one, has to read it."""
    rank, chain = verdict.culprit(job), verdict.chain
    if verdict.cause not in _OF_A_READER or rank is None or chain is None:
        return False
    first = chain.steps[0]
    if first.process.pid != rank.placement.pid or first.wait.kind != "pipe_write":
        return False
    ranks = job.alive_ranks()
    if len(ranks) < max(2, job.world_size) or any(one.placement.host != rank.placement.host for one in ranks):
        return False
    if any(other.rank is not None for other in first.wait.others):
        return False
    return all(one.placement.pid in {first.process.pid, *first.wait.writers} for one in ranks)
