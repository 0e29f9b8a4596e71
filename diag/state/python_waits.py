"""What a Python thread waits for, by the part of the standard library that it is in: a queue, a future, an event."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diag.model.observations import Frame, StackSample, ThreadStack
from diag.state.own_code import own_frames, package_of
from diag.text.units import format_path

# Kind, file and functions (CPython 3.8-3.13; of a method the last part, but for those that share one). The outermost
# that is found decides: a queue waits on a condition.
_WAITS = (
    ("queue_get", "queue.py", "get"),
    ("queue_put", "queue.py", "put"),
    ("queue_join", "queue.py", "join"),
    ("future", "concurrent/futures/_base.py", "result exception wait as_completed result_iterator"),
    ("result", "multiprocessing/pool.py", "get wait next"),
    ("channel_get", "multiprocessing/queues.py", "get"),
    ("channel_put", "multiprocessing/queues.py", "put"),
    ("channel_feed", "multiprocessing/queues.py", "_feed"),
    ("channel_join", "multiprocessing/queues.py", "join"),
    ("thread_join", "threading.py", "join _shutdown"),
    ("event", "threading.py", "Event.wait"),
    ("barrier", "threading.py", "Barrier.wait"),
    ("semaphore", "threading.py", "Semaphore.acquire Semaphore.__enter__"),
    ("condition", "threading.py", "Condition.wait Condition.wait_for"),
    ("process_lock", "multiprocessing/synchronize.py", "__enter__"),
    ("rpc_answer", "torch/distributed/rpc/api.py", "rpc_sync"),  # torch 1.8-2.13
    ("process_event", "multiprocessing/synchronize.py", "wait wait_for"),
)  # fmt: skip
# Around what a task of a pool of threads calls, and where one of its threads waits for a task.
_TASKS = (("_WorkItem.run", "concurrent/futures/thread.py"), ("worker", "multiprocessing/pool.py"))
_LOOP = ("BaseEventLoop._run_once", "asyncio/base_events.py")
_IDLE = ("_worker", "concurrent/futures/thread.py")
_OF_PROCESSES = "multiprocessing/synchronize.py"  # whose Barrier is threading's, on a condition of its own
_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class PythonWait:
    """`inner`: the function of the standard library; `own`: the program's own line that called it; `in_task`: in a task
    that a pool of threads runs. `object`: the queue, event or future, by its address, which is the same in a fork."""

    kind: str
    inner: Frame
    own: Frame | None
    in_task: bool = False
    object: int = 0


def python_wait(thread: ThreadStack) -> PythonWait | None:
    """None where its innermost frames are none of these: it may wait for a lock, in C, which has no frame."""
    found: tuple[str, int] | None = None
    for at in range(len(thread.frames) - 1, -1, -1):
        frame = thread.frames[at]
        if kind := _kind(frame):
            found = kind, at
        elif package_of(frame.file) or frame in own_frames((frame,)):
            break
    if found is None:
        return None
    kind, at = found
    own = own_frames(thread.frames[:at])
    inner = thread.frames[at]
    if kind == "barrier" and any(format_path(one.file) == _OF_PROCESSES for one in thread.frames[at:]):
        kind = "process_barrier"
    address = next((number for name, number in thread.objects if name == inner.function), 0)
    return PythonWait(kind, inner, own[-1] if own else None, is_in_task(thread), address)


def _kind(frame: Frame) -> str:
    name = frame.function.rpartition(".")[2]
    for kind, file, functions in _WAITS:
        if format_path(frame.file) == file and {name, frame.function} & {*functions.split()}:
            return kind
    return ""


def is_in_task(thread: ThreadStack) -> bool:
    return any(_is(frame, *task) for frame in thread.frames for task in _TASKS)


def is_in_event_loop(thread: ThreadStack) -> bool:
    """Called by an event loop, which does nothing else before that returns."""
    return any(_is(frame, *_LOOP) for frame in thread.frames)


def awaits_task(thread: ThreadStack) -> bool:
    """An idle thread of a pool: ready for the next task that comes."""
    return bool(thread.frames) and _is(thread.frames[-1], *_IDLE)


def _is(frame: Frame, function: str, file: str) -> bool:
    bare = function.rpartition(".")[2]
    return frame.function in (function, bare) and frame.file.endswith(file)


def pool_of(thread: ThreadStack) -> str:
    """What all threads of one ThreadPoolExecutor are called, but for their number.

    >>> [pool_of(ThreadStack(1, name, ())) for name in ("pack_0", "ThreadPoolExecutor-0_13", "MainThread")]
    ['pack', 'ThreadPoolExecutor-0', '']
    """
    found = _NUMBER.search(thread.name)
    return thread.name[: found.start()] if found else ""


def waits_of(sample: StackSample | None) -> Mapping[int, PythonWait]:
    """Of each thread by its id, where it waits so."""
    return dict(_waits(sample)) if sample is not None else {}


def _waits(sample: StackSample) -> Iterator[tuple[int, PythonWait]]:
    for thread in sample.threads:
        if (found := python_wait(thread)) is not None:
            yield thread.thread_id, found
