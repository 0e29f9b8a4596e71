"""What the kernel says that a culprit waits for, put into the verdict: it outranks what functions are called. Where that
is a lock, a condition or an event loop, which name nobody: who is left that could end the wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from diag.detectors.hang.catalogue import entry_of
from diag.detectors.hang.kernel_causes import explains, kernel_cause
from diag.detectors.hang.rank_wait import BLOCKED
from diag.detectors.hang.verdict import Note, Verdict
from diag.detectors.hang.wait_text import format_wait, name_of
from diag.model import numbered
from diag.model.observations.waits import WaitsRead
from diag.state.enders import Enders, find_enders, whole_chain
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity, format_frame
from diag.state.view import JobView
from diag.state.wait_chain import Chain, OfJob, Step, follow
from diag.text.units import format_bytes, format_seconds

# Classes in which a rank waits for something else than its peers.
_DESCRIBED = (
    "peer_not_joined", "unknown", "lock_deadlock", "gil_deadlock", "data_loading", "preprocess_wait", "checkpoint_io",
    "compile_wait", "resource_wait", "teardown",
)  # fmt: skip
_TRICKLE_SECONDS = 120.0


# What a rank is at, which gives a hang in it its class.
_WORK = (Activity.CHECKPOINT, Activity.DATA, Activity.PREPROCESS, Activity.COMPILE, Activity.TEARDOWN)


def _work(rank: RankView) -> Activity | None:
    reading = rank.reading
    return None if reading is None else reading.context or reading.activity


def lasting_wait(rank: RankView, since: float, job: JobView, child: int = 0) -> Chain | None:
    """Of the thread that trains, or the main one of one of its children, read after the silence began; None where
    it was not, or nothing may be read."""
    if rank.waits is None or rank.waits_at < since:
        return None
    tid = 0 if child else rank.thread
    chain = follow(rank.waits, child or rank.placement.pid, tid, job=job_around(rank, since, job))
    if chain is None or chain.steps[0].wait.kind == "unreadable":
        return None
    # What it waited for before its stack moved is over; who tries again and again sleeps in between.
    moved_on = not child and rank.stack_since > rank.waits_at and chain.steps[0].wait.kind != "sleep"
    return None if moved_on else chain


def wait_of(rank: RankView, verdict: Verdict, job: JobView) -> Chain | None:
    """As far as the verdict knows it of its first culprit."""
    if verdict.chain is not None and verdict.culprits[:1] == (rank.rank,):
        return verdict.chain
    return lasting_wait(rank, verdict.since, job, verdict.blamed_child or 0)


def _enders(rank: RankView, chain: Chain, verdict: Verdict, job: JobView) -> Enders | None:
    """Of a lock of Python's, as the stack or the memory shows, or of an event loop: what C code waits for is not known
    to come from a thread of Python's."""
    wait = chain.last.wait
    known = verdict.cause == "lock_not_released" or wait.of_python or wait.kind in ("poll", "semaphore")
    if (
        not verdict.is_of("outside", "lock")
        or verdict.blamed_child is not None
        or not known
        or kernel_cause(chain)
    ):
        return None
    return find_enders(rank, chain, verdict.since, job_around(rank, verdict.since, job))


def job_around(rank: RankView, since: float, job: JobView) -> OfJob:
    ranks: dict[int, int] = {}
    children: set[int] = set()
    near: list[WaitsRead] = []
    far: list[WaitsRead] = []
    for other in job.alive_ranks():
        if other.rank == rank.rank:
            continue
        here = other.placement.host == rank.placement.host
        if here:
            below = other.tree.children if other.tree is not None else ()
            children.update(child.pid for child in below)
            ranks |= dict.fromkeys((other.placement.pid, *(child.pid for child in below)), other.rank)
        if other.waits is not None and other.waits_at >= since:
            (near if here else far).append(other.waits)
    store = (rank.variables.get("MASTER_ADDR", ""), rank.variables.get("MASTER_PORT", ""))
    return OfJob(ranks, tuple(near), tuple(far), store, frozenset(children))


def last_fed(verdict: Verdict, job: JobView) -> float:
    """Until when a culprit that waits for data over TCP was fed: a slow download goes on. 0 for none.

    Fewer bytes than a download brings (a peer that only keeps the connection open, a byte now and then) are believed
    for a limited time: from then on only what was more counts.
    """
    times = [0.0]
    for number in verdict.culprits:
        rank = job.ranks.get(number)
        chain = wait_of(rank, verdict, job) if rank is not None else None
        if rank is None or chain is None or chain.last.wait.silent_seconds is None:
            continue
        last = rank.waits_at - chain.last.wait.silent_seconds
        worked = rank.feed.worked_at if rank.feed is not None else 0.0
        times.append(last if last < max(verdict.since, worked) + _TRICKLE_SECONDS else worked)
    return max(times)


