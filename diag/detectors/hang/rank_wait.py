"""The state of one living rank in a silent job: joined in a call, stopped, starved, or blocked, and in what."""

from __future__ import annotations

from diag.detectors.memory.stall import waits_for
from diag.model.observations import StackSample, ThreadStack
from diag.model.observations.waits import ThreadWait
from diag.state.idle import is_idle_child
from diag.state.python_waits import python_wait
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity, Reading, is_in_lock, read_stack

_WAITS_FOR_CHILD = ("multiprocessing/popen_fork.py", "multiprocessing/popen_spawn_posix.py", "subprocess.py")
_BEGINS_A_PROGRAM = "subprocess.py"  # in the child, which is then no copy of the rank any more

# The state of a rank that waits for others. On a GPU the wait for a peer's kernel shows as a wait for the GPU.
WAITS = ("joined", "gpu", "rendezvous", "comm_init")
BLOCKED = {
    Activity.DATA: "data_loading",
    Activity.PREPROCESS: "preprocess_wait",
    Activity.CHECKPOINT: "checkpoint_io",
    Activity.COMPILE: "compile_wait",
    Activity.FILE_LOCK: "lock_deadlock",
    Activity.LOCK: "lock_deadlock",
    Activity.TEARDOWN: "teardown",
    Activity.SERVICE: "resource_wait",
}


_WITH_OTHERS = {
    Activity.COLLECTIVE: "joined",
    Activity.BACKWARD: "joined",
    Activity.GPU_SYNC: "gpu",
    Activity.RENDEZVOUS: "rendezvous",
    Activity.COMM_INIT: "comm_init",
}

PEER_WAITS = tuple(_WITH_OTHERS)
# Ours, a second: who works between short waits wakes up so often. Between two readings half a second apart one waking up is none.
_GOES_ON_SWITCHES = 2.0
_COMPUTES_RATIO = 0.5  # of the time, on a core or ready for one
_FRESH_SECONDS = 30.0  # between a child's stack and what the kernel says of it
LOCK_WAITS = ("condition", "mutex", "semaphore")  # of `Wait.kind`


def classify_rank(rank: RankView) -> str:
    """The state of a living rank: stopped, joined (waits for peers), gpu, init, blind, or a class it is blocked
    in."""
    if rank.stopped:
        return "stopped"
    if rank.told is not None:
        return rank.told[0]
    if rank.reading is None:
        return "blind"
    activity = rank.reading.activity
    if activity in _WITH_OTHERS:
        return _WITH_OTHERS[activity]
    if _starved_of(rank):
        return "resource_wait"
    if _holds_gil_idle(rank):
        return "gil_deadlock"
    if activity in (Activity.LOCK, Activity.OTHER):
        return _in_a_lock_or_elsewhere(rank, rank.reading)
    return BLOCKED[activity]


def _in_a_lock_or_elsewhere(rank: RankView, reading: Reading) -> str:
    if reading.context is Activity.CHECKPOINT:
        return "checkpoint_io"
    if reading.context is Activity.TEARDOWN:
        return "teardown"
    if reading.activity is Activity.LOCK or _deadlocked_threads(rank) or _child_in_a_lock(rank) is not None:
        return "lock_deadlock"
    return "outside"


