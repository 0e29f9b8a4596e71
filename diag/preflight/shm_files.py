"""Files that training leaves in /dev/shm when it is killed, and whether a process still has them mapped or
open."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from diag.sources.host.process_tree import PROC, read_raw

# torch 2.13, multiprocessing's file_system strategy: torch_PID_RANDOM_COUNTER; NCCL 2.13 to 2.32, shm:
# nccl-XXXXXX; CPython: shared_memory psm_XXXXXXXX, semaphores of multiprocessing sem.mp-XXXXXXXX (XXXXXXXX
# random); joblib's loky; Open MPI's vader.
_NAMES = re.compile(
    r"(torch_\d{1,10}_|nccl-|psm_|sem\.mp-|sem\.loky-\d{1,10}-|loky-\d{1,10}-|vader_segment\.)"
)
_OWNED = re.compile(r"torch_(\d{1,10})_")
_YOUNG_SECONDS = 60.0  # a job that is just starting
_LOOK_SECONDS = 1.0
_MOST_FILES = 100_000
_MOST_MAP_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Heap:
    """`files`: (name, allocated bytes, owner's uid)."""

    folder: str
    total_bytes: int
    files: tuple[tuple[str, int, int], ...]

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size, _ in self.files)

    def without(self, names: set[str]) -> Heap:
        return replace(self, files=tuple(file for file in self.files if file[0] not in names))

    def by_pattern(self) -> list[tuple[str, int]]:
        """Patterns for a shell with their number of files, the largest first."""
        sizes: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for name, size, _ in self.files:
            sizes[pattern_of(name)] += size
            counts[pattern_of(name)] += 1
        return [(pattern, counts[pattern]) for pattern, _ in sizes.most_common()]


def pattern_of(name: str) -> str:
    """
    >>> pattern_of("torch_4242_3135_7"), pattern_of("nccl-Ab3dE1"), pattern_of("mine")
    ('torch_4242_*', 'nccl-*', 'mine')
    """
    found = _NAMES.match(name)
    return f"{found[1]}*" if found else name


def heap_of(folder: str, now: float | None = None) -> Heap | None:
    """The files there that this user may remove; None where there is no such folder."""
    now = time.time() if now is None else now
    uid = os.geteuid()
    files: list[tuple[str, int, int]] = []
    try:
        answer = os.statvfs(folder)
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(files) >= _MOST_FILES or not _NAMES.match(entry.name):
                    continue
                try:
                    kept = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if uid in (0, kept.st_uid) and now - kept.st_mtime > _YOUNG_SECONDS:
                    files.append((entry.name, kept.st_blocks * 512, kept.st_uid))
    except OSError:
        return None
    return Heap(folder, answer.f_frsize * answer.f_blocks, tuple(files))


def in_use(heap: Heap, proc: Path = PROC) -> tuple[set[str], bool]:
    """Names of files that a process of their owner has mapped or open, or that a living process has given its
    own pid to; and whether all Python processes were asked. Only for files that take notable room, for it
    reads the maps of processes."""
    owners = {uid for _, _, uid in heap.files}
    names = {name for name, _, _ in heap.files}
    held: set[str] = set()
    complete = True
    for name in names:
        owner = _OWNED.match(name)
        if owner and Path(proc, owner[1]).exists():
            held.add(name)
    until = time.monotonic() + _LOOK_SECONDS
    inside = re.compile(re.escape(heap.folder).encode() + rb"/([^\n]{1,255})")
    for pid in sorted((int(name) for name in os.listdir(proc) if name.isdecimal()), reverse=True):
        base = f"{proc}/{pid}"
        try:
            if os.stat(base).st_uid not in owners:  # noqa: PTH116 - one call for each of thousands
                continue
        except OSError:
            continue
        if time.monotonic() > until:
            return held, False
        maps = read_raw(f"{base}/maps")
        if maps is None:
            command = read_raw(f"{base}/cmdline") or b""
            # what else may not be read does not train
            complete = complete and b"python" not in command.partition(b"\0")[0]
            continue
        for found in inside.finditer(maps[:_MOST_MAP_BYTES]):
            held.add(os.fsdecode(found[1]).removesuffix(" (deleted)"))
        held |= _open(base, heap.folder)
    return held & names, complete


def _open(base: str, folder: str) -> set[str]:
    found = set()
    try:
        with os.scandir(f"{base}/fd") as entries:
            for number, entry in enumerate(entries):
                if number > 4096:
                    break
                target = os.readlink(entry.path)
                if target.startswith(folder + "/"):
                    found.add(target[len(folder) + 1 :].removesuffix(" (deleted)"))
    except OSError:
        pass
    return found
