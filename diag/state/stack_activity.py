"""What a Python stack says: is this thread waiting, for what, and where in whose code.

Pure functions over frames (outermost first). The tables name functions of PyTorch 2.4-2.13, megatron-core
0.12-0.18, ms-swift 3.7-4.6 and DeepSpeed 0.14-0.19, read in their sources; frames in the comments are from
captured stacks.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable
from dataclasses import dataclass

from diag.model.observations import Frame, StackSample, ThreadStack
from diag.text.units import format_path


class Activity(str, enum.Enum):
    """What a main thread is doing, as far as its frames tell."""

    COLLECTIVE = "collective"  # inside a collective or point-to-point call: waits for its peers
    BACKWARD = "backward"  # inside the autograd engine, which may hide a collective (DDP's reducer)
    GPU_SYNC = "gpu_sync"  # waits for the GPU
    RENDEZVOUS = "rendezvous"
    COMM_INIT = "comm_init"
    DATA = "data"  # waits for a batch
    PREPROCESS = "preprocess"
    CHECKPOINT = "checkpoint"
    COMPILE = "compile"
    FILE_LOCK = "file_lock"
    TEARDOWN = "teardown"
    SERVICE = "service"  # waits for an answer over HTTP: a rollout server, a download, a tracker
    LOCK = "lock"  # a Python lock, condition, queue or join
    OTHER = "other"

    @property
    def waits_for_peers(self) -> bool:
        return self in (Activity.COLLECTIVE, Activity.BACKWARD)


@dataclass(frozen=True, slots=True)
class Reading:
    """`where` is the frame that decided; `caller` the nearest frame outside it, in the code of the user or
    the framework that called; `context` is CHECKPOINT, TEARDOWN, ... when an outer frame tells what the wait
    belongs to."""

    activity: Activity
    where: Frame | None
    caller: Frame | None
    context: Activity | None = None


# fmt: off
_COLLECTIVES = frozenset({
    "all_gather", "all_gather_single", "reduce_scatter_single", "all_gather_coalesced", "all_gather_into_tensor",
    "all_gather_object", "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier",
    "batch_isend_irecv", "broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend",
    "monitored_barrier", "recv", "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    "scatter_object_list", "send", "send_object_list", "_all_gather_base", "_reduce_scatter_base",
})
# fmt: on

# (part of the file's path, function names or None for all, activity). Looked up from the innermost frame
# outwards; the first frame that any row names decides.
_WAITS: tuple[tuple[str, frozenset[str] | None, Activity], ...] = (
    #   all_reduce (torch/distributed/distributed_c10d.py:3173)                            torch 2.11, H200
    ("torch/distributed/distributed_c10d.py", _COLLECTIVES, Activity.COLLECTIVE),
    ("torch/distributed/_functional_collectives.py", None, Activity.COLLECTIVE),
    ("torch/distributed/nn/functional.py", None, Activity.COLLECTIVE),
    #   recv_forward (megatron/core/pipeline_parallel/p2p_communication.py:207)           megatron-core 0.18, H200
    ("megatron/core/pipeline_parallel/p2p_communication.py", None, Activity.COLLECTIVE),
    (
        "megatron/core/distributed/param_and_grad_buffer.py",
        frozenset({"finish_grad_sync", "start_grad_sync"}),
        Activity.COLLECTIVE,
    ),
    #   init_distributed (deepspeed/comm/comm.py:910)                                     deepspeed 0.19.8, gloo
    (
        "deepspeed/comm/comm.py",
        frozenset({"init_distributed", "mpi_discovery", "init_deepspeed_backend"}),
        Activity.RENDEZVOUS,
    ),
    ("deepspeed/comm/torch.py", frozenset({"__init__", "init_process_group"}), Activity.RENDEZVOUS),
    #   OpBuilder.jit_load (op_builder/builder.py:587) < build_shm_op (deepspeed/comm/torch.py:33)   deepspeed 0.16.9
    ("op_builder/", frozenset({"load", "jit_load"}), Activity.COMPILE),
    (
        "deepspeed/comm/",
        _COLLECTIVES | {"inference_all_reduce", "reduce_scatter_fn", "allgather_fn"},
        Activity.COLLECTIVE,
    ),
    ("torch/distributed/elastic/rendezvous/", None, Activity.RENDEZVOUS),
    ("torch/distributed/rendezvous.py", None, Activity.RENDEZVOUS),
    ("torch/distributed/elastic/utils/store.py", None, Activity.RENDEZVOUS),
    (
        "torch/distributed/distributed_c10d.py",
        frozenset({"_store_based_barrier", "init_process_group"}),
        Activity.RENDEZVOUS,
    ),
    (
        "torch/distributed/distributed_c10d.py",
        frozenset({"_new_process_group_helper", "new_group", "_new_group_with_tag", "split_group"}),
        Activity.COMM_INIT,
    ),
    ("deepspeed/accelerator/", frozenset({"get_accelerator"}), Activity.RENDEZVOUS),
    #   _try_get_data (torch/utils/data/dataloader.py:1295)                               torch 2.11, H200
    ("torch/utils/data/dataloader.py", None, Activity.DATA),
    ("torch/utils/data/_utils/", None, Activity.DATA),
    ("torch/cuda/__init__.py", frozenset({"synchronize"}), Activity.GPU_SYNC),
    ("torch/cuda/streams.py", frozenset({"synchronize"}), Activity.GPU_SYNC),
    ("torch/utils/file_baton.py", frozenset({"wait"}), Activity.FILE_LOCK),
    ("filelock/", frozenset({"acquire"}), Activity.FILE_LOCK),
    ("torch/_inductor/", None, Activity.COMPILE),
    ("torch/_dynamo/", None, Activity.COMPILE),
    ("triton/", None, Activity.COMPILE),
    ("torch/utils/cpp_extension.py", None, Activity.COMPILE),
    ("torch/distributed/distributed_c10d.py", frozenset({"destroy_process_group"}), Activity.TEARDOWN),
    ("megatron/core/dist_checkpointing/", None, Activity.CHECKPOINT),
    ("torch/distributed/checkpoint/", None, Activity.CHECKPOINT),
    ("torch/serialization.py", None, Activity.CHECKPOINT),
    ("safetensors/", None, Activity.CHECKPOINT),
    ("deepspeed/runtime/checkpoint_engine/", None, Activity.CHECKPOINT),
    (
        "mcore_bridge/",
        frozenset({"save_weights", "export_weights", "add_tensor", "_save_current_shard"}),
        Activity.CHECKPOINT,
    ),
    ("datasets/", None, Activity.PREPROCESS),
    ("http/client.py", None, Activity.SERVICE),
    ("urllib3/", None, Activity.SERVICE),
    ("httpcore/", None, Activity.SERVICE),
    ("aiohttp/", None, Activity.SERVICE),
    ("multiprocessing/util.py", frozenset({"_exit_function", "_run_finalizers"}), Activity.TEARDOWN),
    ("concurrent/futures/thread.py", frozenset({"_python_exit"}), Activity.TEARDOWN),
    ("threading.py", frozenset({"_shutdown"}), Activity.TEARDOWN),
    ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}), Activity.BACKWARD),
    #   custom_backward (megatron/core/pipeline_parallel/schedules.py:211)                megatron-core 0.18, H200
    ("megatron/core/pipeline_parallel/schedules.py", frozenset({"custom_backward"}), Activity.BACKWARD),
    (
        "threading.py",
        frozenset({"wait", "wait_for", "acquire", "join", "_wait_for_tstate_lock"}),
        Activity.LOCK,
    ),
    ("queue.py", frozenset({"get", "put", "join"}), Activity.LOCK),
)

# What a wait belongs to: an outer frame that a wait of another kind can happen in.
_CONTEXTS: tuple[tuple[str, frozenset[str] | None, Activity], ...] = (
    (
        "",
        frozenset({"save_checkpoint", "_save_checkpoint", "save_mcore_checkpoint", "save_model"}),
        Activity.CHECKPOINT,
    ),
    ("megatron/core/dist_checkpointing/", None, Activity.CHECKPOINT),
    ("torch/distributed/checkpoint/", None, Activity.CHECKPOINT),
    ("multiprocessing/util.py", frozenset({"_exit_function", "_run_finalizers"}), Activity.TEARDOWN),
    ("concurrent/futures/thread.py", frozenset({"_python_exit"}), Activity.TEARDOWN),
    ("threading.py", frozenset({"_shutdown"}), Activity.TEARDOWN),
    ("torch/distributed/distributed_c10d.py", frozenset({"destroy_process_group"}), Activity.TEARDOWN),
    ("torch/distributed/distributed_c10d.py", frozenset({"init_process_group"}), Activity.RENDEZVOUS),
)

# A wait of one of these kinds inside one of those contexts is the context's own business, not a lock of the
# user's.
_ABSORBED_BY_CONTEXT = frozenset({Activity.LOCK, Activity.OTHER, Activity.GPU_SYNC})


# Packages whose names people give to folders of their own: `project/datasets/reader.py` is not Hugging
# Face's.
_COMMON_NAMES = ("datasets/", "triton/", "safetensors/", "filelock/")


def _is_of(part: str, file: str) -> bool:
    if part in _COMMON_NAMES:
        return file.startswith(part) or f"-packages/{part}" in file
    return part in file


@functools.lru_cache(maxsize=8192)  # the same few hundred frames come again with each sample
def _wait_of(function: str, file: str) -> Activity | None:
    name = function.rpartition(".")[2]  # py-spy gives qualified names from Python 3.11 on
    if name == "<module>":
        return None  # a module that is being imported does not yet do what it is for
    for part, functions, activity in _WAITS:
        if _is_of(part, file) and (functions is None or name in functions):
            return activity
    return None


@functools.lru_cache(maxsize=8192)
def _context_of(function: str, file: str) -> Activity | None:
    name = function.rpartition(".")[2]
    if name == "<module>":
        return None
    for part, functions, activity in _CONTEXTS:
        if part in file and (functions is None or name in functions):
            return activity
    return None


def read_stack(thread: ThreadStack) -> Reading:
    """Tell what a thread waits for. The innermost frame that names a kind of wait decides.

    A lock inside a DataLoader, a checkpoint writer or the exit handlers is theirs: those outrank LOCK. An
    unknown innermost frame is OTHER: the thread is in code that no table names, which is where a culprit
    usually is. A thread is read once: the reading stays with it.
    """
    if thread.kept_reading is None:
        object.__setattr__(thread, "kept_reading", _read(thread.frames))
    reading: Reading = thread.kept_reading
    return reading


def _read(frames: tuple[Frame, ...]) -> Reading:
    if not frames:
        return Reading(Activity.OTHER, None, None)
    context = next((found for frame in frames if (found := _context_of(frame.function, frame.file))), None)
    lock: int | None = None
    for index in range(len(frames) - 1, -1, -1):
        activity = _wait_of(frames[index].function, frames[index].file)
        if activity is None:
            continue
        if activity is Activity.LOCK:
            lock = index if lock is None else lock
            continue
        if activity is Activity.BACKWARD and index != len(frames) - 1:
            continue  # the engine called back into Python: what runs there decides
        outermost = _outermost_of_run(frames, index, activity)
        if activity is Activity.RENDEZVOUS or activity is Activity.COMM_INIT:
            context = None
        return Reading(activity, frames[outermost], _caller(frames, outermost), context)
    if context is not None:
        deciding = next(frame for frame in frames if _context_of(frame.function, frame.file) is context)
        return Reading(context, deciding, frames[-1], None)
    if lock is not None:
        outer = _outermost_of_run(frames, lock, Activity.LOCK)
        return Reading(Activity.LOCK, frames[outer], _caller(frames, outer))
    return Reading(Activity.OTHER, frames[-1], frames[-2] if len(frames) > 1 else None)


# Decorators around the calls of torch.distributed; they are neither the wait nor who called it.
_WRAPPERS = (
    "torch/distributed/c10d_logger.py",
    "typing_extensions.py",
    "torch/autograd/function.py",
    "contextlib.py",
)


def _outermost_of_run(frames: tuple[Frame, ...], index: int, activity: Activity) -> int:
    """The outermost frame of an unbroken run of the same wait (_next_data below __next__), decorators let
    through."""
    outermost = index
    while index > 0:
        index -= 1
        frame = frames[index]
        if _wait_of(frame.function, frame.file) is activity:
            outermost = index
        elif not frame.file.endswith(_WRAPPERS):
            break
    return outermost


def _caller(frames: tuple[Frame, ...], index: int) -> Frame | None:
    """The nearest frame outside of the wait that is no decorator."""
    return next((frame for frame in reversed(frames[:index]) if not frame.file.endswith(_WRAPPERS)), None)


def format_frame(frame: Frame, cwd: str = "") -> str:
    """As a person reads it; `cwd` is the job's working directory (`job.run.cwd`).

    >>> format_frame(Frame("step", "/srv/job/train.py", 7)), format_frame(Frame("step", "/srv/job/train.py", 7), "/srv/job")
    ('step (/srv/job/train.py:7)', 'step (train.py:7)')
    """
    return f"{frame.function} ({format_path(frame.file, cwd)}:{frame.line})"


def steps(thread: ThreadStack) -> tuple[str, ...]:
    """The normalised path to where the thread stands, outermost first, cut at its wait: what goes on below
    that point (a poll loop) is not progress, and lines inside the wait may alternate, so its last step has
    none."""
    reading = read_stack(thread)
    parts: list[str] = []
    for frame in thread.frames:
        if frame is reading.where and reading.activity is not Activity.OTHER:
            parts.append(f"{frame.function} ({format_path(frame.file)})")
            break
        parts.append(format_frame(frame))
    return tuple(parts)


def signature(thread: ThreadStack) -> str:
    """`steps` as one string.

    Two samples with the same signature say that the thread did not get anywhere between them (or came back to
    the very same place).
    """
    return "|".join(steps(thread))


def is_idle_worker(sample: StackSample) -> bool:
    """A DataLoader worker (or pool process) that waits for work: it is not what holds anybody up.

    get (multiprocessing/queues.py:113) below _worker_loop (torch/utils/data/_utils/worker.py:293)   torch 2.11, H200
    """
    thread = sample.main
    if thread is None:
        return True
    # Hugging Face's datasets bring their own multiprocessing
    return not _any(thread.frames, "torch/utils/data/_utils/fetch.py") and (
        _any(thread.frames, "multiprocessing/queues.py")
        or _any(thread.frames, "multiprocess/queues.py")
        or _any(thread.frames, "multiprocessing/managers.py")
        or _any(thread.frames, "multiprocess/managers.py")
        or _any(thread.frames, "multiprocessing/resource_tracker.py")
        or _any(thread.frames, "torch/_inductor/compile_worker/")
        or _any(thread.frames, "concurrent/futures/process.py")
    )


def _any(frames: Iterable[Frame], part: str) -> bool:
    return any(part in frame.file for frame in frames)


# What a child of a rank is for, by a file in its main stack; the first row that names one decides.
_ROLES: tuple[tuple[str, str], ...] = (
    #   _worker_loop (torch/utils/data/_utils/worker.py:293)                              torch 2.11, H200
    ("torch/utils/data/_utils/worker.py", "DataLoader worker"),
    ("torch/_inductor/compile_worker/", "compile worker"),
    ("torch/_inductor/", "compile worker"),
    ("multiprocessing/resource_tracker.py", "resource tracker"),
    ("torch/distributed/checkpoint/_async_process_executor.py", "checkpoint writer"),
    ("megatron/core/dist_checkpointing/", "checkpoint writer"),
    ("multiprocessing/managers.py", "manager"),
    ("multiprocess/managers.py", "manager"),  # of Hugging Face's datasets
    ("multiprocess/pool.py", "pool worker"),
    ("multiprocessing/pool.py", "pool worker"),
    ("concurrent/futures/process.py", "pool worker"),
)


def child_role(sample: StackSample) -> str:
    """What a rank's child is for, as far as its main stack tells; "child process" where it does not."""
    main = sample.main
    files = [frame.file for frame in main.frames] if main else []
    return next((role for part, role in _ROLES if any(part in file for file in files)), "child process")
