"""What a Python stack says: is this thread waiting, for what, and where in whose code.

Pure functions over frames (outermost first). The functions that they know are in `frames.txt`.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from pathlib import Path

from diag.model.observations import Frame, StackSample, ThreadStack
from diag.state.own_code import is_own_file, own_line
from diag.text.units import format_path, is_standard_library


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
    belongs to; `own` the program's own line that led to `where`, when that is in a library; `called_back` the innermost
    one that `where` has called: of a data set or a sampler that runs in the rank itself."""

    activity: Activity
    where: Frame | None
    caller: Frame | None
    context: Activity | None = None
    own: Frame | None = None
    called_back: Frame | None = None


def _table(section: str) -> list[tuple[str, str, frozenset[str]]]:
    """Rows of frames.txt: word, part of a path, functions. Each rank's sidecar reads it: it needs no YAML for that."""
    text = _FRAMES.partition(f"\n[{section}]")[2].partition("\n[")[0]
    rows = [line.split() for line in text.splitlines()[1:] if line and not line.startswith("#")]
    return [
        (word, part.strip("*"), frozenset(functions))
        for word, parts, *functions in rows
        for part in parts.split("|")
    ]


_FRAMES = (Path(__file__).parent / "frames.txt").read_text(encoding="utf-8")
_WAITS, _CONTEXTS, _ROLES, _IDLE = map(_table, ("waits", "contexts", "roles", "idle"))

# Packages whose names people give to folders of their own: `project/datasets/reader.py` is not Hugging
# Face's.
_COMMON_NAMES = ("datasets/", "triton/", "safetensors/", "filelock/")


def _is_of(part: str, file: str) -> bool:
    if part in _COMMON_NAMES:
        return file.startswith(part) or f"-packages/{part}" in file
    return part in file


def _activity(rows: list[tuple[str, str, frozenset[str]]], function: str, file: str) -> Activity | None:
    name = function.rpartition(".")[2]  # py-spy gives qualified names from Python 3.11 on
    if name == "<module>":
        return None  # a module that is being imported does not yet do what it is for
    found = (
        word for word, part, functions in rows if _is_of(part, file) and (not functions or name in functions)
    )
    return next(map(Activity, found), None)


@functools.lru_cache(maxsize=8192)  # the same few hundred frames come again with each sample
def _wait_of(function: str, file: str) -> Activity | None:
    return _activity(_WAITS, function, file)


@functools.lru_cache(maxsize=8192)
def _context_of(function: str, file: str) -> Activity | None:
    return _activity(_CONTEXTS, function, file)


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
        if activity in (Activity.RENDEZVOUS, Activity.COMM_INIT):
            context = None
        return _at(frames, outermost, activity, context)
    if context is not None:
        contexts = (_context_of(frame.function, frame.file) for frame in frames)
        return _at(frames, next(at for at, found in enumerate(contexts) if found is context), context)
    if lock is not None:
        return _at(frames, _outermost_of_run(frames, lock, Activity.LOCK), Activity.LOCK)
    return _at(frames, len(frames) - 1, Activity.OTHER)


def _at(
    frames: tuple[Frame, ...], index: int, activity: Activity, context: Activity | None = None
) -> Reading:
    own = own_line(frames, index)
    if own is None and activity is not Activity.OTHER and is_own_file(frames[index].file):
        own = _before_packages(frames, index)
    inner = frames[index + 1 :] if activity is Activity.DATA else ()
    called_back = next((frame for frame in reversed(inner) if is_own_file(frame.file)), None)
    return Reading(activity, frames[index], _caller(frames, index), context, own, called_back)


def _before_packages(frames: tuple[Frame, ...], index: int) -> Frame | None:
    """The program's own line that led to a library which lies in no folder of the interpreter's (`pip install --target`,
    PYTHONPATH): what lies beside it there are packages too, unless the program itself begins there."""
    file = frames[index].file
    parts = (
        part for rows in (_WAITS, _CONTEXTS) for _, part, _ in rows if "/" in part and f"/{part}" in file
    )
    root = next((file[: file.index(f"/{part}") + 1] for part in parts), "")
    if not root or frames[0].file.startswith(root):
        return None
    own = (one for one in reversed(frames[:index]) if is_own_file(one.file) and not one.file.startswith(root))
    return next(own, None)


# Decorators around the calls of torch.distributed; they are neither the wait nor who called it.
_WRAPPERS = (
    "torch/distributed/c10d_logger.py", "typing_extensions.py", "torch/autograd/function.py", "contextlib.py",
)  # fmt: skip


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


def is_in_lock(thread: ThreadStack) -> bool:
    """In a lock, condition, queue or join by its innermost frame, whatever that is for."""
    last = thread.frames[-1] if thread.frames else None
    return last is not None and _wait_of(last.function, last.file) is Activity.LOCK


def is_idle_worker(sample: StackSample) -> bool:
    """A DataLoader worker (or pool process) that waits for work, by its frames: in what waits for it, and nothing but
    files of the same folder or of the standard library inside. What the kernel knows of it is in `idle`."""
    files = _files(sample)
    waits = [place for place, file in enumerate(files) if any(part in file for _, part, _ in _IDLE)]
    if not files or not waits:
        return not files
    folder = files[waits[-1]].rpartition("/")[0] + "/"
    return all(file.startswith(folder) or is_standard_library(file) for file in files[waits[-1] :])


def child_role(sample: StackSample) -> str:
    """What a rank's child is for, as far as its main stack tells; "child process" where it does not."""
    files = _files(sample)
    found = (role for role, part, _ in _ROLES if any(part in file for file in files))
    return next(found, "child-process").replace("-", " ")


def _files(sample: StackSample) -> list[str]:
    return [frame.file for frame in sample.main.frames] if sample.main else []
