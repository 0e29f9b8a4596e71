"""The sentence and the evidence of a hang verdict. Words only: `hang` decides; what to do is in `hang_advice`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from diag.model import Evidence, rank_words
from diag.observations import StackSample, ThreadStack
from diag.stacks import Reading, read_stack, shorten
from diag.state.job import JobState
from diag.state.rank import RankState

if TYPE_CHECKING:
    from diag.detectors.hang.verdict import Verdict

__all__ = ["describe", "evidence_of"]

# Phases of which people know the line that the log stopped at, not the name.
_QUOTED_PHASES = ("launch", "rendezvous", "model_load", "comm_init")
_PHASES = {
    "launch": "while starting",
    "rendezvous": "before the process group was up",
    "model_load": "while loading the model",
    "data_prep": "while preparing data",
    "comm_init": "while communicators were created",
    "compile": "while compiling",
    "training": "in training",
    "first_step": "before the first step",
    "eval": "during evaluation",
    "ckpt_save": "while saving a checkpoint",
    "teardown": "while shutting down",
}

def describe(verdict: Verdict, job: JobState, now: float) -> str:
    """One sentence with numbers: who, what, since when, who waits."""
    where = _PHASES.get(job.phase)
    if job.phase == "steady" and job.iteration is not None:
        where = f"after iteration {job.iteration}" + (f"/{job.total_iterations}" if job.total_iterations else "")
    if job.phase == "first_step" and job.epoch is not None:
        where = f'after "The training of Epoch {job.epoch} starts..." and before the first step'
    parts = [_subject(verdict, job), _for_how_long(verdict, now)]
    if where:
        parts.append(f" {where}")
    if job.phase in _QUOTED_PHASES and job.phase_line:
        parts.append(f', its last word on that "{job.phase_line.strip()[:120]}"')
    waiting = _waiting(verdict, job)
    if waiting:
        parts.append(f"; {waiting}")
    parts.append(f" ({job.ranks_seen} of {max(job.world_size, job.ranks_seen)} ranks seen)")
    return "".join(parts)


def _for_how_long(verdict: Verdict, now: float) -> str:
    if verdict.seconds is None:
        return f" for {now - verdict.since:.0f} s"
    return f" for at least {verdict.seconds:.0f} s" if verdict.seconds >= 1 else ", in the one moment captured,"


def _subject(verdict: Verdict, job: JobState) -> str:
    ranks = verdict.culprits
    if not ranks:
        seen = [job.ranks[rank] for rank in verdict.waiting if rank in job.ranks]
        if len(seen) == 1 and not seen[0].distributed:
            return f"the process {seen[0].placement.pid} has waited{_in(seen[0])}"
        first = next((rank for rank in seen if rank.reading is not None), None)
        return f"all {len(verdict.waiting)} ranks seen have waited{_in(first) if first else ''}{_joined_call(verdict, job)}"
    one = len(ranks) == 1
    name = f"{rank_words(ranks)} {'has' if one else 'have'}"
    rank = job.ranks.get(ranks[0])
    if rank is None:
        return f"{name} not appeared"
    if verdict.cause == "ras_dead":
        return f"{name} been out of reach of NCCL's RAS network"
    if verdict.cause == "this_node_cut_off":
        return f"{name} heard nothing of any other node"
    if verdict.cause == "node_silent":
        return f"{name} not been heard of, nor has {_hosts(verdict, job)},"
    if verdict.klass == "peer_lost":
        return f"{name} been gone ({_how_exited(rank)})"
    if verdict.klass == "gpu_side" and verdict.cause.startswith("xid_"):
        return f"{name} waited for a GPU that the driver reported broken (Xid {verdict.cause.removeprefix('xid_')})"
    if verdict.cause == "kernel_does_not_end":
        its = "its GPU, which runs" if one else "their GPUs, which run"
        return f"{name} waited{_in(rank)} for {its} a kernel that does not end"
    if verdict.klass == "gpu_side":
        return f"{name} waited{_in(rank)} with an idle GPU while the others' GPUs spin in a collective"
    if verdict.klass == "network_transport":
        return f"{name} reported an error of the network and not moved"
    if verdict.cause == "rank_says_nothing":
        return f"{name} said nothing while the others' collective timed out"
    if verdict.klass == "stopped":
        return f"{name} been stopped by a signal (state T, pid {rank.placement.pid})"
    if verdict.klass == "data_loading":
        child = rank.child_stacks.get(verdict.blamed_child or -1)
        at = f", which stands{_at(child[1])}" if child else ""
        worker = f" from DataLoader worker pid {verdict.blamed_child}{at}" if verdict.blamed_child else ""
        return f"{name} waited for a batch{worker}"
    if verdict.cause == "call_unanswered":
        return f"{name} waited{_in(rank)}, a call that nobody answers"
    if verdict.klass == "collective_mismatch":
        return f"{name} called another collective than the others{_calls(verdict)}"
    if verdict.klass == "collective_order_deadlock":
        return f"{name} waited for each other in different process groups{_where_each(verdict)}"
    if verdict.klass == "gil_deadlock":
        return f"{name} held the GIL without running{_in(rank)}"
    if verdict.klass == "checkpoint_io":
        child = rank.child_stacks.get(verdict.blamed_child or -1)
        worker = f" (writer pid {verdict.blamed_child}{_at(child[1])})" if child else ""
        return f"{name} not got on with writing the checkpoint{worker or _in(rank)}"
    if verdict.cause == "child_waits_for_lock":
        child = rank.child_stacks.get(verdict.blamed_child or -1)
        at = _at(child[1]) if child else ""
        return f"{name} waited for its child process {verdict.blamed_child}, which stands in a lock{at}"
    if verdict.klass == "lock_deadlock":
        return f"{name} waited for a lock{_in(rank)}"
    if verdict.klass == "resource_wait":
        return f"{name} been starved of a resource ({verdict.cause})"
    if verdict.klass == "teardown":
        return f"{name} been stuck in shutdown{_in(rank)}"
    return f"{name} not moved{_in(rank)}"


def _hosts(verdict: Verdict, job: JobState) -> str:
    hosts = sorted({job.ranks[rank].placement.host for rank in verdict.culprits if rank in job.ranks} - {""})
    return ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")


def _joined_call(verdict: Verdict, job: JobState) -> str:
    """Of a symmetric hang: ", all in all_reduce 26 of default_pg"."""
    found = verdict.collectives
    if found is None or found.front is None or found.kind != "all_joined":
        return ""
    front = found.front
    hosts = sorted({job.ranks[rank].placement.host for rank in front.waiting if rank in job.ranks} - {""})
    where = f" (hosts {', '.join(hosts[:8])}{' ...' if len(hosts) > 8 else ''})" if len(hosts) > 1 else ""
    return f", {len(front.waiting)} of them joined in {front.op} {front.seq} of {front.desc or front.group}{where}"


def _calls(verdict: Verdict) -> str:
    """": ranks 0,2 call all_reduce [8], rank 1 calls broadcast [8] (default_pg 7)" of a mismatch."""
    found = verdict.collectives
    if found is None or not found.signatures:
        return ""
    parts = []
    for call in found.signatures[:4]:
        one = len(call.ranks) == 1
        sizes = " ".join(str(list(size)) for size in call.sizes[:2])
        parts.append(f"{rank_words(call.ranks)} call{'s' if one else ''} {call.op} {sizes}".rstrip())
    place = f" ({found.front.desc or found.front.group} {found.front.seq})" if found.front else ""
    return ": " + ", ".join(parts) + place


def _where_each(verdict: Verdict) -> str:
    found = verdict.collectives
    if found is None:
        return ""
    culprits = set(verdict.culprits)
    parts = [
        f"rank {rank} in {wait.op} {wait.seq} of {wait.desc or wait.group}"
        for rank, wait in sorted(found.waiting.items())
        if rank in culprits
    ]
    return " (" + ", ".join(parts[:4]) + ")" if parts else ""


def _waiting(verdict: Verdict, job: JobState) -> str:
    if not verdict.culprits or not verdict.waiting:
        return ""
    calls: dict[str, list[int]] = {}
    for number in verdict.waiting:
        reading = job.ranks[number].reading if number in job.ranks else None
        calls.setdefault(_call(reading), []).append(number)
    parts = []
    for call, ranks in sorted(calls.items(), key=lambda item: -len(item[1])):
        verb = "waits" if len(ranks) == 1 else "wait"
        parts.append(f"{rank_words(ranks)} {verb}{' in ' + call if call else ''}")
    return ", ".join(parts[:3])


def _call(reading: Reading | None) -> str:
    if reading is None or reading.where is None:
        return ""
    inside = reading.caller
    name = reading.where.function
    return f"{name} (from {inside.function}, {shorten(inside.file)}:{inside.line})" if inside else name


def _in(rank: RankState) -> str:
    reading = rank.reading
    if reading is None or reading.where is None:
        return ""
    frame = reading.where
    return f" in {frame.function} ({shorten(frame.file)}:{frame.line})"


def _at(sample: StackSample) -> str:
    main = sample.main
    if main is None or not main.frames:
        return ""
    frame = main.frames[-1]
    return f" in {frame.function} ({shorten(frame.file)}:{frame.line})"


def _how_exited(rank: RankState) -> str:
    if rank.exit is None:
        return "gone"
    if rank.exit.signal is not None:
        return f"killed by signal {rank.exit.signal}"
    return f"exit code {rank.exit.exit_code}" if rank.exit.exit_code is not None else "exit code unknown"


def evidence_of(verdict: Verdict, job: JobState, now: float) -> Iterator[Evidence]:
    """The culprits' stacks and process states, the child to blame, one victim, the last sign of life."""
    for number in verdict.culprits[:3]:
        rank = job.ranks.get(number)
        if rank is None:
            continue
        main = rank.stack.main if rank.stack else None
        if rank.stack is not None and main is not None:
            yield Evidence(rank.stack.how, stack_excerpt(main, read_stack(main)), rank.stack_at, number)
            yield from _other_thread(rank, verdict)
        child = rank.child_stacks.get(verdict.blamed_child or -1)
        if child is not None and child[1].main is not None:
            text = f"child pid {child[1].pid}: " + stack_excerpt(child[1].main, read_stack(child[1].main))
            yield Evidence(child[1].how, text, child[0], number)
        if rank.tree is not None:
            yield Evidence("proc", _process_words(rank), rank.tree_at, number)
    for number in [rank for rank in verdict.waiting if rank in job.ranks and job.ranks[rank].stack][:1]:
        rank = job.ranks[number]
        main = rank.stack.main if rank.stack else None
        if rank.stack is not None and main is not None:
            yield Evidence(rank.stack.how, stack_excerpt(main, read_stack(main)), rank.stack_at, number)
    found = verdict.collectives
    if found is not None:
        waits = [f"rank {rank} waits in {wait.op} {wait.seq} of {wait.desc or wait.group}"
                 for rank, wait in sorted(found.waiting.items())[:8]]
        late = f"; {rank_words(found.culprits)} has not come to it" if found.kind == "absent_rank" else _calls(verdict)
        yield Evidence("flight_recorder", ", ".join(waits) + late, now)
    save = job.save_log.current
    if verdict.klass == "checkpoint_io" and save is not None and save.growth:
        at, size = save.growth[-1]
        yield Evidence("checkpoint", f"{size / (1 << 20):.1f} MiB on disk, and not a byte more for {now - at:.0f} s", at)
    for note in verdict.notes[:8]:
        yield Evidence(note.kind, note.text, now, note.rank)
    if verdict.seconds is None and job.log_moved_at is not None and job.tail:
        yield Evidence("output", f"last sign of progress {now - job.log_moved_at:.0f} s ago", job.log_moved_at)


