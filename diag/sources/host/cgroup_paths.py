"""Where the cgroups of a process are: directories of one controller, leaf first, as the process or as we see
them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from diag.sources.host.mountinfo import mounts
from diag.sources.host.process_tree import PROC, read_text


class CgroupPaths(NamedTuple):
    """`levels` are (path as it is mounted, directory to open). `version` 0: this kernel has no such
    controller."""

    version: int
    view: str
    levels: list[tuple[str, str]]
    missing: str


def find(  # noqa: PLR0917 - one caller
    pid: int,
    membership: str,
    controller: str,
    limit_files: dict[int, str],
    root: Path = PROC,
    own: Path = Path("/"),
) -> CgroupPaths:
    """Looked up in the process's own view (/proc/PID/root, which works from a sidecar with another cgroup
    namespace) and in ours (on the host it shows more parents); the view with more levels is taken."""
    version, path = _membership(membership, controller)
    if not version:
        return CgroupPaths(0, "", [], f"the kernel has no {controller} cgroups")
    views = (
        ("rank", root / str(pid) / "root", root / str(pid) / "mountinfo"),
        ("own", own, root / "self" / "mountinfo"),
    )
    best: list[tuple[str, str]] = []
    found_mount, best_view = False, ""
    for view, top, mountinfo in views:
        for mounted_root, mount in _mounts(read_text(os.fspath(mountinfo)), version, controller):
            base = os.path.join(top, mount.lstrip("/"))
            below = _below(path, mounted_root)
            if below is None and view == "rank":
                # A private cgroup namespace: what is mounted there is the container's own top, or above it.
                below = ""
            if below is None or not Path(base).is_dir():
                continue
            found_mount = True
            levels = [
                (os.path.join(mount, inner).rstrip("/"), os.path.join(base, inner))
                for inner in _upwards(below)
                if Path(base, inner, limit_files[version]).exists()
            ]
            if len(levels) > len(best):
                best, best_view = levels, view
    # No level with a limit file is the top cgroup: nothing limits it.
    return CgroupPaths(version, best_view, best, "" if found_mount else f"no cgroup mount shows {path}")


# /proc/PID/cgroup, Linux 6.18, hybrid (v1 memory, empty v2 beside it), 2026-11-21:
#   4:memory:/machine/4d27535b32ad21312d67424ac84a1167
#   0::/
def _membership(text: str, controller: str) -> tuple[int, str]:
    """Version (0: no such cgroup) and path. v1 first: where it has the controller, v2 has not."""
    unified = ""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return 1, path
        if number == "0" and not controllers:
            unified = path
    return (2, unified) if unified else (0, "")


# /proc/self/mountinfo, Linux 6.18, hybrid, 2026-11-21; the fourth field is the cgroup that is mounted:
#   33 25 0:29 / /sys/fs/cgroup/memory rw,relatime shared:8 - cgroup cgroup rw,memory
#   40 25 0:36 / /sys/fs/cgroup/unified rw,relatime shared:15 - cgroup2 cgroup2 rw
def _mounts(mountinfo: str, version: int, controller: str) -> Iterator[tuple[str, str]]:
    for mount in mounts(mountinfo):
        ours = controller in mount.options.split(",") if version == 1 else True
        if ours and mount.type == ("cgroup" if version == 1 else "cgroup2"):
            yield mount.root, mount.point


def _below(path: str, mounted_root: str) -> str | None:
    """The rest of `path` below what is mounted; None when it is not below."""
    if mounted_root == "/":
        return None if path.startswith("/..") else path.strip("/")
    if path == mounted_root:
        return ""
    return path[len(mounted_root) + 1 :] if path.startswith(mounted_root + "/") else None


def _upwards(below: str) -> list[str]:
    """
    >>> _upwards("pod1/main")
    ['pod1/main', 'pod1', '']
    """
    parts = below.split("/") if below else []
    return ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]