def cause_of(rank: RankView, state: str) -> tuple[str, int | None]:
    """The cause, one of a fixed set, and the child process that is to blame, when one is."""
    if rank.told is not None and rank.told[0] == state and rank.told[1]:
        return rank.told[1], rank.told[2]
    if state == "data_loading":
        stopped = _stopped_child(rank)
        if stopped is not None:
            return "dataloader_worker_stopped", stopped
        child = busy_child(rank)
        if child is None:
            return "dataloader_main_process", None
        if _computes(rank, child.pid):
            return "dataloader_worker_busy", child.pid
        goes_on = child_switches(rank, child.pid) >= _GOES_ON_SWITCHES
        return "dataloader_worker_slow" if goes_on else "dataloader_worker_blocked", child.pid
    if state == "checkpoint_io":
        child = busy_child(rank)
        if child is None:
            return "checkpoint_write_blocked", None
        computes = _computes(rank, child.pid)
        return "checkpoint_writer_busy" if computes else "checkpoint_writer_blocked", child.pid
    if state == "lock_deadlock":
        if rank.activity is Activity.FILE_LOCK:
            return "stale_file_lock", None
        forked = _child_in_a_lock(rank)
        if forked is not None:
            return "child_waits_for_lock", forked
        return ("threads_wait_for_each_other" if _deadlocked_threads(rank) else "lock_not_released"), None
    return {
        "resource_wait": _starved_of(rank)
        or ("no_connection_is_free" if _at_a_lock(rank) else "external_service"),
        "gil_deadlock": "gil_held",
        "outside": "not_in_collective",
        "goes_round": "goes_round",
        "preprocess_wait": "preprocess_blocked",
        "compile_wait": "compiler_stalled",
        "teardown": "teardown_blocked",
    }.get(state, "unknown"), None


def has_left_the_group(rank: RankView) -> bool:
    """The program itself calls it (torch 1.8-2.13); at the interpreter's end torch ends its groups without it."""
    main = rank.stack.main if rank.stack else None
    return main is not None and any(frame.function == "destroy_process_group" for frame in main.frames)


def busy_child(rank: RankView) -> StackSample | None:
    """The child process whose stack is not that of an idle worker: the one that has something it cannot
    finish."""
    best: tuple[int, int] | None = None
    chosen: StackSample | None = None
    alive = {child.pid for child in rank.tree.children} if rank.tree else set()
    for pid, (_, sample) in sorted(rank.child_stacks.items()):
        if pid not in alive or is_idle_child(rank, sample) or sample.main is None:
            continue
        inside = any(
            read_stack(thread).activity in (Activity.DATA, Activity.CHECKPOINT) for thread in sample.threads
        )
        score = (int(inside), len(sample.main.frames))
        if best is None or score > best:
            best, chosen = score, sample
    return chosen


def child_cpu(rank: RankView, pid: int) -> float | None:
    """Cores that a child's main thread used, as the kernel was last asked; None where it was not, or long ago."""
    thread = _main_of_child(rank, pid)
    return thread.cpu_ratio if thread is not None else None


def _main_of_child(rank: RankView, pid: int) -> ThreadWait | None:
    fresh = abs(rank.waits_at - rank.child_stacks.get(pid, (rank.tree_at, None))[0]) <= _FRESH_SECONDS
    return rank.thread_wait(pid) if fresh else None


def _computes(rank: RankView, pid: int) -> bool:
    """A process that computes waits for no file and no lock; also one that is ready, and gets no core for now."""
    main = _main_of_child(rank, pid)
    if main is not None and main.cpu_ratio is not None:
        ready = main.cpu_ratio + (main.run_delay_ratio or 0.0)
        return ready >= _COMPUTES_RATIO
    runs = rank.tree is not None and any(one.pid == pid and one.state == "R" for one in rank.tree.children)
    return runs and rank.moved.get("child_cpu") == rank.tree_at


def child_switches(rank: RankView, pid: int) -> float:
    """How often a second a child's main thread has woken up lately."""
    main = _main_of_child(rank, pid)
    return (main.switches_per_second or 0.0) if main is not None else 0.0


def _stopped_child(rank: RankView) -> int | None:
    """A DataLoader worker in state T: its own name is pt_data_worker from torch 2.6 on, the rank's before."""
    if rank.tree is None:
        return None
    for child in rank.tree.children:
        if child.state == "T" and child.comm in ("pt_data_worker", rank.tree.main.comm):
            return child.pid
    return None


def _holds_gil_idle(rank: RankView) -> bool:
    """The thread that trains owns the GIL in every sample and burns no CPU: it sleeps in C code without giving
    it up."""
    judged = rank.judged
    if judged is None or not judged.owns_gil or rank.tree is None:
        return False
    return (rank.main_cpu_ratio or 0.0) < 0.1


