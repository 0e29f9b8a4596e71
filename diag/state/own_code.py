"""Which line of a stack is the program's own. A path says that, also that of another machine: what pip installs and
the standard library lie in folders that every interpreter calls alike (`sysconfig`)."""

from __future__ import annotations

import functools
import posixpath
import sys
from collections.abc import Iterable, Sequence

from diag.model.observations import Frame
from diag.text.units import format_path

_HOOK = "_diag_hook.py"  # ours, around init_process_group: in a checkout it lies in no library's folder
# Where a child process begins: a fork still has the frames of whoever forked it outside of this one.
_CHILD_BEGINS = ("_bootstrap", ("multiprocessing/process.py", "multiprocess/process.py"))


def is_same_file(file: str, other: str) -> bool:
    """Whether a traceback's file is that of a frame: a process that was started by a relative path has that in its frames.

    >>> is_same_file("/app/train.py", "./train.py"), is_same_file("/app/pretrain.py", "train.py")
    (True, False)
    """
    return file == other or file.endswith("/" + other.removeprefix("./"))


def own_frames(frames: Iterable[Frame]) -> list[Frame]:
    return [frame for frame in frames if is_own_file(frame.file)]


def own_line(frames: Sequence[Frame], at: int) -> Frame | None:
    """The nearest line of the program itself that led to `frames[at]` (outermost first), when that is in a library."""
    found = own_places(frames[: at + 1])[at]
    return None if found is None else frames[found]


def own_places(frames: Sequence[Frame]) -> tuple[int | None, ...]:
    """Of each frame, outermost first, which one is the nearest line of the program itself that led to it.

    None of one that is the program's own, and where nothing outside of it is. A module's own line counts where the
    library that it called is the one that waits: the line that started a framework says nothing.
    """
    found: list[int | None] = []
    own: int | None = None
    packages: set[str] = set()  # since then
    for at, frame in enumerate(frames):
        if _is_own(frames, at):
            own, packages = at, set()
            found.append(None)
            continue
        if frame.function.rpartition(".")[2] == _CHILD_BEGINS[0] and frame.file.endswith(_CHILD_BEGINS[1]):
            own = None
        packages.add(package_of(frame.file))
        started = own is not None and frames[own].function == "<module>" and len(packages - {""}) > 1
        found.append(None if started else own)
    return tuple(found)


def _is_own(frames: Sequence[Frame], at: int) -> bool:
    """A module without a file is what somebody typed (`python -c`, a notebook); a function without one is whose line
    called it."""
    while at >= 0 and frames[at].file.startswith("<") and not frames[at].file.startswith("<frozen "):
        if frames[at].function == "<module>":
            return True
        at -= 1
    return at >= 0 and is_own_file(frames[at].file)


@functools.lru_cache(maxsize=8192)
def is_own_file(path: str) -> bool:
    """
    >>> [is_own_file(each) for each in ("/srv/job/train.py", "/opt/venv/lib/python3.12/site-packages/torch/cuda/streams.py")]
    [True, False]
    >>> [is_own_file(each) for each in ("/usr/lib/python3.10/ssl.py", "/opt/venv/bin/torchrun", "/srv/job/train")]
    [False, False, True]
    >>> is_own_file("/srv/diag/diag/launch/inject/_diag_hook.py")
    False

    py-spy prints paths without their folders: a file alone is recognised as the standard library's by its name, one in a
    folder may be of any package.

    >>> [is_own_file(each) for each in ("train.py", "ssl.py", "multiprocessing/connection.py", "torch/cuda/streams.py")]
    [True, False, False, False]

    Windows has a drive's letter before them.

    >>> [is_own_file(each) for each in (r"C:\\job\\train.py", r"c:\\conda\\envs\\pt\\lib\\site-packages\\torch\\nn\\module.py")]
    [True, False]
    """
    if path[1:3] == ":\\":
        path = path[2:].replace("\\", "/")
    folder, slash, name = path.rpartition("/")
    if name == _HOOK:
        return False
    stem, suffix = posixpath.splitext(name)
    if not slash:
        return suffix == ".py" and stem not in sys.stdlib_module_names
    if not path.startswith("/") or format_path(path) != path:
        return False
    return suffix == ".py" or (not suffix and not folder.endswith("/bin"))  # where pip puts commands


@functools.lru_cache(maxsize=8192)
def package_of(path: str) -> str:
    """What a file was installed with; empty for the standard library, on which all others rest, and what has no file."""
    if path.startswith("<"):
        return ""
    name = format_path(path).lstrip("/").partition("/")[0].removesuffix(".py")
    return "" if name in sys.stdlib_module_names else name