def _what_comes(rank: RankView, chain: Chain) -> tuple[Note, ...]:
    feed, wait = rank.feed, chain.last.wait
    if feed is None or not feed.is_of(wait) or not feed.bytes:
        return ()
    text = f"{format_bytes(feed.bytes)} came from {wait.peer} in {format_seconds(feed.at - feed.since)}"
    return (Note("waits", text, rank.rank),)


def with_kernel_waits(verdict: Verdict, job: JobView) -> Verdict:
    """By the first culprit: the others of one class wait alike."""
    rank = verdict.culprit(job)
    if rank is None or (verdict.klass not in _DESCRIBED and not _is_open(verdict)):
        return verdict
    chain = lasting_wait(rank, verdict.since, job, verdict.blamed_child or 0)
    if (stuck := _stuck_child(rank, chain, verdict, job)) is not None:
        return stuck
    if chain is None or not chain.steps[0].thread.same:
        return verdict
    if (found := _enders(rank, chain, verdict, job)) is not None:
        named_none, chain = chain, whole_chain(chain, found)
        if chain is named_none:
            return _of_class(rank, verdict, with_enders(verdict, rank, job.run.cwd, chain, found), chain)
    cause = kernel_cause(chain)
    if not cause and not chain.stays_in_job and chain.behind is None and chain.last.wait.shared is None:
        return verdict
    described = replace(verdict, chain=chain).noted(*_what_comes(rank, chain))
    if not cause or not explains(cause, chain, verdict.cause, is_open=_is_open(verdict)):
        return described
    if verdict.cause == "gil_held" and cause == "sleeps":
        return described  # asleep in C code with the interpreter's lock: that it holds it is the cause
    if cause == "waits_at_store" and _in_torch(rank):
        return described  # for peers that have not made its call: new_group, a barrier
    return _of_class(rank, verdict, replace(described, cause=cause), chain)


def _is_open(verdict: Verdict) -> bool:
    """Of what stacks alone say: that a rank is in its own code, or in a lock. Others have a cause of their own, which the
    kernel's facts only describe."""
    return verdict.is_of("outside", "lock") or verdict.cause in ("gil_held", "dataloader_main_process")


def _in_torch(rank: RankView) -> bool:
    return rank.judged is not None and "torch/distributed/" in rank.judged.frames[-1].file


def _stuck_child(rank: RankView, chain: Chain | None, verdict: Verdict, job: JobView) -> Verdict | None:
    """The rank waits for its data workers, or for a process of its own that has nobody to name (a manager, a pool): and
    one that it forked waits for what only a thread that was not copied could do. It will never bring what it was
    started for."""
    if chain is None or rank.waits is None or verdict.blamed_child is not None:
        return None
    of_workers = verdict.cause == "preprocess_blocked"
    in_family = (
        len(chain.steps) > 1 and chain.last.process.job and chain.end in ("no_owner", "several", "itself")
    )
    if not of_workers and not (_is_open(verdict) and in_family):
        return None
    pids = [
        process.pid
        for process in rank.waits.processes
        if process.job and process.pid != rank.placement.pid and len(process.threads) == 1
        if process.threads[0].wait.forked and process.threads[0].wait.dead_end == "alone"
    ]
    beyond = lasting_wait(rank, verdict.since, job, pids[0]) if pids else None
    if beyond is None or not beyond.steps[0].thread.same:
        return None
    if not of_workers:  # which of them it waits for is not known
        beyond = replace(beyond, behind=chain)
    child = pids[0] if of_workers else None
    found = replace(verdict, chain=beyond, cause="forked_without_threads", blamed_child=child)
    return _of_class(rank, verdict, found, beyond)


def _of_class(rank: RankView, before: Verdict, verdict: Verdict, chain: Chain) -> Verdict:
    """Of another cause than before: the class that this one has, and the wait that shows it."""
    if verdict.cause == before.cause:
        says_more = verdict.words != before.words or chain.last.wait.shared is not None
        return replace(verdict, chain=chain) if says_more else verdict
    klass, known = verdict.klass, entry_of(verdict.cause).classes
    if len(known) == 1:
        klass = known[0]
    elif (work := _work(rank)) in _WORK:
        klass = BLOCKED[work]  # that it holds the interpreter's lock meanwhile is a remark
    elif klass in ("lock_deadlock", "gil_deadlock"):
        klass = "peer_not_joined" if verdict.waiting else "unknown"
    return replace(verdict, klass=klass, chain=chain, by_kernel=True)


# --- a wait that names nobody

_NAMED = 2  # in the sentence
_LISTED = 6  # in the evidence
_FRAMES = 4
_CHILDREN_SECONDS = 600.0  # one that ended so long before the silence may have had what is waited for


