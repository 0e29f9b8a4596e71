"""What earlier jobs left: processes whose launcher is gone, files in /dev/shm that no process has open. Ends and
removes nothing."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from diag.launch.launchers import helps
from diag.launch.launchers.secrets import redacted
from diag.preflight import gpus
from diag.preflight.job_processes import JobGroup, Process, group, processes_here
from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.line import Line, line
from diag.sources.host.process_tree import PROC, read_raw
from diag.text.units import format_bytes, format_count, format_seconds

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


_GIB = 1 << 30
_MOST_PIDS = 16
_MOST_LETTERS = 100
_NOTABLE = 0.1  # of /dev/shm, or a GiB


def check_leftovers(facts: LaunchFacts, proc: Path = PROC) -> Iterator[Line]:
    held = gpus.memory_of_processes() if gpus.names_host_pids() else {}
    try:
        found = processes_here(proc)
    except OSError:
        found = {}
    if os.getpid() in found:
        yield from process_lines(group(found, os.getpid()), held)
    else:
        yield line("leftovers.no-processes", proc=proc)


def process_lines(groups: Iterable[JobGroup], gpu_memory: Mapping[int, int]) -> Iterator[Line]:
    """`gpu_memory`: bytes by pid, where NVML's pids are those of this process namespace."""
    quiet = True
    for one in groups:
        size = sum(gpu_memory.get(member.pid, 0) for member in one.members)
        on_gpu = f", {format_bytes(size)} of GPU memory" if size else ""
        if one.left_over:
            quiet = False
            yield _left_over(one, on_gpu)
        else:
            above = one.launcher
            by = f" below process {above.pid} ({_command(above)})" if above is not None else ""
            yield line("leftovers.other-job", ranks=_ranks(one), by=by, on_gpu=on_gpu)
    if quiet:
        yield line("leftovers.none", seen=_seen())


def _left_over(one: JobGroup, on_gpu: str) -> Line:
    members, many = one.members, len(one.members) > 1
    pids = " ".join(str(member.pid) for member in members[:_MOST_PIDS])
    pids += " ..." if len(members) > _MOST_PIDS else ""
    blocked = [str(member.pid) for member in members if member.state == "D"]
    hang = "hangs" if len(blocked) == 1 else "hang"
    stuck = (
        f"; {', '.join(blocked)} {hang} in the kernel (state D), where signals have no effect"
        if blocked
        else ""
    )
    age = format_seconds(max(member.age_seconds for member in members))
    memory = format_bytes(sum(member.resident_bytes for member in members))
    lead = next(filter(_trains, members), members[0])
    said = (
        f"{format_count(len(members), 'process', 'processes')} of an earlier job {'are' if many else 'is'} left over"
        f" ({_ranks(one)}; {_command(lead)}): what started {'them' if many else 'it'} is gone; started {age} ago, "
        f"{memory} of memory{on_gpu}"
    )
    return line(f"leftovers.processes{'' if one.sure else '-unsure'}", said=said, pids=pids, stuck=stuck)


def _ranks(one: JobGroup) -> str:
    ranks = one.ranks
    if not ranks:
        return f"pids {', '.join(str(member.pid) for member in one.members[:_MOST_PIDS])}"
    workers = sum(not _trains(member) for member in one.members)
    pids = {member.rank: member.pid for member in reversed(one.members) if _trains(member)}
    named = ", ".join(f"rank {rank} pid {pids[rank]}" for rank in ranks[:4] if rank in pids)
    named = named or f"ranks {', '.join(map(str, ranks[:4]))}"
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return named + more + (f", {format_count(workers, 'worker')}" if workers else "")


def _trains(member: Process) -> bool:
    """Whether it may be the rank, or what the rank forked: not a worker or helper that inherited its variables."""
    return member.rank is not None and not member.is_worker and not helps(member.argv)


def _seen() -> str:
    """Whose processes were read, where it is not all of the host's."""
    user = " of this user" if os.geteuid() else ""
    return user + ("" if gpus.names_host_pids() else " in this container")


def check_shm_files(
    facts: LaunchFacts,
    folder: str = "/dev/shm",
    used: Callable[[Heap], tuple[set[str], bool]] = in_use,
    whole_host: bool | None = None,
) -> Iterator[Line]:
    heap = heap_of(folder)
    if heap is None or not heap.files or not _is_notable(heap, heap.size_bytes):
        return
    held, complete = used(heap)
    whole = gpus.names_host_pids() if whole_host is None else whole_host
    left = shm_line(heap.without(held), complete=complete, whole_host=whole)
    if left is not None:
        yield left


def _is_notable(heap: Heap, size: int) -> bool:
    return size >= min(_GIB, _NOTABLE * heap.total_bytes)


def shm_line(heap: Heap, *, complete: bool, whole_host: bool) -> Line | None:
    """Of files that no process which is seen has open."""
    if not _is_notable(heap, heap.size_bytes):
        return None
    counts = heap.by_pattern()
    what = ", ".join(f"{pattern} {count}" for pattern, count in counts[:6])
    what += ", ..." if len(counts) > 6 else ""
    size, total = format_bytes(heap.size_bytes), format_bytes(heap.total_bytes)
    said = f"{len(heap.files)} files in {heap.folder} take {size} of its {total} ({what})"
    remove = "rm " + " ".join(f"{heap.folder}/{pattern}" for pattern, _ in counts[:6])
    key = "-unknown" if not complete else "" if whole_host else "-of-container"
    return line(f"leftovers.files{key}", said=said, remove=remove, folder=heap.folder)


def _command(process: Process) -> str:
    words = " ".join(redacted(list(process.argv))) or process.comm
    return words[:_MOST_LETTERS] + ("..." if len(words) > _MOST_LETTERS else "")
