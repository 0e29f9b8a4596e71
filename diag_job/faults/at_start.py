"""What a fault needs before torch is there: a /dev/shm of its own, a memory cgroup, a rank that stays away."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from ..after_import import after_import
from .runtime import Runtime
from .spec import FaultError

# linux/sched.h and linux/mount.h; os.unshare is there only from Python 3.12 on.
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


def hook_rendezvous(runtime: Runtime) -> None:
    def wrap(module: ModuleType) -> None:
        genuine: Any = module.init_process_group

        @functools.wraps(genuine)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            runtime.announce()
            runtime.wait_for_release()
            return genuine(*args, **kwargs)

        module.init_process_group = init_process_group  # type: ignore[attr-defined]

    after_import("torch.distributed.distributed_c10d", wrap)


def _mount_namespace() -> None:
    """Give this process, and the children it will have, mounts of their own; as an unprivileged user through
    a user namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        if libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER) != 0:
            raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    # Or the mount that follows would show up in the whole machine.
    if libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "mount: " + os.strerror(ctypes.get_errno()))


def mount_private(folder: str, megabytes: float) -> None:
    """A small file system on `folder`, for this process and its children alone."""
    _mount_namespace()
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={max(1, int(megabytes * 1024))}k,mode=1777".encode()
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "mount: " + os.strerror(ctypes.get_errno()))


def mount_private_shm(runtime: Runtime) -> None:
    """A small /dev/shm for this rank alone, as a container without --shm-size has it."""
    mount_private("/dev/shm", runtime.fault.option("megabytes"))


def check_private_mount(name: str) -> None:
    """Raise FaultError if mount_private would not work; tried in a child, which takes the mount with it."""
    child = os.fork()
    if child == 0:
        try:
            mount_private("/dev/shm", 1)
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise FaultError(
            f"fault {name}: this user may not mount file systems of its own (no CAP_SYS_ADMIN, no user namespaces)\n\n"
            "hint: run it as root, or in a container with --cap-add SYS_ADMIN"
        )


def _own_cgroup(controller: str) -> str | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path
    return None


def _run_cgroup(runtime: Runtime, controller: str) -> Path:
    """The cgroup that a fault makes for the run, named after the ranks' parent."""
    root = Path("/sys/fs/cgroup")
    name = f"diag-fault-{runtime.agent_pid}"
    if (root / "cgroup.controllers").exists():  # v2
        return root / name
    return root / controller / (_own_cgroup(controller) or "/").lstrip("/") / name


_LIMITS = {"memory": ("memory.max", "memory.limit_in_bytes"), "pids": ("pids.max",)}


def _join_cgroup(runtime: Runtime, controller: str, below: str = "") -> Path:
    """Move this rank to the run's own cgroup, without a limit yet, or to one below it. Raises OSError where
    that may not be."""
    group = _run_cgroup(runtime, controller)
    for left_over in group.parent.glob("diag-fault-*"):
        # Named after a torchrun agent: of a run that is over when that process is.
        if not Path("/proc", left_over.name.rpartition("-")[2]).exists():
            for directory in (*(path for path in left_over.iterdir() if path.is_dir()), left_over):
                try:
                    directory.rmdir()
                except OSError:
                    continue
    group.mkdir(exist_ok=True)
    if not any((group / name).exists() for name in _LIMITS[controller]):
        raise OSError(f"no {controller} controller")  # v2 where it is not in cgroup.subtree_control
    if below:
        if (group / "cgroup.subtree_control").exists():
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
        (group / below).mkdir(exist_ok=True)
    (group / below / "cgroup.procs").write_text(str(os.getpid()))
    return group


def join_memory_cgroup(runtime: Runtime) -> None:
    """Every rank, as in a container. Where that may not be, RLIMIT_AS does for it."""
    below = "ranks" if runtime.fault.name == "parent-oom" else ""
    try:
        runtime.memory_cgroup = _join_cgroup(runtime, "memory", below)
    except OSError:
        return


def join_pids_cgroup(runtime: Runtime) -> None:
    try:
        runtime.pids_cgroup = _join_cgroup(runtime, "pids")
    except OSError as error:
        raise FaultError(
            f"fault pids-limit: this user may not make a pids cgroup ({error})\n\n"
            "hint: run it as root, with /sys/fs/cgroup writable"
        ) from None


def limit_addresses(runtime: Runtime) -> None:
    """As `ulimit -v` before the launcher does."""
    import resource

    limit = int(runtime.fault.option("gigabytes") * (1 << 30))
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def limit_memory(runtime: Runtime, headroom: int) -> str:
    """Let the rank have `headroom` bytes more than it has; the words say by what."""
    group = runtime.memory_cgroup
    if group is not None:
        v2 = (group / "memory.max").exists()
        usage = int((group / ("memory.current" if v2 else "memory.usage_in_bytes")).read_text())
        limits = (
            ("memory.max", "memory.swap.max")
            if v2
            else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        )
        # Swap is shut off, or the limit would only make the machine slow; v1 counts memory and swap together.
        for name, value in zip(limits, (usage + headroom, 0 if v2 else usage + headroom), strict=True):
            try:
                (group / name).write_text(str(value))
            except OSError:  # a kernel without swap accounting has no such file
                if name == limits[0]:
                    raise
        return f"cgroup={group} limit={usage + headroom}"
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + headroom
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return f"rlimit_as={limit}"
