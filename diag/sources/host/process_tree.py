"""Who lives below whom in /proc, and what a process was started as.

Plain reading of /proc for the other machine-side sources and for the hub, which finds ranks with it. It makes
no records; what a rank is, the launchers decide.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from diag.sources.host.vm import read_memory

PROC = Path("/proc")

# Children forked by a thread other than the main one are in that thread's own file. A rank has 60 to 90
# threads (measured on H200: 67 and 87), reading all those files costs more than everything else, and new
# children of such threads are rare: they may be seen this many scans late. Ours.
FULL_SCAN_EVERY = 10
_LONGEST_ENVIRON = 1 << 20
_DEEPEST = 64
# include/linux/proc_ns.h, PROC_PID_INIT_INO: the process namespace of the machine itself has this number on every
# Linux since 3.8.
_MACHINE_NAMESPACE = 0xEFFFFFFC


def read_raw(path: str) -> bytes | None:
    """The whole file, or None when it is gone or denied."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(fd, 65536)
        if len(data) < 2048:  # seq_file stops early only when the next record does not fit into its page
            return data
        chunks = [data]
        while data := os.read(fd, 65536):
            chunks.append(data)
        return b"".join(chunks)
    except OSError:  # ESRCH: it went between the open and the read
        return None
    finally:
        os.close(fd)


def read_text(path: str) -> str:
    """The same as text; empty when it is gone or denied."""
    return (read_raw(path) or b"").decode(errors="replace")


def as_text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")


def lines_of(raw: bytes | None, wanted: tuple[bytes, ...]) -> bytes | None:
    """Those that begin so."""
    return None if raw is None else b"\n".join(line for line in raw.split(b"\n") if line.startswith(wanted))


# io "rchar: 42652463", status "VmHWM:\t 1444340 kB", memory.stat and memory.events "inactive_file 2946433024",
# meminfo "MemTotal:       263998500 kB", vmstat "oom_kill 0": H200 host (Linux 6.13 or later), 2026-11-20
_NAMED_NUMBER = re.compile(r"^(\w{1,40}):?[ \t]+(\d{1,20})\b", re.ASCII | re.MULTILINE)


def named_numbers(text: object) -> dict[str, int]:
    return {name: int(value) for name, value in _NAMED_NUMBER.findall(text)} if isinstance(text, str) else {}


def colon_fields(text: str) -> dict[str, str]:
    r"""Lines `name: value`, as status and fdinfo have them; those of one name (`tfd`, `lock`) together.

    >>> colon_fields("pos:\t0\nlock:\t1: FLOCK\nlock:\t2: POSIX\n")
    {'pos': '0', 'lock': '1: FLOCK\n2: POSIX'}
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found[name] = f"{found[name]}\n{value.strip()}" if name in found else value.strip()
    return found


def split_stat(text: str) -> tuple[int, str, list[str]]:
    """Pid, comm and the fields from the third (state) on: `fields[n - 3]` is field n of proc(5).

    Raises ValueError for what is no stat line.

    >>> split_stat("7 (a) b (c)) S 1 7")
    (7, 'a) b (c)', ['S', '1', '7'])
    """
    # comm is what the process called itself, so the last parenthesis ends it. H200 host (Linux 6.13 or
    # later), 2026-11-21:
    #   2238 (python3) S 2221 2238 2238 0 -1 4194560 385729 4990 0 0 1644 139 0 0 20 0 67 0 20487 331101626368 ...
    head, found, tail = text.rpartition(")")
    pid, opened, comm = head.partition(" (")
    if not found or not opened:
        raise ValueError("no comm in parentheses")
    return int(pid), comm, tail.split()


@dataclass(frozen=True, slots=True)
class Process:
    """Of /proc/PID/stat, what tells a process from a later one of its pid, and whose child it is."""

    ticks: int
    parent: int
    group: int
    comm: str
    state: str = field(compare=False)


def read_process(pid: int, root: Path | str = PROC) -> Process | None:
    """None when it is gone."""
    try:
        _, comm, fields = split_stat(read_text(f"{os.fspath(root)}/{pid}/stat"))
        return Process(int(fields[19]), int(fields[1]), int(fields[2]), comm, fields[0])
    except (ValueError, IndexError):
        return None


def ancestors(pid: int, processes: Mapping[int, Process]) -> tuple[int, ...]:
    """Parents, the nearest first; what is above those of `processes` is left out, and process 0."""
    line: list[int] = []
    while pid in processes and len(line) < _DEEPEST:
        pid = processes[pid].parent
        if pid:
            line.append(pid)
    return tuple(line)


def read_argv(pid: int, root: Path = PROC) -> list[str]:
    """Its arguments; nothing when it is gone, denied or the kernel's own."""
    text = read_text(f"{os.fspath(root)}/{pid}/cmdline")
    return text.removesuffix("\0").split("\0") if text else []


