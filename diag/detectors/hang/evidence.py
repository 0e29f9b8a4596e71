"""What a hang verdict rests on, as it is shown: stacks, process states, the recorder, and what other evidence
noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from diag.detectors.hang.call_words import calls_that_differ
from diag.detectors.hang.kernel_waits import wait_of
from diag.detectors.hang.verdict import Verdict, format_who
from diag.detectors.hang.wait_text import format_chain
from diag.model import Evidence, numbered
from diag.model.observations import ThreadStack
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame, read_stack
from diag.state.view import JobView
from diag.state.wait_chain import Chain
from diag.text.units import format_bytes, format_ratio, format_seconds

if TYPE_CHECKING:
    from diag.state.wait_graph import Explanation

# Of /proc/PID/stat, as ps(1) names them.
_STATES = {
    "S": "[sleeps|sleep]",
    "R": "[runs|run]",
    "D": "[is|are] in uninterruptible sleep",
    "T": "[is|are] stopped",
    "t": "[is|are] traced",
    "Z": "[is a zombie|are zombies]",
    "I": "[idles|idle]",
}
_MOST_NOTES = 12
_FRAMES = 6  # of a stack


def evidence_of(verdict: Verdict, job: JobView, now: float) -> list[Evidence]:
    """What tells most comes first: where the first culprit is, and its variables there."""
    found = [*_evidence_of(verdict, job, now)]
    first = next((one for one in found if one.kind == "variables" and one.rank == found[0].rank), None)
    if first is not None:
        found.remove(first)
        found.insert(1, first)
    return found


def _evidence_of(verdict: Verdict, job: JobView, now: float) -> Iterator[Evidence]:
    """The culprits' stacks and process states, the child to blame, one victim, the last sign of life."""
    for rank in job.ranks.known(verdict.culprits[:3]):
        yield from _of_culprit(rank, verdict, job)
    for rank in [one for one in job.ranks.known(verdict.waiting) if one.stack][:1]:
        yield from _judged_stack(rank, job.run.cwd)
    found = verdict.collectives
    if found is not None and (found.circle is None or found.front is not None):
        yield Evidence("flight_recorder", _recorded(verdict, found), now)
    save = job.saves.log.current
    if verdict.klass == "checkpoint_io" and save is not None and save.growth:
        at, size = save.growth[-1]
        text = f"{format_bytes(size)} on disk, and not a byte more for {format_seconds(now - at)}"
        yield Evidence("checkpoint", text, at)
    for note in verdict.notes[:_MOST_NOTES]:
        yield Evidence(note.kind, note.text, now, note.rank)
    if verdict.seconds is None and job.progress.log_moved_at is not None and job.log.tail:
        moved_at = job.progress.log_moved_at
        yield Evidence("output", f"last sign of progress {format_seconds(now - moved_at)} ago", moved_at)


def _of_culprit(rank: RankView, verdict: Verdict, job: JobView) -> Iterator[Evidence]:
    cwd = job.run.cwd
    for shown in _judged_stack(rank, cwd):
        yield shown
        yield from _waiting_main(rank, cwd)
        yield from _other_thread(rank, verdict, cwd)
    child = rank.child_stacks.get(verdict.blamed_child or -1)
    if child is not None and child[1].main is not None:
        text = f"child pid {child[1].pid}: " + _excerpt(child[1].main, cwd)
        yield Evidence(child[1].how, text, child[0], rank.rank)
    if (chain := wait_of(rank, verdict, job)) is not None:
        yield from _stacks_along(rank, chain, cwd)
        text = (
            f"pid {(chain.behind or chain).steps[0].process.pid}: {format_chain(chain, cause=verdict.cause)}"
        )
        yield Evidence("waits", text, rank.waits_at, rank.rank)
    if rank.tree is not None:
        yield Evidence("proc", _format_process(rank), rank.tree_at, rank.rank)


def _judged_stack(rank: RankView, cwd: str) -> Iterator[Evidence]:
    judged = rank.judged
    if rank.stack is not None and judged is not None:
        whose = f"{rank.thread_name}: " if rank.thread else ""
        text = whose + _excerpt(judged, cwd)
        yield Evidence(rank.stack.how, text, rank.stack_at, rank.rank)