def _deadlocked_threads(rank: RankView) -> bool:
    """The thread that trains and another thread of the user's both wait on a futex, in code that is no known idle
    loop. A wait in join, Event or Queue is for somebody who comes, not for who holds a lock; so is one for another
    rank's answer."""
    judged = rank.judged
    if rank.stack is None or judged is None or is_in_lock(judged) or not _on_a_futex(rank, judged.thread_id):
        return False
    if _asks_another_rank(judged):
        return False
    return any(
        thread not in (judged, rank.stack.main)
        and _may_hold_a_lock(thread.name)
        and _may_be_in_a_lock(rank, thread.thread_id)
        and read_stack(thread).activity is Activity.OTHER
        and not _asks_another_rank(thread)
        and len(thread.frames) > 2
        and not _idle_loop(thread.frames[-1].function, thread.frames[-1].file)
        for thread in rank.stack.threads
    )


def _asks_another_rank(thread: ThreadStack) -> bool:
    wait = python_wait(thread)
    return wait is not None and wait.kind == "rpc_answer"


def _on_a_futex(rank: RankView, tid: int) -> bool:
    if rank.thread:  # the tree has the main thread's wait channel only
        thread = rank.thread_wait(tid=tid)
        return thread is not None and thread.wait.kind in LOCK_WAITS
    return rank.on_futex


def _child_in_a_lock(rank: RankView) -> int | None:
    """The rank waits for a process that it started, and the only thread of that one waits on a futex: it was forked
    with a lock held by a thread that it has not. Frames of CPython 3.8-3.13: poll (multiprocessing/popen_fork.py), wait
    (subprocess.py)."""
    judged = rank.judged
    files = [frame.file for frame in judged.frames[-4:]] if judged is not None else []
    if rank.tree is None or not any(file.endswith(_WAITS_FOR_CHILD) for file in files):
        return None
    child = busy_child(rank)
    if child is None:
        return None
    process = rank.process_waits(child.pid)
    if files[-1].endswith(_BEGINS_A_PROGRAM) and not (process is not None and process.forked):
        return None  # it inherits no lock: what the kernel says of it says why it waits
    kinds = [thread.wait.kind for thread in process.threads] if process is not None else []
    if len(kinds) > 1 or not {*kinds} <= {*LOCK_WAITS, "unreadable"}:
        return None  # another of its threads may release it, or it is in no lock: the kernel says what it waits for
    held = any(one.pid == child.pid and one.wchan.startswith("futex") for one in rank.tree.children)
    return child.pid if held else None


def _may_be_in_a_lock(rank: RankView, tid: int) -> bool:
    """By the kernel, where it was asked: a thread that sleeps or reads waits for no lock."""
    thread = rank.thread_wait(tid=tid)
    return thread is None or thread.wait.kind in LOCK_WAITS


def _may_hold_a_lock(name: str) -> bool:
    return not name.startswith(("pt_", "gloo", "asyncio", "QueueFeederThread"))


def _idle_loop(function: str, file: str) -> bool:
    return (
        "/tqdm/" in file
        or "torch/_inductor" in file
        or "concurrent/futures" in file
        or "selectors.py" in file
        or (function in ("_pin_memory_loop", "_monitor_loop", "_async_loop"))
    )


def _at_a_lock(rank: RankView) -> bool:
    """Whoever waits for an answer over HTTP waits at its connection, not at a lock."""
    return rank.judged is not None and _on_a_futex(rank, rank.judged.thread_id)


def _starved_of(rank: RankView) -> str:
    tree = rank.tree
    if tree is None:
        return ""
    if cause := waits_for(rank):
        return cause
    files = rank.limits.get("Max open files") if rank.limits else None
    if files and tree.open_files is not None and tree.open_files >= 0.98 * files:
        return "open_files"
    if rank.shm is not None and rank.shm.size_bytes > 0 and rank.shm.available_bytes < 64 * 1024:
        return "dev_shm_full"
    return ""