def sees_machine(root: Path = PROC) -> bool | None:
    """Whether these are all processes of the machine, by its own pids: not in a container with pids of its own.
    None where that is not known."""
    try:
        return Path(f"{root}/self/ns/pid").stat().st_ino == _MACHINE_NAMESPACE
    except OSError:
        return None


def same_namespace(kind: str, pid: int, root: Path | str = PROC) -> bool | None:
    """Whether a process is in our own one ("net", "pid", "user"); None where that cannot be seen."""
    try:
        return os.readlink(f"{root}/{pid}/ns/{kind}") == os.readlink(f"{root}/self/ns/{kind}")
    except OSError:
        return None


def stat_fields(pid: int, root: str | os.PathLike[str] = PROC) -> list[str] | None:
    """Of /proc/PID/stat from the third (state) on; None when it is gone or denied."""
    try:
        return split_stat(read_text(f"{os.fspath(root)}/{pid}/stat"))[2]
    except ValueError:
        return None


def _parent(pid: int, root: str) -> int | None:
    fields = stat_fields(pid, root)
    return int(fields[1]) if fields and len(fields) > 1 and fields[1].isdecimal() else None


def _numbers(raw: bytes) -> list[int]:
    return [int(word) for word in raw.split() if word.isdigit()]


class Processes(Protocol):
    """Some processes, to be asked for again and again: those below one, or those of a job in a namespace."""

    @property
    def roots(self) -> tuple[int, ...]:
        """Pids that belong to them and that `scan` leaves out."""
        ...

    def scan(self, full: bool = False) -> tuple[int, ...]: ...


class Tree:
    """The processes below `pid`, cheap to ask again and again.

    Most scans read one file a process; each tenth reads those of all threads too. A kernel without
    CONFIG_PROC_CHILDREN gets a scan of the whole /proc instead.
    """

    def __init__(self, pid: int, root: Path = PROC) -> None:
        self.pid = pid
        self.left_out: frozenset[int] = frozenset()  # with all below them
        self._root = os.fspath(root)
        self._scans = 0
        self._of_threads: dict[
            int, int
        ] = {}  # child forked by a thread that is not the main one -> its parent
        # Ours is asked first: a zombie target has none to show.
        self._has_children_file = (
            read_raw(f"{self._root}/thread-self/children") is not None
            or read_raw(f"{self._root}/{pid}/task/{pid}/children") is not None
        )

    @property
    def roots(self) -> tuple[int, ...]:
        return (self.pid,)

    def scan(self, full: bool = False) -> tuple[int, ...]:
        """Pids below, parents before their children, `pid` itself left out; empty when no process is
        there."""
        if not self._has_children_file:
            return self._scan_parents()
        full = full or self._scans % FULL_SCAN_EVERY == 0
        self._scans += 1
        if full:
            self._of_threads = {}
        else:
            self._of_threads = {
                child: parent
                for child, parent in self._of_threads.items()
                if _parent(child, self._root) == parent
            }
        return self._walk(lambda parent: self._children(parent, full))

    def _walk(self, children: Callable[[int], Iterable[int]]) -> tuple[int, ...]:
        seen = {self.pid: None}
        todo = [self.pid]
        for parent in todo:  # grows while we walk: breadth first
            new = [child for child in children(parent) if child not in seen and child not in self.left_out]
            seen.update(dict.fromkeys(new))
            todo += dict.fromkeys(new)
        return tuple(seen)[1:]

    def _children(self, pid: int, full: bool) -> Iterator[int]:
        if raw := read_raw(f"{self._root}/{pid}/task/{pid}/children"):
            yield from _numbers(raw)
        if not full:
            yield from [child for child, parent in self._of_threads.items() if parent == pid]
            return
        try:
            threads = os.listdir(f"{self._root}/{pid}/task")
        except OSError:
            return
        if len(threads) == 1:
            return
        main = str(pid)
        for thread in threads:
            if thread != main and (raw := read_raw(f"{self._root}/{pid}/task/{thread}/children")):
                for child in _numbers(raw):
                    self._of_threads[child] = pid
                    yield child

    def _scan_parents(self) -> tuple[int, ...]:
        try:
            names = os.listdir(self._root)
        except OSError:
            return ()
        children: dict[int, list[int]] = {}
        for name in names:
            if name.isdigit() and (parent := _parent(int(name), self._root)) is not None:
                children.setdefault(parent, []).append(int(name))
        return self._walk(lambda parent: children.get(parent, ()))


