"""What earlier jobs left: processes whose launcher is gone, files in /dev/shm that nobody has open. Ends and
removes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from diag.launch.launchers import helps, redacted
from diag.preflight import gpus
from diag.preflight.job_processes import JobGroup, Process, group, processes_here
from diag.preflight.line import Line
from diag.preflight.shm_files import Heap, heap_of, in_use
from diag.sources.host.process_tree import PROC
from diag.text.units import format_bytes, format_seconds

_GIB = 1 << 30
_ID = "leftover-process"
_MOST_PIDS = 16
_MOST_LETTERS = 100
_NOTABLE = 0.1  # of /dev/shm, or a GiB


def check_leftovers(command: Sequence[str], proc: Path = PROC) -> Iterator[Line]:
    held = gpus.memory_of_processes() if gpus.names_host_pids() else {}
    try:
        found = processes_here(proc)
    except OSError:
        found = {}
    if os.getpid() not in found:
        yield Line(
            "left-over processes",
            "not checked",
            f"{proc} shows no processes",
            "mount /proc, of this process namespace",
        )
        return
    yield from process_lines(group(found, os.getpid()), held)


def process_lines(groups: Iterable[JobGroup], gpu_memory: Mapping[int, int]) -> Iterator[Line]:
    """`gpu_memory`: bytes by pid, where NVML tells pids of this process namespace."""
    quiet = True
    for one in groups:
        quiet = quiet and not one.left_over
        size = sum(gpu_memory.get(member.pid, 0) for member in one.members)
        on_gpu = f", {format_bytes(size)} of GPU memory" if size else ""
        if one.left_over:
            yield _left_over(one, on_gpu)
        else:
            by = (
                f" below process {one.launcher.pid} ({_command(one.launcher)})"
                if one.launcher is not None
                else ""
            )
            yield Line(
                "other jobs",
                "note",
                f"another job runs here: {_ranks(one)}{by}{on_gpu}",
                "wait for it, or give this job other GPUs (CUDA_VISIBLE_DEVICES) and another MASTER_PORT",
            )
    if quiet:
        yield Line("left-over processes", "ok", "no process of an earlier job" + _seen())


def _left_over(one: JobGroup, on_gpu: str) -> Line:
    members = one.members
    pids = " ".join(str(member.pid) for member in members[:_MOST_PIDS]) + (
        " ..." if len(members) > _MOST_PIDS else ""
    )
    stuck = [member.pid for member in members if member.state == "D"]
    oldest = max(members, key=lambda member: member.age_seconds)
    many = len(members) > 1
    lead = next(filter(_trains, members), members[0])
    said = (
        f"{len(members)} process{'es' if many else ''} of an earlier job {'are' if many else 'is'} left over"
        f" ({_ranks(one)}; {_command(lead)}): what started {'them' if many else 'it'} is gone; started "
        f"{format_seconds(oldest.age_seconds)} ago, {format_bytes(sum(member.resident_bytes for member in members))} of memory{on_gpu}"
    )
    remedy = f"kill {pids}; kill -9 for those that are still there after 10 s"
    if stuck:
        remedy += f"; {', '.join(map(str, stuck))} hang{'s' if len(stuck) == 1 else ''} in the kernel (state D), where no signal comes"
    if not one.sure:
        return Line(
            "left-over processes", "note", f"{said}, unless process 1 itself started them", remedy, _ID
        )
    return Line("left-over processes", "problem", said, remedy, _ID)


def _ranks(one: JobGroup) -> str:
    ranks = one.ranks
    workers = sum(not _trains(member) for member in one.members)
    pids = {member.rank: member.pid for member in reversed(one.members) if _trains(member)}
    if not ranks:
        return f"pids {', '.join(str(member.pid) for member in one.members[:_MOST_PIDS])}"
    told = ", ".join(f"rank {rank} pid {pids[rank]}" for rank in ranks[:4] if rank in pids)
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return (
        (told or f"ranks {', '.join(map(str, ranks[:4]))}")
        + more
        + (f", {workers} workers" if workers > 1 else ", 1 worker" if workers else "")
    )


def _trains(member: Process) -> bool:
    """Whether it may be the rank, or what the rank forked: no worker or helper that inherited its variables."""
    return member.rank is not None and not member.is_worker and not helps(member.argv)


def _seen() -> str:
    """Whose processes were looked at, where it is not all of the host's."""
    return (" of this user" if os.geteuid() else "") + (
        "" if gpus.names_host_pids() else " in this container"
    )


def check_shm_files(
    command: Sequence[str],
    folder: str = "/dev/shm",
    used: Callable[[Heap], tuple[set[str], bool]] = in_use,
    whole_host: bool | None = None,
) -> Iterator[Line]:
    heap = heap_of(folder)
    if heap is None or not heap.files or not _is_notable(heap, heap.size_bytes):
        return
    held, complete = used(heap)
    whole = gpus.names_host_pids() if whole_host is None else whole_host
    line = shm_line(heap.without(held), complete=complete, whole_host=whole)
    if line is not None:
        yield line


def _is_notable(heap: Heap, size: int) -> bool:
    return size >= min(_GIB, _NOTABLE * heap.total_bytes)


def shm_line(heap: Heap, *, complete: bool, whole_host: bool) -> Line | None:
    """Of files that no process which is seen has open."""
    if not _is_notable(heap, heap.size_bytes):
        return None
    counts = heap.by_pattern()
    what = ", ".join(f"{pattern} {count}" for pattern, count in counts[:6]) + (
        ", ..." if len(counts) > 6 else ""
    )
    said = (
        f"{len(heap.files)} files in {heap.folder} take {format_bytes(heap.size_bytes)} of its "
        f"{format_bytes(heap.total_bytes)} ({what})"
    )
    remove = "rm " + " ".join(f"{heap.folder}/{pattern}" for pattern, _ in counts[:6])
    if not complete:
        return Line(
            "left-over files",
            "not checked",
            f"{said}; not all processes could be asked whether they have them open",
            "run diag doctor as root",
        )
    if not whole_host:
        return Line(
            "left-over files",
            "note",
            f"{said}; no process of this container has them open",
            f"{remove}, if no other container shares this {heap.folder}",
            _ID,
        )
    return Line(
        "left-over files",
        "problem",
        f"{said}, and no process has them open: earlier jobs left them",
        remove,
        _ID,
    )


def _command(process: Process) -> str:
    words = " ".join(redacted(list(process.argv))) or process.comm
    return words[:_MOST_LETTERS] + ("..." if len(words) > _MOST_LETTERS else "")
