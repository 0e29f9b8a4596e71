"""Limits of processes, address space and file sizes against what the ranks of CMD will need."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from diag.launch.launchers.command import Command
from diag.launch.launchers.command.flags import parse_flags
from diag.model import Record
from diag.model.observations import CgroupPids
from diag.preflight import gpus
from diag.preflight.launch_devices import ranks_here
from diag.preflight.launch_facts import launch_facts
from diag.preflight.line import Line
from diag.sources.host import cgroup
from diag.sources.host.process_tree import PROC, read_raw
from diag.text.units import format_bytes

_GIB = 1 << 30
_INFINITY = resource.RLIM_INFINITY
_THREADS = 150  # of a rank at work: 67 to 90 on H200 without compiling, more with several process groups of gloo (two and one each)
_OF_WORKER = (
    3  # a DataLoader worker: itself, its queue's thread, and the rank's thread that pins what it brings
)
_WORKERS = 4  # ms-swift's default a rank
# A rank on an H200 has 300 GiB and more of address space, nearly all of it reserved by CUDA and not used.
_ADDRESS_SPACE = 512 * _GIB
_DATA = 64 * _GIB


def needed_processes(launch: Command | None, ranks: int) -> int:
    workers = _WORKERS
    if launch is not None:
        flags = parse_flags(launch.words, launch.environment)
        word = flags.text("dataloader_num_workers", "num_workers")
        workers = int(word[:4]) if word.isdecimal() else _WORKERS
    return ranks * (_THREADS + _OF_WORKER * workers)


def check_processes(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Line]:
    facts = launch_facts(command, os.environ if environment is None else environment, gpus.uuids_here())
    known = ranks_here(facts)
    ranks = known or len(facts.gpus or "1")
    need = needed_processes(facts.launch, ranks)
    room, said = None, ""
    for free, name in _rooms():
        if room is None or free < room:
            room, said = free, name
    container = facts.command.container
    limit = container.pids_limit if container is not None else ""
    if container is not None and limit.isdecimal() and 0 < int(limit[:9]) < (room or 1 << 40):
        room, said = int(limit[:9]), f"{container.engine} run --pids-limit={limit}"
    wants = f"{'1 rank and its' if ranks == 1 else f'{ranks} ranks and their'} workers need about {need} processes and threads"
    if room is None:
        yield Line("processes", "not checked", f"no limit of processes could be read; {wants}", "mount /proc")
    elif room < need:
        yield Line(
            "processes",
            "problem",
            f"room for {max(room, 0)} more ({said}), and {wants}",
            "docker --pids-limit -1; Kubernetes: podPidsLimit of the kubelet; `ulimit -u unlimited`; systemd: TasksMax=infinity",
            "pids-limit",
        )
    elif known is None:
        said = f"room for {room} more processes and threads ({said}); how many ranks start here is not known"
        yield Line("processes", "not checked", f"{said}, and {wants}")
    else:
        yield Line("processes", "ok", f"room for {room} more processes and threads ({said}); {wants}")


def _rooms(proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """(how many more, by which limit) of each limit that there is."""
    reader = cgroup.CgroupReader(os.getpid(), proc)
    facts = list(cgroup.parse(Record(cgroup.SOURCE, reader.sample())))
    reader.close()
    for fact in facts:
        if isinstance(fact, CgroupPids) and fact.limit is not None:
            yield (
                fact.limit - fact.current,
                f"pids.max {fact.limit} of cgroup {fact.path}, {fact.current} in use",
            )
    # /proc/loadavg, fourth field: runnable/all tasks of the kernel, as in "0.52 0.58 0.59 1/389 12345"
    words = (read_raw(f"{proc}/loadavg") or b"").split()
    tasks = words[3].partition(b"/")[2] if len(words) > 3 else b""
    now = int(tasks) if tasks.isdigit() else 0
    for name in ("threads-max", "pid_max") if tasks.isdigit() else ():
        text = (read_raw(f"{proc}/sys/kernel/{name}") or b"").strip()
        if text.isdigit():
            yield int(text) - now, f"kernel.{name} {int(text)}, {now} in use"
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != _INFINITY and os.geteuid() != 0:  # root's are not counted
        mine = _threads_of(os.geteuid(), proc)
        yield soft - mine, f"`ulimit -u` {soft}, {mine} in use by user {os.geteuid()}"


def _threads_of(uid: int, proc: Path) -> int:
    count = 0
    for entry in os.scandir(proc):
        if entry.name.isdecimal():
            try:
                if entry.stat().st_uid == uid:
                    count += os.stat(f"{entry.path}/task").st_nlink - 2  # noqa: PTH116 - one for each of thousands
            except OSError:
                continue
    return count


def check_ulimits(command: Sequence[str]) -> Iterator[Line]:
    """Those that nobody sets for training on purpose."""
    quiet = True
    has_gpus = bool(gpus.uuids_here())
    for name, letter, limit, least, id_ in (
        ("address space", "v", resource.RLIMIT_AS, _ADDRESS_SPACE, "host-oom"),
        ("data segment", "d", resource.RLIMIT_DATA, _DATA, "host-oom"),
        ("size of a file", "f", resource.RLIMIT_FSIZE, None, "checkpoint-write-error"),
    ):
        soft = resource.getrlimit(limit)[0]
        if soft == _INFINITY:
            continue
        quiet = False
        said = f"limit of the {name} is {format_bytes(soft)} (`ulimit -{letter}`)"
        if least is None:
            yield Line(
                "limits",
                "problem",
                f"{said}: a checkpoint's file that grows beyond it ends the rank",
                f"`ulimit -{letter} unlimited` before the run",
                id_,
            )
        elif soft < least and (has_gpus or soft < least / 16):
            why = (
                "CUDA alone reserves hundreds of GiB of it"
                if letter == "v" and has_gpus
                else "allocations beyond it fail"
            )
            yield Line(
                "limits", "problem", f"{said}: {why}", f"`ulimit -{letter} unlimited` before the run", id_
            )
        else:
            yield Line(
                "limits",
                "note",
                said,
                f"`ulimit -{letter} unlimited` before the run, where allocations fail without reason",
            )
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    pattern = (read_raw("/proc/sys/kernel/core_pattern") or b"").decode(errors="replace").strip()
    if core not in (0,) and (core == _INFINITY or core > _GIB) and not pattern.startswith("|"):
        yield Line(
            "limits",
            "note",
            f"a rank that crashes writes its whole memory to a file ({pattern or 'core'}; `ulimit -c` "
            f"{'unlimited' if core == _INFINITY else core})",
            "`ulimit -c 0`, unless the core is wanted",
        )
    if quiet:
        yield Line("limits", "ok", "no limit of address space, data or file size")
