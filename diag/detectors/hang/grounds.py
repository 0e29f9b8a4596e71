"""Why a job that stands still will not go on by itself. Without one of these it is only held up."""

from __future__ import annotations

from collections.abc import Iterator

from diag.detectors.hang.patience import learned_rhythm
from diag.detectors.hang.verdict import Verdict
from diag.model import Ground
from diag.state.view import JobView
from diag.text.units import format_ranks, format_seconds

# Of what the verdict found, by its cause: it cannot end by itself.
_BY_CAUSE = {
    "rank_exited": ("rank_ended", "{culprits} ended, and {waiting} wait for what can never come"),
    "rank_left_early": ("rank_ended", "{culprits} ended, and {waiting} wait for what can never come"),
    "ras_dead": ("rank_ended", "NCCL RAS reports {culprits} dead"),
    "sigstop": ("stopped", "{culprits} stopped by a signal: only another signal lets it go on"),
    "dataloader_worker_stopped": ("stopped", "the worker is stopped by a signal: only another signal lets it go on"),
    "calls_differ": ("calls_differ", "the calls of {culprits} and of {waiting} can never match"),
    "call_unanswered": ("calls_differ", "no rank is left that would answer the call of {culprits}"),
    "communicators_wait_for_each_other": ("cycle", "each waits for another one to begin a communicator, in a circle"),
    "groups_in_opposite_order": ("cycle", "the calls wait for each other in a circle"),
    "processes_wait_for_each_other": ("cycle", "the processes wait for each other in a circle"),
    "threads_wait_for_each_other": ("cycle", "the threads wait for each other in a circle"),
    "child_waits_for_lock": ("dead_end", "the lock was held by a thread that a forked child does not have"),
    "transport_error": ("transport_error", "NCCL gave up a connection of {culprits}"),
}  # fmt: skip
# By the kernel, of the last wait of the chain.
_DEAD_ENDS = {
    "owner_ended": ("dead_end", "the thread that holds the lock has ended"),
    "only_self": ("dead_end", "no other process is left at the other end of the pipe"),
    "alone": ("dead_end", "no other thread is left in the process that could release the lock"),
    "peer_closed": ("dead_end", "the other side has closed the connection"),
    "no_child": ("dead_end", "there is no child left to wait for"),
    "stopped": (
        "stopped",
        "the process waited for is stopped by a signal: only another signal lets it go on",
    ),
    "frozen": ("frozen", "the process waited for is frozen with its cgroup: only who froze it lets it go on"),
}
_WITHOUT_OTHERS = {  # by the kind of that wait, where nobody is known who could end it
    "fifo_open": ("dead_end", "no process has opened the other end of the FIFO"),
    "terminal": ("dead_end", "it waits for somebody to type"),
}
_UNPROVEN = (
    "threads_wait_for_each_other",
)  # by stacks alone: two threads that both wait need not wait for each other

# Ours: a wait so far outside of what the job has shown is no slow step. Below five minutes nothing is.
_RHYTHMS = 20.0
_LEAST_SECONDS = 300.0
_BUSY_SECONDS = 1800.0  # who computes may come to an end
_CHILD_COMPUTES = ("child_computes", "dataloader_worker_busy", "checkpoint_writer_busy")
_SERVICE_SECONDS = 1200.0  # and so may what a service outside of the job does


def grounds_of(verdict: Verdict, job: JobView, now: float) -> Iterator[Ground]:
    if verdict.seconds is not None:
        yield Ground("captured", "the evidence was captured at one moment, as that of a hang")
        return
    if verdict.cause.startswith("xid_"):
        yield Ground(
            "gpu_fault",
            f"the driver reports {verdict.cause.replace('xid_', 'Xid ')} for the GPU of {format_ranks(verdict.culprits)}",
        )
    elif verdict.cause in _BY_CAUSE and (verdict.by_kernel or verdict.cause not in _UNPROVEN):
        kind, fact = _BY_CAUSE[verdict.cause]
        yield Ground(
            kind,
            fact.format(
                culprits=format_ranks(verdict.culprits), waiting=format_ranks(verdict.waiting) or "the others"
            ),
        )
    elif (end := _dead_end(verdict)) is not None:
        yield end
    else:
        yield from _of_its_node(verdict, job)
    seconds, rhythm = now - verdict.since, learned_rhythm(job)
    if seconds >= max(least_seconds(verdict), _RHYTHMS * rhythm):
        fact = f"nothing moved for {format_seconds(seconds)}"
        if verdict.busy:
            fact = f"no step was made for {format_seconds(seconds)}"
        if rhythm:
            fact += f"; the longest that this job came through in this phase is {format_seconds(rhythm)}"
        yield Ground("overdue", fact)


def _dead_end(verdict: Verdict) -> Ground | None:
    wait = verdict.chain.last.wait if verdict.chain is not None else None
    if wait is None or (
        verdict.chain is not None and verdict.chain.behind is not None
    ):  # or only probably there
        return None
    found = _DEAD_ENDS.get(wait.dead_end) or (None if wait.others else _WITHOUT_OTHERS.get(wait.kind))
    return None if found is None else Ground(*found)


def _of_its_node(verdict: Verdict, job: JobView) -> Iterator[Ground]:
    """What its own hub knows by the kernel of the culprit, and a digest does not carry."""
    for node in job.cluster.current() if job.cluster.nodes else ():
        for hang in node.digest.hangs:
            if hang.grounds and set(hang.ranks) & set(verdict.culprits):
                yield from (ground for ground in hang.grounds if ground.kind != "overdue")
                return


def least_seconds(verdict: Verdict) -> float:
    if verdict.busy or verdict.cause in _CHILD_COMPUTES:
        return _BUSY_SECONDS
    return _SERVICE_SECONDS if verdict.cause == "external_service" else _LEAST_SECONDS
