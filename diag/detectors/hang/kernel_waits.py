"""What the kernel says that a culprit waits for, put into the verdict: it outranks what functions are called."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.kernel_causes import kernel_cause
from diag.detectors.hang.verdict import Verdict
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.state.wait_chain import Chain, follow

# What stacks alone say of a rank that is in its own code, or in a lock: "look there". Other classes have a cause of
# their own, which the kernel's facts only describe.
_REFINED = ("not_in_collective", "threads_wait_for_each_other", "lock_not_released", "gil_held")
_LOCKS = ("threads_wait_for_each_other", "lock_held", "lock_owner_ended")


def lasting_wait(rank: RankView, since: float) -> Chain | None:
    """Of its main thread, read after the silence began; None where it was not, or nothing may be read."""
    if rank.waits is None or rank.waits_at < since:
        return None
    chain = follow(rank.waits, rank.placement.pid)
    return None if chain is None or chain.steps[0].wait.kind == "unreadable" else chain


def with_kernel_waits(verdict: Verdict, job: JobView) -> Verdict:
    """By the first culprit: the others of one class wait alike."""
    if not verdict.culprits or verdict.cause not in _REFINED or verdict.culprits[0] not in job.ranks:
        return verdict
    chain = lasting_wait(job.ranks[verdict.culprits[0]], verdict.since)
    if chain is None or not chain.steps[0].thread.same or (found := kernel_cause(chain)) is None:
        return verdict
    klass = verdict.klass
    if found.cause in _LOCKS:
        klass = "lock_deadlock"
    elif found.cause == "gil_held_by_thread":
        klass = "gil_deadlock"
    elif klass in ("lock_deadlock", "gil_deadlock"):
        klass = "peer_not_joined" if verdict.waiting else "unknown"
    return replace(verdict, klass=klass, cause=found.cause, chain=chain)
