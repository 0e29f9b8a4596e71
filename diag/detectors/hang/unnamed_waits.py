"""A culprit that waits for a lock, a condition or an event loop, which name nobody: who is left that could end that
wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from diag.detectors.hang.verdict import Note, Verdict
from diag.detectors.hang.wait_text import format_wait, name_of
from diag.model import numbered
from diag.model.observations import StackSample
from diag.state.enders import Enders
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame
from diag.state.wait_chain import Chain, Step
from diag.text.units import format_seconds

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
        if (sample := _sample_of(rank, step)) is not None and (place := _place(sample, step, cwd, _FRAMES)):
            notes.append(Note(sample.how, f"{name}: {place}", rank.rank))
    return replace(verdict, notes=(*verdict.notes, *notes))


def _sample_of(rank: RankView, step: Step) -> StackSample | None:
    if step.process.pid == rank.placement.pid:
        return rank.stack
    return rank.child_stacks[step.process.pid][1] if step.process.pid in rank.child_stacks else None


def _place(sample: StackSample, step: Step, cwd: str, depth: int) -> str:
    frames = next((one.frames for one in sample.threads if one.thread_id == step.thread.tid), ())
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
        sample = _sample_of(rank, step)
        place = _place(sample, step, cwd, 1) if sample is not None else ""
        shown.append(f"{name} {format_wait(step)}{' in ' + place if place else ''}")
    what = numbered("thread [works|work]" if own else "child [process works|processes work]", count)
    if own and count > 1:
        what = "threads work"
    more = f" and {len(steps) - _NAMED} more" if len(steps) > _NAMED else ""
    return f"its {f'{count} ' if count > 1 else ''}{what}: {', '.join(shown)}{more}"


def _asking(rank: RankView, steps: tuple[Step, ...], since: float) -> str:
    """ "its 2 child processes wait for work; 4 others have ended, the last 2 s before it stood still"."""
    count = len(steps)
    text = f"its {f'{count} ' if count > 1 else ''}child {numbered('[process waits|processes wait]', count)} for work"
    command = rank.tree.main.comm if rank.tree is not None else ""
    ended = [at for at, _, comm in rank.ended_children if comm == command and at >= since - _CHILDREN_SECONDS]
    if ended:
        apart = format_seconds(abs(since - ended[-1]))
        when = f"{apart} {'before it stood still' if ended[-1] <= since else 'after it had stopped moving'}"
        gone = f"{len(ended)} others have ended, the last" if len(ended) > 1 else "another has ended"
        text += f"; {gone} {when}"
    limits = [limit for step in steps if (limit := step.process.cpu_limit_seconds) is not None]
    if limits:
        text += f"; the kernel ends each after {format_seconds(min(limits))} of CPU time (RLIMIT_CPU)"
    return text
