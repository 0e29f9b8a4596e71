"""Limits of this machine or container that break training: shared memory, files, locked memory, memory."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from diag.model import Record
from diag.model.observations import CgroupMemory, HostMemory
from diag.preflight.container import container_of, limit_lines, shm_lines
from diag.preflight.line import Line
from diag.sources.host import cgroup
from diag.sources.network.rdma_access import ipc_lock, lock_rights
from diag.text.units import format_bytes

_MIB = 1 << 20


def check_shared_memory(command: Sequence[str], path: Path = Path("/dev/shm")) -> Iterator[Line]:
    container = container_of(command)
    lines = list(shm_lines(container)) if container is not None else []
    if lines:
        yield from lines
        return
    try:
        size = shutil.disk_usage(path)
    except OSError as error:
        yield Line("shared memory", "not checked", f"{path}: {error.strerror}", "mount a tmpfs on /dev/shm")
        return
    said = f"/dev/shm is {format_bytes(size.total)}, {format_bytes(size.free)} free"
    if size.total <= 64 * _MIB or size.free < 256 * _MIB:
        yield Line(
            "shared memory",
            "problem",
            said,
            "docker --shm-size=16g or --ipc=host; Kubernetes: emptyDir medium Memory on /dev/shm",
            "shm-too-small",
        )
    else:
        yield Line("shared memory", "ok", said)


def check_open_files(command: Sequence[str]) -> Iterator[Line]:
    container = container_of(command)
    if container is not None:
        yield from limit_lines(container, "nofile")
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = f"limit of open files is {soft} (hard {hard})"
    if soft != resource.RLIM_INFINITY and soft < 4096:
        yield Line("open files", "problem", said, "`ulimit -n 65536` before the run", "fd-limit")
    else:
        yield Line("open files", "ok", said)


def _rdma(devices: Path, kernel: Path) -> tuple[bool | None, bool | None]:
    """Whether there are devices to open, and whether the kernel has any; None where that may not be looked
    at."""
    found: list[bool | None] = []
    for folder in (devices, kernel):
        try:
            found.append(any(folder.iterdir()))
        except FileNotFoundError:
            found.append(False if folder.parent.is_dir() else None)
        except OSError:
            found.append(None)
    return found[0], found[1]


def check_locked_memory(
    command: Sequence[str], rdma: Path = Path("/dev/infiniband"), kernel: Path = Path("/sys/class/infiniband")
) -> Iterator[Line]:
    container = container_of(command)
    if container is not None:
        yield from limit_lines(container, "memlock")
        return
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    said = "unlimited" if soft == resource.RLIM_INFINITY else format_bytes(soft)
    rights = lock_rights("/proc/self")
    here, hidden = _rdma(rdma, kernel)
    if soft == resource.RLIM_INFINITY:
        yield Line("locked memory", "ok", said)
    elif here is None:
        yield Line(
            "locked memory",
            "not checked",
            f"limit {said}; {rdma} cannot be read, so whether it matters is not known",
        )
    elif not here and hidden is False:
        yield Line("locked memory", "ok", f"limit {said}; no RDMA device here, so it does not matter")
    elif not here:
        yield Line(
            "locked memory",
            "not checked",
            f"limit {said}; it matters once the RDMA devices of this machine are in {rdma}"
            if hidden
            else f"limit {said}; whether this machine has RDMA devices cannot be seen",
        )
    elif rights.get("cap_eff") is None:
        yield Line(
            "locked memory", "not checked", f"limit {said}; whether CAP_IPC_LOCK lifts it cannot be read"
        )
    elif ipc_lock(rights["cap_eff"], rights["uid_map"]):
        yield Line("locked memory", "ok", f"limit {said}, but CAP_IPC_LOCK lifts it")
    else:
        yield Line(
            "locked memory",
            "problem",
            f"limit {said} with RDMA devices present",
            "`ulimit -l unlimited`; docker --ulimit memlock=-1; Kubernetes: capability IPC_LOCK",
            "memlock-limit",
        )


def check_host_memory(command: Sequence[str]) -> Iterator[Line]:
    reader = cgroup.CgroupReader(os.getpid())
    facts = list(cgroup.parse(Record(cgroup.SOURCE, reader.sample())))
    reader.close()
    host = next((fact for fact in facts if isinstance(fact, HostMemory)), None)
    group = next((fact for fact in facts if isinstance(fact, CgroupMemory)), None)
    if host is None:
        yield Line("host memory", "not checked", "/proc/meminfo cannot be read")
        return
    said = f"{format_bytes(host.available_bytes)} of {format_bytes(host.total_bytes)} available"
    if group is not None and group.limit_bytes is not None:
        free = group.limit_bytes - group.usage_bytes + group.cache_bytes
        said += (
            f"; cgroup {group.path} allows {format_bytes(group.limit_bytes)}, about {format_bytes(free)} free"
        )
    container = container_of(command)
    if container is not None and container.memory:
        said += f"; {container.engine} run --memory={container.memory}"
    if group is None:
        yield Line(
            "host memory", "not checked", f"{said}; what its cgroup allows this container could not be read"
        )
        return
    yield Line("host memory", "ok", said)
