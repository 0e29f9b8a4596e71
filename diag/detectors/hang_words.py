"""The sentence, the evidence and the advice of a hang verdict. Words only: `hang` decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from diag.jobstate import JobState
from diag.model import Evidence, format_ranks
from diag.observations import StackSample, ThreadStack
from diag.rankstate import RankState
from diag.stacks import Reading, read_stack, shorten

if TYPE_CHECKING:
    from diag.detectors.verdict import Verdict

__all__ = ["advice_for", "describe", "evidence_of"]

_PHASES = {
    "launch": "while starting",
    "rendezvous": "before the process group was up",
    "model_load": "while loading the model",
    "data_prep": "while preparing data",
    "comm_init": "while communicators were created",
    "compile": "while compiling",
    "training": "in training",
    "first_step": 'after "The training of Epoch 0 starts..." and before the first step',
    "eval": "during evaluation",
    "ckpt_save": "while saving a checkpoint",
    "teardown": "while shutting down",
}

_ADVICE = {
    "dataloader_worker_blocked": "Look at what the worker reads (file, network file system, URL, lock) at the line shown; "
    "`ls -l /proc/{child}/fd` names the open file. To go on without it: --dataloader_num_workers 0 shows the error in "
    "the rank itself, a DataLoader timeout= turns the wait into an error.",
    "dataloader_worker_stopped": "DataLoader worker {child} is stopped by a signal (state T): `kill -CONT {child}` lets the job "
    "go on; find who sent SIGSTOP (a debugger, a cgroup freezer, job control).",
    "dataloader_main_process": "The rank itself waits for its batch at the line shown: check the data source there, and whether "
    "its DataLoader workers still live (`diag dump --all-ranks` lists them).",
    "checkpoint_writer_blocked": "The writer process {child} cannot finish its write: check the file system of the output "
    "directory (`df`, `stat -f`, server messages in dmesg), or save to a local disk.",
    "checkpoint_write_blocked": "The write of the checkpoint does not go on: check the file system of the output directory "
    "(`df`, `stat -f`, server messages in dmesg), or save to a local disk.",
    "threads_wait_for_each_other": "Two threads of this rank wait for locks at the lines shown: take the locks in one order, or "
    "do not hold one while taking the other.",
    "lock_not_released": "The main thread waits for a lock, queue or thread at the line shown, and nothing in this process "
    "moves: find the thread that should release it (`diag dump --all-ranks` shows all threads).",
    "stale_file_lock": "A lock file of a killed job is left over: no compiler runs, yet the rank waits for one. Delete the lock "
    "in the extension or cache directory shown (torch_extensions, triton cache) and start again.",
    "gil_held": "The main thread sleeps in a C extension without releasing the GIL: the line shown calls it. Update or patch the "
    "extension; other threads of the rank (watchdog, data, log) cannot run meanwhile.",
    "memory_high": "The memory cgroup of this rank is above memory.high: the kernel throttles it to a crawl. Raise the memory "
    "limit of the pod or container, or lower host memory use (fewer DataLoader workers, no optimizer offload).",
    "open_files": "The rank is at its limit of open files: raise it (`ulimit -n 65536`, or LimitNOFILE / the container's "
    "ulimits).",
    "dev_shm_full": "/dev/shm is full: give the container more (docker --shm-size=16g, Kubernetes: emptyDir medium Memory on "
    "/dev/shm), or use fewer DataLoader workers.",
    "external_service": "Rank {ranks} waits for an answer over HTTP at the line shown (a rollout server, a download, a "
    "tracker): see whether that service lives and answers.",
    "rank_left_early": "Rank {ranks} finished and left while the others still wait for it: look for a loop that is one step "
    "shorter there (uneven data, drop_last, an early break).",
    "sigstop": "Rank {ranks} is stopped by a signal (state T): `kill -CONT {pids}` lets the job go on; find who sent SIGSTOP "
    "(a debugger, a cgroup freezer, job control).",
    "rank_exited": "Find why rank {ranks} ended: its last lines are in the rank-died finding. The others wait for it for ever: "
    "end the job and start it again from the last checkpoint.",
    "not_in_collective": "Rank {ranks} is in its own code at the line shown and has not joined the call the others wait in: "
    "look for a branch only this rank takes (if rank == ..., an early continue, a wait for an event or a service).",
    "calls_differ": "The ranks call different collectives at the same point (the evidence shows both): look for a branch that "
    "depends on the rank, on the data, or on a shape that differs, at the lines their stacks show.",
    "groups_in_opposite_order": "Ranks {ranks} use two process groups in opposite order, each waiting for the other: issue "
    "the collectives of all groups in one order on all ranks.",
    "preprocess_blocked": "Data preparation on rank {ranks} does not move: check the data source and its worker processes.",
    "compiler_stalled": "The compilation on rank {ranks} has no running compiler process: look at the cache directory and its "
    "locks.",
    "teardown_blocked": "Rank {ranks} is ending and cannot: read its last lines for an exception that was hidden by the "
    "shutdown.",
    "ranks_missing": "Ranks {ranks} never appeared: check that every node was started with the same world size, MASTER_ADDR and "
    "MASTER_PORT, and that the address is reachable from all (`diag doctor` on the missing node).",
    "not_all_joined": "Not all ranks came to the process group's initialisation: see which one is late and why in "
    "`diag dump --all-ranks`.",
    "no_stack": "Let diag read the stacks of these ranks (see `not checked`), then look again.",
    "all_ranks_wait": "All ranks wait in the call shown and none stands apart: suspect the network or a GPU. Run "
    "`diag dump --all-ranks`; look for port errors, Xid messages and a GPU with no power draw.",
    "culprit_not_seen": "Every rank seen here waits; the one they wait for is on a node that this diag does not see. Run "
    "`diag dump --all-ranks` on the other nodes.",
}


def describe(verdict: Verdict, job: JobState, now: float) -> str:
    """One sentence with numbers: who, what, since when, who waits."""
    where = _PHASES.get(job.phase)
    if job.phase == "steady" and job.iteration is not None:
        where = f"after iteration {job.iteration}" + (f"/{job.total_iterations}" if job.total_iterations else "")
    parts = [f"{_subject(verdict, job)} for {now - verdict.since:.0f} s"]
    if where:
        parts.append(f" {where}")
    waiting = _waiting(verdict, job)
    if waiting:
        parts.append(f"; {waiting}")
    parts.append(f" ({job.ranks_seen} of {max(job.world_size, job.ranks_seen)} ranks seen)")
    return "".join(parts)


def _subject(verdict: Verdict, job: JobState) -> str:
    ranks = verdict.culprits
    if not ranks:
        first = job.ranks[verdict.waiting[0]]
        if not first.distributed:
            return f"the process {first.placement.pid} has waited{_in(first)}"
        return f"all {len(verdict.waiting)} ranks seen have waited{_in(first)}"
    one = len(ranks) == 1
    name = f"rank{'' if one else 's'} {format_ranks(ranks)} {'has' if one else 'have'}"
    rank = job.ranks.get(ranks[0])
    if rank is None:
        return f"{name} not appeared"
    if verdict.klass == "peer_lost":
        return f"{name} been gone ({_how_exited(rank)})"
    if verdict.klass == "stopped":
        return f"{name} been stopped by a signal (state T, pid {rank.placement.pid})"
    if verdict.klass == "data_loading":
        child = rank.child_stacks.get(verdict.blamed_child or -1)
        at = f", which stands{_at(child[1])}" if child else ""
        worker = f" from DataLoader worker pid {verdict.blamed_child}{at}" if verdict.blamed_child else ""
        return f"{name} waited for a batch{worker}"
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
    if verdict.klass == "lock_deadlock":
        return f"{name} waited for a lock{_in(rank)}"
    if verdict.klass == "resource_wait":
        return f"{name} been starved of a resource ({verdict.cause})"
    if verdict.klass == "teardown":
        return f"{name} been stuck in shutdown{_in(rank)}"
    return f"{name} not moved{_in(rank)}"


def _calls(verdict: Verdict) -> str:
    """": ranks 0,2 call all_reduce [8], rank 1 calls broadcast [8] (default_pg 7)" of a mismatch."""
    found = verdict.collectives
    if found is None or not found.signatures:
        return ""
    parts = []
    for call in found.signatures[:4]:
        one = len(call.ranks) == 1
        sizes = " ".join(str(list(size)) for size in call.sizes[:2])
        parts.append(f"rank{'' if one else 's'} {format_ranks(call.ranks)} call{'s' if one else ''} {call.op} {sizes}".rstrip())
    place = f" ({found.front.desc or found.front.group} {found.front.seq})" if found.front else ""
    return ": " + ", ".join(parts) + place


def _where_each(verdict: Verdict) -> str:
    found = verdict.collectives
    if found is None:
        return ""
    parts = [
        f"rank {rank} in {wait.op} {wait.seq} of {wait.desc or wait.group}"
        for rank, wait in sorted(found.waiting.items())
        if rank in verdict.culprits
    ]
    return " (" + ", ".join(parts[:4]) + ")" if parts else ""


def _waiting(verdict: Verdict, job: JobState) -> str:
    if not verdict.culprits or not verdict.waiting:
        return ""
    calls: dict[str, list[int]] = {}
    for number in verdict.waiting:
        reading = job.ranks[number].reading
        calls.setdefault(_call(reading), []).append(number)
    parts = []
    for call, ranks in sorted(calls.items(), key=lambda item: -len(item[1])):
        verb = "waits" if len(ranks) == 1 else "wait"
        parts.append(f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)} {verb}{' in ' + call if call else ''}")
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


def advice_for(verdict: Verdict, job: JobState) -> str:
    text = _ADVICE.get(verdict.cause, "Run `diag dump --all-ranks` and look at the ranks that stand apart.")
    pids = [job.ranks[rank].placement.pid for rank in verdict.culprits if rank in job.ranks]
    return text.format(
        child=verdict.blamed_child or "PID",
        ranks=format_ranks(verdict.culprits),
        pids=" ".join(map(str, pids)),
    )


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
    for number in verdict.waiting[:1]:
        rank = job.ranks[number]
        main = rank.stack.main if rank.stack else None
        if rank.stack is not None and main is not None:
            yield Evidence(rank.stack.how, stack_excerpt(main, read_stack(main)), rank.stack_at, number)
    found = verdict.collectives
    if found is not None:
        waits = [f"rank {rank} waits in {wait.op} {wait.seq} of {wait.desc or wait.group}"
                 for rank, wait in sorted(found.waiting.items())[:8]]
        late = f"; rank {format_ranks(found.culprits)} has not come to it" if found.kind == "absent_rank" else _calls(verdict)
        yield Evidence("flight_recorder", ", ".join(waits) + late, now)
    if job.log_moved_at is not None and job.tail:
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