class Trees:
    """Several processes and all below them."""

    def __init__(self, pids: Iterable[int], root: Path = PROC) -> None:
        self._trees = tuple(Tree(pid, root) for pid in pids)

    @property
    def roots(self) -> tuple[int, ...]:
        return tuple(tree.pid for tree in self._trees)

    def scan(self, full: bool = False) -> tuple[int, ...]:
        below = dict.fromkeys(pid for tree in self._trees for pid in tree.scan(full))
        return tuple(pid for pid in below if pid not in self.roots)


def descendants(pid: int, root: Path = PROC, left_out: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """All pids below `pid` now. Who asks every second keeps a `Tree` instead: it is cheaper by the threads."""
    tree = Tree(pid, root)
    tree.left_out = left_out
    return tree.scan()


def read_environ(pid: int, root: Path = PROC) -> dict[str, str] | None:
    """The environment that the process was started with; None when denied or gone.

    What it set itself later is not there; between fork and exec it is still the parent's; a process that
    rewrote its title (setproctitle) may show less.
    """
    raw = read_raw(f"{os.fspath(root)}/{pid}/environ")
    if raw is None and root == PROC:
        raw = _environ_from_memory(pid)
    if raw is None:
        return None
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0"))
    return {name: value for name, equals, value in pairs if name and equals}


def _environ_from_memory(pid: int) -> bytes | None:
    """The file belongs to the process's user; who may ptrace it may read where it lies (proc(5): env_start,
    env_end)."""
    try:
        fields = stat_fields(pid) or []
        start, end = int(fields[47]), int(fields[48])  # 0 to who may not
        return read_memory(pid, start, min(end - start, _LONGEST_ENVIRON)) if 0 < start < end else None
    except (OSError, ValueError, IndexError):
        return None


def is_python(pid: int, root: Path = PROC) -> bool:
    """Does a Python interpreter run in it? By the name of its program, else by a mapped libpython.

    Ask once a process, not once a second: reading maps waits for the target's mmap lock.
    """
    base = f"{os.fspath(root)}/{pid}"
    try:
        program = os.readlink(f"{base}/exe")
    except PermissionError:
        # Another user's: argv[0] is all that may be read.
        return _is_python_name(read_text(f"{base}/cmdline").partition("\0")[0])
    except OSError:
        return False
    return _is_python_name(program) or b"/libpython" in (read_raw(f"{base}/maps") or b"")


def _is_python_name(path: str) -> bool:
    return path.removesuffix(" (deleted)").rpartition("/")[2].startswith("python")


def loads_torch(pid: int, root: Path = PROC) -> bool:
    """Reading maps waits for the process's mmap lock: not each second."""
    return b"/libtorch" in (read_raw(f"{root}/{pid}/maps") or b"")
