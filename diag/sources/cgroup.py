"""Memory of the cgroup that a process lives in (v1, v2, hybrid) and of its host.

`CgroupReader` finds the cgroup and reads it also after the process died, for that is when its OOM counter matters.
`parse` picks the level that binds. Judging usage against limits is the detectors'.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from diag.model import Payload, Record
from diag.observations import CgroupMemory, HostMemory, Observation, SourceFailed, Unparsed
from diag.sources.tree import PROC, read_raw

__all__ = ["SOURCE", "CgroupReader", "parse"]

SOURCE = "cgroup"

FILES = {
    1: {
        "limit": "memory.limit_in_bytes",
        "usage": "memory.usage_in_bytes",
        "peak": "memory.max_usage_in_bytes",
        "events": "memory.oom_control",
        "stat": "memory.stat",
    },
    2: {
        "limit": "memory.max",
        "usage": "memory.current",
        "peak": "memory.peak",  # Linux 5.19 and later
        "events": "memory.events",
        "stat": "memory.stat",
    },
}
STAT_LINES = (
    b"anon ",
    b"shmem ",
    b"inactive_file ",
    b"active_file ",
    b"file_dirty ",
    b"file_writeback ",
    b"total_rss ",
    b"total_cache ",
    b"total_shmem ",
    b"total_inactive_file ",
    b"total_active_file ",
    b"total_dirty ",
    b"hierarchical_memory_limit ",
)
NO_LIMIT = 1 << 62  # v1 says "none" as the largest page count in bytes: 9223372036854771712 with 4 KiB pages
MEMINFO_LINES = (b"MemTotal:", b"MemFree:", b"MemAvailable:", b"Shmem:", b"Dirty:", b"CommitLimit:", b"Committed_AS:")


class _Level(NamedTuple):
    path: str  # as the process sees it
    fd: int  # of the directory: /proc/PID/root is gone with the process, an open directory is not


class CgroupReader:
    """Reads the memory cgroup of `pid` and its visible parents.

    It is looked up in the process's own view (/proc/PID/root, which works from a sidecar with another cgroup
    namespace) and in ours (on the host it shows more parents); the view with more levels is taken.
    """

    def __init__(self, pid: int, root: Path = PROC, own: Path = Path("/")) -> None:
        self.pid = pid
        self._root = root
        self._own = own
        self._membership: bytes | None = None
        self._version = 0
        self._view = ""
        self._levels: list[_Level] = []
        self._missing = ""

    def close(self) -> None:
        while self._levels:
            os.close(self._levels.pop().fd)

    def sample(self) -> Payload:
        """The cgroup now, leaf first, and the host. Raises nothing: what is missing is said under `missing`."""
        membership = read_raw(f"{self._root}/{self.pid}/cgroup")
        if membership and membership != self._membership:  # the first time, or somebody moved it
            self._membership = membership
            self._find(membership.decode(errors="replace"))
        elif self._membership is None:
            self._missing = f"process {self.pid} is gone"
        files = FILES.get(self._version, {})
        levels: list[Payload] = []
        for level in self._levels:
            if levels and not _is_limit(_read_at(level.fd, files["limit"])):
                continue  # of the parents only those matter that may bind
            texts = {key: _read_at(level.fd, name) for key, name in files.items()}
            texts["stat"] = _lines(texts["stat"], STAT_LINES)
            levels.append({"path": level.path, **{key: _text(raw) for key, raw in texts.items() if raw is not None}})
        return {
            "pid": self.pid,
            "version": self._version,
            "view": self._view,
            "levels": levels,
            "missing": self._missing,
            "meminfo": _text(_lines(read_raw(f"{self._root}/meminfo"), MEMINFO_LINES)),
            "vmstat": _text(_lines(read_raw(f"{self._root}/vmstat"), (b"oom_kill ",))),
        }

    def _find(self, membership: str) -> None:
        self._version, path = _membership(membership)
        views = (
            ("rank", self._root / str(self.pid) / "root", self._root / str(self.pid) / "mountinfo"),
            ("own", self._own, self._root / "self" / "mountinfo"),
        )
        best: list[tuple[str, str]] = []
        found_mount = False
        self._view = ""
        for view, top, mountinfo in views:
            text = (read_raw(os.fspath(mountinfo)) or b"").decode(errors="replace")
            for mounted_root, mount in _mounts(text, self._version):
                base = os.path.join(top, mount.lstrip("/"))
                below = _below(path, mounted_root)
                if below is None and view == "rank":
                    # A private cgroup namespace: what is mounted there is the container's own top, or above it.
                    below = ""
                if below is None or not Path(base).is_dir():
                    continue
                found_mount = True
                levels = [
                    (os.path.join(mount, inner), os.path.join(base, inner))
                    for inner in _upwards(below)
                    if Path(base, inner, FILES[self._version]["limit"]).exists()
                ]
                if len(levels) > len(best):
                    best, self._view = levels, view
        self.close()
        for path, directory in best:
            try:
                fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self._levels.append(_Level(path.rstrip("/"), fd))
            except OSError:  # removed meanwhile
                continue
        if not self._version:
            self._missing = "the kernel has no memory cgroups"
        elif not found_mount:
            self._missing = f"no cgroup mount shows {path}"
        else:
            self._missing = ""  # no level with a limit file is the top cgroup: nothing limits it


# /proc/PID/cgroup, Linux 6.18, hybrid (v1 memory, empty v2 beside it), 2026-11-21:
#   4:memory:/process_api/4d27535b32ad21312d67424ac84a1167
#   0::/
def _membership(text: str) -> tuple[int, str]:
    """Version (0: no memory cgroup) and path. v1 first: where it has the memory controller, v2 has not."""
    unified = ""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return 1, path
        if number == "0" and not controllers:
            unified = path
    return (2, unified) if unified else (0, "")


# /proc/self/mountinfo, Linux 6.18, hybrid, 2026-11-21; the fourth field is the cgroup that is mounted:
#   33 25 0:29 / /sys/fs/cgroup/memory rw,relatime shared:8 - cgroup cgroup rw,memory
#   40 25 0:36 / /sys/fs/cgroup/unified rw,relatime shared:15 - cgroup2 cgroup2 rw
def _mounts(mountinfo: str, version: int) -> Iterator[tuple[str, str]]:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if (version == 2 and kind[0] == "cgroup2") or (version == 1 and kind[0] == "cgroup" and "memory" in kind[2].split(",")):
            yield _unescape(fields[3]), _unescape(fields[4])


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


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


def _read_at(directory: int, name: str) -> bytes | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        return os.read(fd, 65536)
    except OSError:  # ENODEV: the cgroup was removed
        return None
    finally:
        os.close(fd)


def _is_limit(raw: bytes | None) -> bool:
    number = _number(_text(raw))
    return number is not None and number < NO_LIMIT


def _lines(raw: bytes | None, wanted: tuple[bytes, ...]) -> bytes | None:
    return None if raw is None else b"\n".join(line for line in raw.split(b"\n") if line.startswith(wanted))


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")


# --- understanding it ----------------------------------------------------------------------------------------


def parse(record: Record) -> Iterator[Observation]:
    """CgroupMemory of the level with the least room left (nothing when no level has a counter), and HostMemory."""
    payload = record.payload
    if not isinstance(payload, Mapping):
        yield Unparsed(record.rank, SOURCE, "no cgroup payload", str(payload)[:200])
        return
    if payload.get("missing"):
        yield SourceFailed(
            record.rank,
            SOURCE,
            str(payload["missing"])[:200],
            "run diag as the same user in the same container, or mount the host's /sys/fs/cgroup into it",
        )
    levels = payload.get("levels")
    if isinstance(levels, list) and levels:
        yield _cgroup_memory(record, payload, levels)
    host = _numbers(payload.get("meminfo"))
    if "MemTotal" in host:
        total = host["MemTotal"] * 1024
        available = host.get("MemAvailable", host.get("MemFree", 0)) * 1024  # MemAvailable: Linux 3.14 and later
        yield HostMemory(record.rank, total, available, _numbers(payload.get("vmstat")).get("oom_kill"))
    else:
        yield Unparsed(record.rank, SOURCE, "meminfo", str(payload.get("meminfo"))[:200])


def _cgroup_memory(record: Record, payload: Mapping[str, Any], levels: list[Any]) -> Observation:
    read = [level for level in map(_level, levels) if level is not None]
    if not read:
        return Unparsed(record.rank, SOURCE, "no level has a usage", str(levels)[:200])
    # The leaf is first, and wins when two have the same room.
    tightest = min(read, key=lambda level: NO_LIMIT if level.limit is None else level.limit - level.usage)
    # Kills are counted where the victim lived (v2: and in all its parents, which may have other children too).
    leaf = levels[0] if isinstance(levels[0], Mapping) else {}
    events = _numbers(leaf.get("events"))
    return CgroupMemory(
        rank=record.rank,
        version=1 if payload.get("version") == 1 else 2,
        path=tightest.path,
        usage_bytes=tightest.usage,
        limit_bytes=tightest.limit,
        peak_bytes=tightest.peak,
        oom_kills=events.get("oom_kill", 0),
        cache_bytes=tightest.cache,
        shmem_bytes=tightest.shmem,
        high_events=events.get("high", 0),
    )


class _Read(NamedTuple):
    path: str
    usage: int
    limit: int | None
    peak: int | None
    cache: int
    shmem: int


def _level(level: object) -> _Read | None:
    if not isinstance(level, Mapping) or (usage := _number(level.get("usage"))) is None:
        return None
    stat = _numbers(level.get("stat"))
    # v1 tells the tightest limit of parents that we cannot see, too.
    limits = [_number(level.get("limit")), stat.get("hierarchical_memory_limit")]
    limit = min((value for value in limits if value is not None and value < NO_LIMIT), default=None)
    if "total_inactive_file" in stat:
        cache, shmem = stat["total_inactive_file"] + stat.get("total_active_file", 0), stat.get("total_shmem", 0)
    else:
        cache, shmem = stat.get("inactive_file", 0) + stat.get("active_file", 0), stat.get("shmem", 0)
    return _Read(str(level.get("path", ""))[:1000], usage, limit, _number(level.get("peak")), cache, shmem)


def _number(text: object) -> int | None:
    match = re.match(r"\d{1,20}\b", text, re.ASCII) if isinstance(text, str) else None
    return int(match[0]) if match else None


# memory.stat and memory.events "inactive_file 2946433024", meminfo "MemTotal:       263998500 kB",
# vmstat "oom_kill 0": H200 host (Linux 6.13 or later), 2026-11-21
_NAMED_NUMBER = re.compile(r"^(\w{1,40}):?[ \t]+(\d{1,20})\b", re.ASCII | re.MULTILINE)


def _numbers(text: object) -> dict[str, int]:
    return {name: int(value) for name, value in _NAMED_NUMBER.findall(text)} if isinstance(text, str) else {}
