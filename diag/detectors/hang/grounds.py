"""Why a job that stands still will not go on by itself. Without one of these it is only held up."""

from __future__ import annotations

from collections.abc import Iterator

from diag.detectors.hang.catalogue import entry_of
from diag.detectors.hang.kernel_causes import cause_of_dead_end
from diag.detectors.hang.patience import learned_rhythm
from diag.detectors.hang.verdict import Verdict
from diag.model import Ground
from diag.state.view import JobView
from diag.text.units import format_ranks, format_seconds

# Ours: a wait so far outside of what the job has shown is no slow step.
_RHYTHMS = 20.0
_SOME_SECONDS = 5.0  # a limit that cannot be read: as of DataLoader's queues (MP_STATUS_CHECK_INTERVAL)
_LATE_SECONDS = 2.0  # until a wait that is asked again is seen
_BUSY_SECONDS = 1800.0  # who computes may come to an end


def grounds_of(verdict: Verdict, job: JobView, now: float) -> Iterator[Ground]:
    if verdict.seconds is not None:
        yield Ground("captured", "the evidence was captured at one moment, as that of a hang")
        return
    entry = entry_of(verdict.cause)
    proven = not entry.proven_by or (entry.proven_by == "kernel" and verdict.by_kernel)
    given_up = _may_be_given_up(verdict, job, now)
    if entry.ground is not None and proven and not (given_up and entry.ground[0] == "dead_end"):
        kind, fact = entry.ground
        everyone = format_ranks(tuple(sorted(set(verdict.everyone))))
        culprits, xid = format_ranks(verdict.culprits), verdict.cause.replace("xid_", "Xid ")
        yield Ground(kind, fact.format(culprits=culprits, everyone=everyone, xid=xid))
    elif not given_up and (end := _dead_end(verdict)) is not None:
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
    if verdict.chain is None or verdict.chain.behind is not None:  # or only probably there
        return None
    cause = cause_of_dead_end(verdict.chain.last.wait)
    ground = entry_of(cause).ground if cause else None
    return None if ground is None else Ground(*ground)


def _may_be_given_up(verdict: Verdict, job: JobView, now: float) -> bool:
    """One that cannot go on is waited for with a time limit, and for less than twice that: whoever asks again then, of the
    same process, does not give up."""
    rank = verdict.culprit(job)
    if rank is None:
        return False
    steps = verdict.chain.steps if verdict.chain is not None else ()
    waits = [step.wait for step in steps[:-1]]
    last = steps[-1].process.pid if steps else rank.placement.pid
    if verdict.blamed_child is not None:  # the chain begins there
        own = rank.thread_wait(tid=rank.thread)
        waits += [own.wait] if own is not None else []
        last = verdict.blamed_child if not steps else last
    limits = [wait.seconds for wait in waits if wait.timed and wait.kind != "sleep"]
    if not limits:
        return any(wait.kind == "sleep" for wait in waits)
    process = rank.process_waits(last)
    age = process.age_seconds if process is not None else None
    waited = now - verdict.since
    if age is not None:
        waited = min(waited, age + now - rank.waits_at)
    return waited < 2.0 * max(_SOME_SECONDS if limit is None else limit for limit in limits) + _LATE_SECONDS


def _of_its_node(verdict: Verdict, job: JobView) -> Iterator[Ground]:
    """What its own hub knows by the kernel of the culprit, and a digest does not carry."""
    for node in job.cluster.current() if job.cluster.nodes else ():
        for hang in node.digest.hangs:
            if hang.grounds and set(hang.ranks) & set(verdict.culprits):
                yield from (ground for ground in hang.grounds if ground.kind != "overdue")
                return


def least_seconds(verdict: Verdict) -> float:
    return max(entry_of(verdict.cause).hang_after, _BUSY_SECONDS if verdict.busy else 0.0)