def with_enders(verdict: Verdict, rank: RankView, cwd: str, chain: Chain, found: Enders) -> Verdict:
    """Where not one alone could end it."""
    if found.at_work:
        text = _at_work(rank, cwd, found.at_work, chain)
        verdict = replace(verdict, cause="helpers_at_work", busy=True, words=verdict.words or text)
        return _listed(verdict, rank, cwd, found.at_work, chain)
    if len(found.chains) > 1:
        waiter = (chain.last.process.pid, chain.last.thread.tid)  # its own descriptors are in its clause
        steps = [one.steps[0] for one in found.chains]
        steps = [one for one in steps if (one.process.pid, one.thread.tid) != waiter]
        if not steps:
            return verdict
        text = f"what it waits for may come from {_some(steps, chain, 'or')}"
        return _listed(replace(verdict, words=verdict.words or text), rank, cwd, steps, chain)
    if not found.nobody or chain.last.wait.timed:
        return _listed(verdict, rank, cwd, found.wakes, chain)
    if chain.last.wait.kind == "poll" and not found.asking:
        own = all(one.dead_end == "only_self" for one in chain.last.wait.watched)
        return replace(verdict, cause="event_loop_is_empty") if own else verdict
    if found.asking:
        text = _asking(rank, found.asking, verdict.since)
        verdict = replace(verdict, cause="children_wait_for_work", words=verdict.words or text)
        return _listed(verdict, rank, cwd, found.asking, chain)
    if verdict.cause == "threads_wait_for_each_other":
        return verdict  # which says more
    text = f"so {numbered('[does|do]', len(found.passive))} {_some(found.passive, chain, 'and')}"
    return replace(
        verdict, cause="nobody_releases_lock", words=verdict.words or (text if found.passive else "")
    )


def _listed(verdict: Verdict, rank: RankView, cwd: str, steps: Iterable[Step], chain: Chain) -> Verdict:
    """With each of these as evidence: what it waits for, and where in its code."""
    notes = []
    for step in [*steps][:_LISTED]:
        name = name_of(step, chain.last)
        notes.append(Note("waits", f"{name} {format_wait(step)}", rank.rank))
        sample, place = rank.sample(step.process.pid), _place(rank, step, cwd, _FRAMES)
        if sample is not None and place:
            notes.append(Note(sample.how, f"{name}: {place}", rank.rank))
    return verdict.noted(*notes)


def _place(rank: RankView, step: Step, cwd: str, depth: int) -> str:
    thread = rank.thread_stack(step.process.pid, step.thread.tid)
    frames = thread.frames if thread is not None else ()
    return " < ".join(format_frame(frame, cwd) for frame in reversed(frames[-depth:]))


def _some(steps: Iterable[Step], chain: Chain, word: str) -> str:
    """ "thread reader (tid 7), which waits for data from ..., or child pid 9 (`sh up.sh`), which sleeps"."""
    every = [*steps]
    shown = [f"{name_of(step, chain.last)}, which {format_wait(step)}" for step in every[:_NAMED]]
    more = f" ({len(every) - _NAMED} more)" if len(every) > _NAMED else ""
    return f", {word} ".join(shown) + more


def _at_work(rank: RankView, cwd: str, steps: tuple[Step, ...], chain: Chain) -> str:
    """ "its 2 child processes work: pid 7 sleeps (0.1 s left) in read (a.py:7), pid 8 computes in ..."."""
    own = all(step.process is chain.last.process for step in steps)
    count = len(steps) if own else len({step.process.pid for step in steps})
    shown = []
    for step in steps[:_NAMED]:
        name = name_of(step, chain.last) if own else f"pid {step.process.pid}"
        place = _place(rank, step, cwd, 1)
        shown.append(f"{name} {format_wait(step)}{' in ' + place if place else ''}")
    what = numbered("thread [works|work]" if own else "child [process works|processes work]", count)
    if own and count > 1:
        what = "threads work"
    more = f" and {len(steps) - _NAMED} more" if len(steps) > _NAMED else ""
    return f"its {f'{count} ' if count > 1 else ''}{what}: {', '.join(shown)}{more}"


def _asking(rank: RankView, steps: tuple[Step, ...], since: float) -> str:
    """ "its 2 child processes wait for work; 4 others have ended, the last 2 s before it stopped moving"."""
    count = len(steps)
    text = f"its {f'{count} ' if count > 1 else ''}child {numbered('[process waits|processes wait]', count)} for work"
    command = rank.tree.main.comm if rank.tree is not None else ""
    ended = [at for at, _, comm in rank.ended_children if comm == command and at >= since - _CHILDREN_SECONDS]
    if ended:
        apart = format_seconds(abs(since - ended[-1]))
        when = (
            f"{apart} {'before it stopped moving' if ended[-1] <= since else 'after it had stopped moving'}"
        )
        gone = f"{len(ended)} others have ended, the last" if len(ended) > 1 else "another has ended"
        text += f"; {gone} {when}"
    limits = [limit for step in steps if (limit := step.process.cpu_limit_seconds) is not None]
    if limits:
        text += f"; the kernel ends each after {format_seconds(min(limits))} of CPU time (RLIMIT_CPU)"
    return text
