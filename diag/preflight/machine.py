"""Limits of this machine or container against what the ranks of CMD will need: memory, files, processes."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from diag.launch.launchers.command import Command
from diag.launch.launchers.command.flags import parse_flags
from diag.model.observations import CgroupMemory, CgroupPids, HostMemory
from diag.preflight.container import limit_line, shm_lines
from diag.preflight.launch_devices import ranks_here
from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.line import Line, line
from diag.preflight.plan import has_entries
from diag.sources.host.cgroup import own_facts
from diag.sources.host.process_tree import PROC, read_raw
from diag.sources.network.rdma_access import ipc_lock, lock_rights
from diag.sources.stacks.pyspy import PySpy
from diag.sources.stacks.remote_stack import RemoteStacks
from diag.text.units import format_bytes

_MIB = 1 << 20
_GIB = 1 << 30
_INFINITY = resource.RLIM_INFINITY
# Of a rank at work: 67 to 90 on H200 without compiling, more with several process groups of gloo (two and one each)
_THREADS = 150
_OF_WORKER = 3  # itself, its queue's thread, and the rank's thread that pins what it brings
_WORKERS = 4  # ms-swift's default a rank
# A rank on an H200 has 300 GiB and more of address space, nearly all of it reserved by CUDA and not used.
_ADDRESS_SPACE = 512 * _GIB
_DATA = 64 * _GIB


def check_shared_memory(facts: LaunchFacts, path: Path = Path("/dev/shm")) -> Iterator[Line]:
    lines = list(shm_lines(facts.container)) if facts.container is not None else []
    if lines:
        yield from lines
        return
    try:
        size = shutil.disk_usage(path)
    except OSError as error:
        yield line("machine.shm-unreadable", path=path, error=error)
        return
    small = size.total <= 64 * _MIB or size.free < 256 * _MIB
    said = f"/dev/shm is {format_bytes(size.total)}, {format_bytes(size.free)} free"
    yield line(f"machine.shm-{'small' if small else 'fits'}", said=said)


def check_open_files(facts: LaunchFacts) -> Iterator[Line]:
    if facts.container is not None:
        yield limit_line(facts.container, "nofile")
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != _INFINITY and soft < 4096
    yield line(f"machine.open-files{'-few' if few else ''}", soft=soft, hard=hard)


def check_locked_memory(
    facts: LaunchFacts, rdma: Path = Path("/dev/infiniband"), kernel: Path = Path("/sys/class/infiniband")
) -> Iterator[Line]:
    if facts.container is not None:
        yield limit_line(facts.container, "memlock")
        return
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    said = "unlimited" if soft == _INFINITY else format_bytes(soft)
    rights = lock_rights("/proc/self")
    here, hidden = has_entries(rdma), has_entries(kernel)  # devices to open; devices that the kernel has
    if soft == _INFINITY:
        key = ""
    elif here is None:
        key = "-unreadable"
    elif not here:
        key = {False: "-no-rdma", True: "-rdma-hidden", None: "-rdma-unknown"}[hidden]
    elif rights.get("cap_eff") is None:
        key = "-rights-unknown"
    else:
        key = "-lifted" if ipc_lock(rights["cap_eff"], rights["uid_map"]) else "-low"
    yield line(f"machine.locked{key}", said=said, rdma=rdma)


def check_host_memory(facts: LaunchFacts) -> Iterator[Line]:
    limits = own_facts()
    host = next((fact for fact in limits if isinstance(fact, HostMemory)), None)
    group = next((fact for fact in limits if isinstance(fact, CgroupMemory)), None)
    if host is None:
        yield line("machine.memory-unreadable")
        return
    said = f"{format_bytes(host.available_bytes)} of {format_bytes(host.total_bytes)} available"
    if group is not None and group.limit_bytes is not None:
        free = format_bytes(group.limit_bytes - group.usage_bytes + group.cache_bytes)
        said += f"; cgroup {group.path} allows {format_bytes(group.limit_bytes)}, about {free} free"
    container = facts.container
    if container is not None and container.memory:
        said += f"; {container.engine} run --memory={container.memory}"
    yield line(f"machine.memory{'' if group is not None else '-cgroup-unreadable'}", said=said)


def needed_processes(launch: Command | None, ranks: int) -> int:
    flags = parse_flags(launch.words if launch is not None else ())
    word = flags.text("dataloader_num_workers", "num_workers")
    workers = int(word[:4]) if word.isdecimal() else _WORKERS
    return ranks * (_THREADS + _OF_WORKER * workers)


def check_processes(facts: LaunchFacts) -> Iterator[Line]:
    known = ranks_here(facts)
    ranks = known or len(facts.gpus or "1")
    need = needed_processes(facts.launch, ranks)
    rooms = list(_rooms())
    container = facts.container
    limit = container.pids_limit if container is not None else ""
    if container is not None and limit.isdecimal() and int(limit[:9]) > 0:
        rooms.append((int(limit[:9]), f"{container.engine} run --pids-limit={limit}"))
    whose = "1 rank and its" if ranks == 1 else f"{ranks} ranks and their"
    wants = f"{whose} workers need about {need} processes and threads"
    if not rooms:
        yield line("machine.processes-unknown", wants=wants)
        return
    room, name = min(rooms, key=lambda each: each[0])
    key = "few" if room < need else "fit" if known is not None else "ranks-unknown"
    yield line(f"machine.processes-{key}", room=max(room, 0), limit=name, wants=wants)


def _rooms(proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """(how many more, by which limit) of each limit that there is."""
    for fact in own_facts(proc):
        if isinstance(fact, CgroupPids) and fact.limit is not None:
            named = f"pids.max {fact.limit} of cgroup {fact.path}, {fact.current} in use"
            yield fact.limit - fact.current, named
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


def check_ulimits(facts: LaunchFacts) -> Iterator[Line]:
    """Those that are not set for training on purpose."""
    quiet = True
    has_gpus = bool(facts.gpus)
    for name, letter, limit, least in (
        ("address space", "v", resource.RLIMIT_AS, _ADDRESS_SPACE),
        ("data segment", "d", resource.RLIMIT_DATA, _DATA),
        ("size of a file", "f", resource.RLIMIT_FSIZE, None),
    ):
        soft = resource.getrlimit(limit)[0]
        if soft == _INFINITY:
            continue
        quiet = False
        low = least is not None and soft < (least if has_gpus else least / 16)
        reserves = letter == "v" and has_gpus
        why = "CUDA alone reserves hundreds of GiB of it" if reserves else "allocations beyond it fail"
        said = f"limit of the {name} is {format_bytes(soft)} (`ulimit -{letter}`)"
        key = "file-size" if least is None else "memory" if low else "large"
        yield line(f"machine.limit-{key}", said=said, letter=letter, why=why)
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    pattern = (read_raw("/proc/sys/kernel/core_pattern") or b"").decode(errors="replace").strip()
    if (core == _INFINITY or core > _GIB) and not pattern.startswith("|"):
        size = "unlimited" if core == _INFINITY else core
        yield line("machine.core-files", pattern=pattern or "core", core=size)
    if quiet:
        yield line("machine.limits-none")


def check_stacks(facts: LaunchFacts) -> Iterator[Line]:
    """Reads the stack of a process that is to this one what a rank is to a sidecar: a child of
    another process."""
    code = "import sys; sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdout.read(2)
        own, blind = RemoteStacks().dump(child.pid, 5.0), PySpy().can_read(child.pid, 5.0)
        if "failed" not in own:
            need = "other Pythons and `diag dump --native` need py-spy"
            also, remedy = ("", "") if blind is None else (f"; {blind.reason}: {need}", blind.remedy)
            yield line("machine.stacks-from-memory", yama=_yama(), also=also, remedy=remedy)
        elif blind is None:
            yield line("machine.stacks-by-py-spy", yama=_yama())
        else:
            yield line("machine.stacks-unreadable", blind=blind, yama=_yama())
    finally:
        child.kill()
        child.communicate()


def _yama() -> str:
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        return ""
    return f" (Yama ptrace_scope {scope})" if scope != "0" else ""