def _waiting_main(rank: RankView, cwd: str) -> Iterator[Evidence]:
    """Where another thread trains: what the main one does meanwhile."""
    main = rank.stack.main if rank.stack else None
    if rank.thread and rank.stack is not None and main is not None and main is not rank.judged:
        text = f"its main thread: {_excerpt(main, cwd)}"
        yield Evidence(rank.stack.how, text, rank.stack_at, rank.rank)


def _stacks_along(rank: RankView, chain: Chain, cwd: str) -> Iterator[Evidence]:
    """Where in its code each one is that the rank waits for."""
    for step in chain.steps[:3] if chain.behind is not None else chain.steps[1:4]:
        at, sample = rank.stack_at, rank.stack
        if step.process.pid != rank.placement.pid:
            at, sample = rank.child_stacks.get(step.process.pid, (0.0, None))
        for thread in sample.threads if sample is not None else ():
            if thread.thread_id == step.thread.tid and sample is not None and thread.frames:
                name = "main thread" if step.main else f"thread {step.thread.name}"
                text = f"{name} of pid {step.process.pid}: " + _excerpt(thread, cwd)
                yield Evidence(sample.how, text, at, rank.rank)


def _recorded(verdict: Verdict, found: Explanation) -> str:
    waits = [
        f"rank {rank} waits in {wait.op} {wait.seq} of {wait.desc or wait.group}"
        for rank, wait in sorted(found.waiting.items())[:8]
    ]
    late = calls_that_differ(verdict) if found.signatures else ""
    if found.kind == "absent_rank":
        several = len({(wait.op, wait.group, wait.seq) for wait in found.waiting.values()}) > 1
        entered = "[has|have] entered none of them" if several else "[has|have] not entered it"
        late = f"; {format_who(found.culprits, entered)}"
    return ", ".join(waits) + late


def _other_thread(rank: RankView, verdict: Verdict, cwd: str) -> Iterator[Evidence]:
    if verdict.cause != "threads_wait_for_each_other" or rank.stack is None:
        return
    judged = rank.judged
    others = [thread for thread in rank.stack.threads if thread is not judged and len(thread.frames) > 2]
    for thread in others[:2]:
        text = f"thread {thread.name or thread.thread_id}: {_excerpt(thread, cwd)}"
        yield Evidence(rank.stack.how, text, rank.stack_at, rank.rank)


def _format_process(rank: RankView) -> str:
    assert rank.tree is not None
    main = rank.tree.main
    parts = [f"pid {main.pid} state {main.state}"]
    if main.wchan:
        parts.append(f"wchan {main.wchan}")
    if rank.cpu_ratio is not None:
        parts.append(f"{format_ratio(rank.cpu_ratio)} CPU")
    if rank.tree.children:
        parts.append(_children(Counter(child.state for child in rank.tree.children)))
    return ", ".join(parts)


def _children(states: Counter[str]) -> str:
    """
    >>> _children(Counter("SSSR")), _children(Counter("SS")), _children(Counter("D"))
    ('4 children: 3 sleep, 1 runs', '2 children, all sleep', '1 child, is in uninterruptible sleep')
    """
    texts = [
        numbered(_STATES.get(state, f"[is|are] in state {state}"), count)
        for state, count in states.most_common()
    ]
    if len(states) == 1:
        total = states.total()
        return f"1 child, {texts[0]}" if total == 1 else f"{total} children, all {texts[0]}"
    return f"{states.total()} children: " + ", ".join(
        f"{count} {text}" for text, (_, count) in zip(texts, states.most_common(), strict=True)
    )


def _excerpt(thread: ThreadStack, cwd: str) -> str:
    """The innermost frames, innermost first, each `function (file:line)`, the deciding one and its caller included."""
    frames, reading = list(thread.frames[-_FRAMES:]), read_stack(thread)
    if reading.where is not None and reading.where not in frames:
        frames = [reading.where, *frames[1:]]
        if reading.caller is not None:
            frames = [reading.caller, reading.where, *frames[2:]]
    return " < ".join(format_frame(frame, cwd) for frame in reversed(frames))