def _other_thread(rank: RankState, verdict: Verdict) -> Iterator[Evidence]:
    if verdict.cause != "threads_wait_for_each_other" or rank.stack is None:
        return
    main = rank.stack.main
    others = [thread for thread in rank.stack.threads if thread is not main and len(thread.frames) > 2]
    for thread in others[:2]:
        text = f"thread {thread.name or thread.thread_id}: " + stack_excerpt(thread, read_stack(thread))
        yield Evidence(rank.stack.how, text, rank.stack_at, rank.rank)


def _process_words(rank: RankState) -> str:
    assert rank.tree is not None
    main = rank.tree.main
    words = [f"pid {main.pid} state {main.state}"]
    if main.wchan and main.wchan != "0":
        words.append(f"wchan {main.wchan}")
    if rank.cpu_ratio is not None:
        words.append(f"{100 * rank.cpu_ratio:.0f} % CPU")
    states = "".join(child.state for child in rank.tree.children)
    if states:
        words.append(f"{len(states)} children in states {''.join(sorted(states))}")
    return ", ".join(words)


def stack_excerpt(thread: ThreadStack, reading: Reading, depth: int = 6) -> str:
    """The innermost frames, innermost first, each `function (file:line)`, the deciding one included."""
    frames = list(thread.frames[-depth:])
    if reading.where is not None and reading.where not in frames:
        frames = [reading.where, *frames[1:]]
        if reading.caller is not None:
            frames = [reading.caller, *frames[:-1]] if len(frames) > 1 else [reading.caller, *frames]
    return " < ".join(f"{frame.function} ({shorten(frame.file)}:{frame.line})" for frame in reversed(frames))
