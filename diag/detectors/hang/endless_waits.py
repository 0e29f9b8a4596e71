"""Why what a culprit waits for never comes: by what the other threads and processes that could bring it wait for
themselves, and who of them has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from diag.detectors.hang.catalogue import entry_of
from diag.detectors.hang.endless_processes import (
    circle_of_pipes,
    full_channel,
    in_a_peer,
    joined_before_drained,
    lock_left_to_a_fork,
    lock_of_a_dead_process,
    message_cut_off,
    pipe_kept_open,
    queue_without_reader,
)
from diag.detectors.hang.own_locks import holder_of
from diag.detectors.hang.scene import Endless, Scene, scene_of
from diag.detectors.hang.shared_locks import semaphores_in_turn
from diag.detectors.hang.verdict import Note, Verdict
from diag.detectors.hang.wait_text import format_wait
from diag.model import numbered
from diag.state.python_waits import awaits_task, is_in_event_loop, is_in_task, pool_of
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.state.wait_chain import Step

# Causes that say where it waits; who could end that says more.
_OPEN = (
    "lock_not_released", "nobody_releases_lock", "threads_wait_for_each_other", "not_in_collective", "unknown",
    "teardown_blocked", "exception_before_shutdown", "thread_does_not_end", "child_does_not_end",
    "dataloader_worker_blocked", "dataloader_main_process", "checkpoint_writer_blocked", "checkpoint_write_blocked",
    "preprocess_blocked", "process_is_silent", "process_does_not_read", "process_takes_nothing", "file_lock_held",
    "lock_of_a_lone_thread", "forked_without_threads", "pipe_without_other_end",
)  # fmt: skip
_LATE = (
    "exception_before_shutdown",
)  # whose exception is the cause, and which only the words of others complete
# Of a wait that nobody is left to end, by what is waited for.
NOBODY: dict[str, str] = {
    "queue_get": "nobody_puts",
    "queue_put": "nobody_takes",
    "event": "nobody_sets",
    "condition": "nobody_sets",
    "process_event": "nobody_sets",
    "barrier": "barrier_is_short",
    "process_barrier": "process_barrier_is_short",
    "semaphore": "permits_are_gone",
    "future": "nobody_gives_result",
}
_INHERITED = ("queue_get", "queue_put", "event", "condition", "barrier", "semaphore", "future")
# Around what a thread of torch's RPC agent calls, and what the system calls such threads, the idle ones too (torch 2.0-2.13).
_RPC = ("_run_function", "torch/distributed/rpc/internal.py")
_RPC_POOL = "pt_thread_pool"
_TASK_WAITS = ("future", "result")
_SHOWN = 2
# Classes of a hang that say what the rank is at, which stays true.
_KEPT = ("teardown", "data_loading", "checkpoint_io", "preprocess_wait")


def with_endless_wait(verdict: Verdict, job: JobView) -> Verdict:
    rules = _OF_THE_ENDED if verdict.cause == "worker_ended" else _RULES if verdict.cause in _OPEN else ()
    if not rules or (verdict.by_kernel and verdict.cause == "threads_wait_for_each_other"):
        return verdict
    scene = scene_of(verdict, job)
    reason = next((found for rule in rules if (found := rule(scene))), None) if scene is not None else None
    if scene is None or reason is None:
        return verdict
    described = replace(
        verdict, words=reason.words or verdict.words, chain=scene.chain if reason.chain else None
    ).noted(*_notes(scene, reason))
    if verdict.cause in _LATE or not reason.cause:
        return replace(described, words=" and ".join(filter(None, (verdict.words, reason.words))))
    klass = verdict.klass if verdict.klass in _KEPT else "lock_deadlock"
    if klass == "lock_deadlock" and klass not in entry_of(reason.cause).classes:
        klass = "peer_not_joined" if verdict.waiting else "unknown"
    return replace(described, klass=klass, cause=reason.cause, by_kernel=reason.proven)


def _notes(scene: Scene, reason: Endless) -> Iterator[Note]:
    sample = scene.rank.sample(scene.process.pid)
    for tid in reason.tids[:_SHOWN]:
        thread = scene.threads.get(tid)
        if thread is not None and sample is not None:
            path = " < ".join(format_frame(one, scene.cwd) for one in reversed(thread.frames[-4:]))
            yield Note(sample.how, f"{scene.name(tid)}: {path}", scene.rank.rank)


# --- in one process


def _pool_waits_for_itself(scene: Scene) -> Endless | None:
    """Every thread of a pool is in a task that waits for another task, and none is idle."""
    if not scene.nobody:
        return None
    pools: dict[str, list[int]] = {}
    for tid, thread in scene.threads.items():
        if is_in_task(thread) or awaits_task(thread):
            pools.setdefault(pool_of(thread), []).append(tid)
    for tids in pools.values():
        waits = [scene.waits.get(tid) for tid in tids]
        if all(wait is not None and wait.in_task and wait.kind in _TASK_WAITS for wait in waits):
            count = len(tids)
            whom = f"all {count} threads of the pool are" if count > 1 else "the only thread of the pool is"
            words = f"{whom} in a task that waits for other tasks ({scene.at(tids[0])}): none is left to run these"
            return Endless("pool_waits_for_itself", words, True, chain=False, tids=tuple(tids))
    return None


def _rpc_threads_are_taken(scene: Scene) -> Endless | None:
    """Of a rank that runs calls of others (torch.distributed.rpc): all threads that do are in calls that wait for a word of
    another call; or for the answer to one that they made, where its main thread does so too. Else that one only serves,
    or waits for the end."""
    if scene.process.pid != scene.rank.placement.pid:
        return None
    taken = [
        tid
        for tid, thread in scene.threads.items()
        if any(one.function == _RPC[0] and one.file.endswith(_RPC[1]) for one in thread.frames)
    ]
    threads = [thread for tid in taken if (thread := scene.process.thread(tid)) is not None]
    if not taken or len(threads) < len(taken) or not all(_waits_for_a_call(scene, tid) for tid in taken):
        return None
    if any(one.wait.kind != "condition" or one.wait.timed or not one.same for one in threads):
        return None
    idle = {one.tid for one in scene.process.threads if one.name == _RPC_POOL} - {*taken}
    if idle or scene.may_act(scene.last):
        return None
    places = Counter(scene.at(tid) for tid in taken)
    count = len(taken)
    whom = numbered(f"[the only thread|{'both' if count == 2 else f'all {count}'} threads]", count)
    words = (
        f"{whom} that {numbered('[runs|run]', count)} calls of other ranks (RPC) {numbered('[waits|wait]', count)} "
        f"{_most(places)}, and none is left to run a call that would end that"
    )
    return Endless("rpc_threads_are_taken", words, chain=False, tids=tuple(taken))


def _waits_for_a_call(scene: Scene, tid: int) -> bool:
    wait, main = scene.waits.get(tid), scene.wait
    asks = main is not None and main.kind == "rpc_answer"
    return wait is not None and (wait.kind in NOBODY or (asks and wait.kind == "rpc_answer"))


def _most(places: Counter[str]) -> str:
    """ "2 in Condition.wait_for, in Server.pull (ps.py:39)"."""
    shown = [f"{count} in {place}" for place, count in places.most_common(_SHOWN)]
    return " and ".join(shown) if len(places) > 1 else f"in {next(iter(places))}"


def _event_loop_is_blocked(scene: Scene) -> Endless | None:
    """What an event loop has called waits itself, so that nothing else of the loop goes on."""
    if not scene.nobody:
        return None
    found = [tid for tid in scene.waits if is_in_event_loop(scene.threads[tid])]
    if not found:
        return None
    who = "it" if found[0] == scene.last.thread.tid else scene.name(found[0])
    words = (
        f"{who} runs an event loop, which has called {scene.at(found[0])} and is blocked until that returns"
    )
    return Endless("event_loop_is_blocked", words, chain=scene.leads_on, tids=tuple(found))


def _lock_of_the_program(scene: Scene) -> Endless | None:
    """A lock of its own: another thread is inside of a block that has it, as the text shows."""
    tid, wait = scene.last.thread.tid, scene.last.wait
    if wait.kind != "condition" or wait.timed or scene.chain.behind is not None:
        return None
    holder = holder_of(scene, tid)
    thread = scene.process.thread(holder.tid) if holder is not None else None
    if holder is None or thread is None or not thread.same:
        return None
    place = format_frame(holder.frame, scene.cwd)
    words = f"{scene.name(holder.tid)} is inside of `with {holder.lock}:` in {place}"
    back = holder_of(scene, holder.tid)
    if back is not None and back.tid == tid and thread.wait.kind == "condition" and not thread.wait.timed:
        where = format_frame(back.frame, scene.cwd)
        words += f" and waits for `{back.lock}`, which {scene.name(tid)} took in {where}"
        return Endless("threads_wait_for_each_other", words, scene.nobody, scene.leads_on, (holder.tid,))
    waits = holder.tid in scene.waits
    does = f"waits in {scene.at(holder.tid)}" if waits else format_wait(Step(scene.process, thread))
    words += f", and {does}{', which nobody is left to end' if scene.nobody else ''}"
    return Endless("lock_held", words, chain=scene.leads_on, tids=(holder.tid,))


def _queue_is_joined(scene: Scene) -> Endless | None:
    wait = scene.wait
    if wait is None or wait.kind != "queue_join" or not scene.nobody:
        return None
    takers = [
        tid
        for tid in scene.others_in("queue_get")
        if not wait.object or scene.waits[tid].object in (0, wait.object)
    ]
    if not takers:
        words = "no thread is left that takes from that queue"
        words = " and ".join(filter(None, (words, scene.kept_exception())))
        return Endless("nobody_takes", words, chain=scene.leads_on)
    words = f"nothing is left in that queue: {_some(scene, takers)}"
    return Endless("task_done_missing", words, True, scene.leads_on, tuple(takers))


def _inherited(scene: Scene) -> Endless | None:
    """A process that was forked waits for what only threads give, and has none that could."""
    wait, process = scene.wait, scene.process
    if wait is None or not process.forked or process.pid == scene.rank.placement.pid:
        return None
    if wait.kind not in _INHERITED or scene.last.wait.kind != "condition" or not scene.nobody:
        return None
    words = f"pid {process.pid} waits in {scene.at(scene.last.thread.tid)}"
    if scene.last.wait.dead_end != "alone" or not scene.leads_on:
        words += ", is a fork, and no other thread of it could give that"
    return Endless("inherited_by_fork", words, True, chain=scene.leads_on)


def _thread_at_the_end(scene: Scene) -> Endless | None:
    """At its exit Python joins threads that are no daemons: one of them waits for more work."""
    first = scene.chain.steps[0]
    wait = scene.wait
    if first.wait.kind != "join" or scene.verdict.klass != "teardown" or wait is None or not scene.nobody:
        return None
    if (
        wait.kind not in ("queue_get", "event", "condition", "semaphore")
        or scene.process is not first.process
    ):
        return None
    tid = scene.last.thread.tid
    return Endless("thread_not_ended", f"{scene.name(tid)} waits in {scene.at(tid)}", True, tids=(tid,))


def _full_queue_beside(scene: Scene) -> Endless | None:
    """It waits for a lock, and of the threads that are left one waits to put into a queue that no other takes from."""
    if scene.wait is not None or scene.last.wait.kind != "condition" or not scene.nobody:
        return None
    puts, takes = scene.others_in("queue_put"), scene.others_in("queue_get")
    if len(puts) != 1:
        return None
    queue = scene.waits[puts[0]].object
    if any(not queue or scene.waits[tid].object in (0, queue) for tid in takes):
        return None
    words = f"{scene.name(puts[0])} waits in {scene.at(puts[0])}: that queue is full, and no other thread takes from it"
    return Endless("full_queue_beside_lock", words, chain=scene.leads_on, tids=(puts[0],))


def _nobody_is_left(scene: Scene) -> Endless | None:
    wait = scene.wait
    cause = NOBODY.get(wait.kind, "") if wait is not None else ""
    if not cause or scene.last.wait.kind not in ("condition", "semaphore") or not scene.nobody:
        return None
    words = ""
    if cause == "barrier_is_short":
        count = sum(one.kind == "barrier" for one in scene.waits.values())
        words = numbered(f"{count} [thread waits|threads wait] at that barrier", count)
    passive = [step.thread.tid for step in scene.found.passive] if scene.found is not None else []
    if not words and (others := [tid for tid in passive if tid in scene.waits]):
        words = f"{_some(scene, others)} as well"
    kept = scene.kept_exception()
    words = " and ".join(filter(None, (words, scene.ended_thread(), kept)))
    cause = "exception_is_kept" if kept else cause
    return Endless(cause, words, chain=scene.leads_on, tids=tuple(passive))


def _some(scene: Scene, tids: list[int]) -> str:
    shown = [f"{scene.name(tid)} waits in {scene.at(tid)}" for tid in tids[:_SHOWN]]
    more = f" ({len(tids) - _SHOWN} more)" if len(tids) > _SHOWN else ""
    return " and ".join(shown) + more


_RULES = (
    _rpc_threads_are_taken, _pool_waits_for_itself, _event_loop_is_blocked, _lock_of_the_program, _queue_is_joined,
    _inherited, _thread_at_the_end, joined_before_drained, queue_without_reader, lock_of_a_dead_process, message_cut_off,
    full_channel, semaphores_in_turn,
    circle_of_pipes, lock_left_to_a_fork, pipe_kept_open, in_a_peer,
    _full_queue_beside, _nobody_is_left,
)  # fmt: skip
_OF_THE_ENDED = (
    lock_of_a_dead_process,
    message_cut_off,
    full_channel,
)  # say more than that a child has ended
