"""What the kernel says that a culprit waits for, put into the verdict: it outranks what functions are called."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.kernel_causes import kernel_cause
from diag.detectors.hang.verdict import Verdict
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity
from diag.state.view import JobView
from diag.state.wait_chain import Chain, follow

# What stacks alone say of a rank that is in its own code, or in a lock: "look there". Other classes have a cause of
# their own, which the kernel's facts only describe.
_REFINED = ("not_in_collective", "threads_wait_for_each_other", "lock_not_released", "gil_held")
# Classes in which a rank waits for something else than its peers.
_DESCRIBED = (
    "peer_not_joined", "unknown", "lock_deadlock", "gil_deadlock", "data_loading", "preprocess_wait", "checkpoint_io",
    "compile_wait", "resource_wait", "teardown",
)  # fmt: skip
_LOCKS = ("threads_wait_for_each_other", "lock_held", "lock_owner_ended")


# What a rank is at, and the class of a hang in it.
_CLASS_OF_WORK = {
    Activity.CHECKPOINT: "checkpoint_io",
    Activity.DATA: "data_loading",
    Activity.PREPROCESS: "preprocess_wait",
    Activity.COMPILE: "compile_wait",
    Activity.TEARDOWN: "teardown",
}


def _work(rank: RankView) -> Activity | None:
    reading = rank.reading
    return None if reading is None else reading.context or reading.activity


def lasting_wait(rank: RankView, since: float, child: int = 0) -> Chain | None:
    """Of its main thread, or that of one of its children, read after the silence began; None where it was not, or
    nothing may be read."""
    if rank.waits is None or rank.waits_at < since:
        return None
    chain = follow(rank.waits, child or rank.placement.pid)
    return None if chain is None or chain.steps[0].wait.kind == "unreadable" else chain


def last_fed(verdict: Verdict, job: JobView) -> float:
    """When the last byte came for a culprit that waits for data over TCP: a slow download goes on. 0 for none."""
    fed = [0.0]
    for number in verdict.culprits:
        rank = job.ranks.get(number)
        chain = lasting_wait(rank, verdict.since) if rank is not None else None
        if rank is not None and chain is not None and chain.last.wait.silent_seconds is not None:
            fed.append(rank.waits_at - chain.last.wait.silent_seconds)
    return max(fed)


def with_kernel_waits(verdict: Verdict, job: JobView) -> Verdict:
    """By the first culprit: the others of one class wait alike."""
    if not verdict.culprits or verdict.klass not in _DESCRIBED or verdict.culprits[0] not in job.ranks:
        return verdict
    rank = job.ranks[verdict.culprits[0]]
    chain = lasting_wait(rank, verdict.since, verdict.blamed_child or 0)
    if chain is None or not chain.steps[0].thread.same or not (cause := kernel_cause(chain)):
        return verdict
    described = replace(verdict, chain=chain)
    if verdict.cause not in _REFINED:
        return described
    if verdict.cause == "gil_held" and cause == "sleeps":
        return described  # asleep in C code with the interpreter's lock: that it holds it is the cause
    klass = verdict.klass
    if cause in _LOCKS:
        klass = "lock_deadlock"
    elif cause == "gil_held_by_thread":
        klass = "gil_deadlock"
    elif (work := _work(rank)) in _CLASS_OF_WORK:
        klass = _CLASS_OF_WORK[work]  # that it holds the interpreter's lock meanwhile is a remark
    elif klass in ("lock_deadlock", "gil_deadlock"):
        klass = "peer_not_joined" if verdict.waiting else "unknown"
    return replace(described, klass=klass, cause=cause, by_kernel=True)
