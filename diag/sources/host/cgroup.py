"""Memory and number of processes of the cgroup that a process lives in (v1, v2, hybrid), and memory of its
host.

`CgroupReader` finds the cgroup and reads it also after the process died, for that is when its OOM counter
matters. `parse` picks the level that binds. Judging usage against limits is the detectors'.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from diag.model import Payload, Record
from diag.model import observations as facts
from diag.sources.host.cgroup_paths import find
from diag.sources.host.job_files import JobFiles
from diag.sources.host.process_tree import PROC, as_text, lines_of, named_numbers, read_raw, stat_fields

SOURCE = "cgroup"

FILES = {
    1: {
        "limit": "memory.limit_in_bytes",
        "usage": "memory.usage_in_bytes",
        "peak": "memory.max_usage_in_bytes",
        "events": "memory.oom_control",
        "met": "memory.failcnt",
        "stat": "memory.stat",
    },
    2: {
        "limit": "memory.max",
        "high": "memory.high",
        "usage": "memory.current",
        "peak": "memory.peak",  # Linux 5.19 and later
        "events": "memory.events",
        "local": "memory.events.local",  # Linux 5.2 and later
        "stat": "memory.stat",
        "pressure": "memory.pressure",
    },
}
LIMITS = {1: "memory.limit_in_bytes", 2: "memory.max"}
PIDS_LIMITS = {1: "pids.max", 2: "pids.max"}
PIDS_FILES = {
    "limit": "pids.max",
    "current": "pids.current",
    "events": "pids.events",
    "local": "pids.events.local",
}
STAT_LINES = (
    b"anon ", b"shmem ", b"inactive_file ", b"active_file ", b"file_dirty ", b"file_writeback ", b"total_rss ",
    b"total_cache ", b"total_shmem ", b"total_inactive_file ", b"total_active_file ", b"total_dirty ", b"total_writeback ",
    b"hierarchical_memory_limit ",
)  # fmt: skip
_CROWDED = 0.8
_PF_EXITING = 0x4  # include/linux/sched.h
NO_LIMIT = 1 << 62  # v1 says "none" as the largest page count in bytes: 9223372036854771712 with 4 KiB pages
MEMINFO_LINES = (
    b"MemTotal:", b"MemFree:", b"MemAvailable:", b"Shmem:", b"Dirty:", b"CommitLimit:", b"Committed_AS:", b"SwapTotal:",
    b"SwapFree:",
)  # fmt: skip


class _Level(NamedTuple):
    path: str  # as the process sees it
    fd: int  # of the directory: /proc/PID/root is gone with the process, an open directory is not


class CgroupReader:
    """Reads the memory and pids cgroups of `pid` and their visible parents. Not thread-safe."""

    def __init__(self, pid: int, root: Path = PROC, own: Path = Path("/")) -> None:
        self.pid = pid
        self._root = root
        self._own = own
        self._membership: bytes | None = None
        self._version = 0
        self._view = ""
        self._levels: list[_Level] = []
        self._pids: list[_Level] = []
        self._missing = ""
        self._limit: int | None = None  # the tightest when it was read last
        # at the last reading some level was filled to four fifths or more, page cache included
        self.crowded = False

    def close(self) -> None:
        for levels in (self._levels, self._pids):
            while levels:
                os.close(levels.pop().fd)

    def sample(self) -> Payload:
        """The cgroup now, leaf first, and the host. Raises nothing: `missing` names what is missing."""
        membership = read_raw(f"{self._root}/{self.pid}/cgroup")
        if membership and membership != self._membership and not (self._membership and self._is_ending()):
            self._membership = membership
            self._find(membership.decode(errors="replace"))
        elif self._membership is None:
            self._missing = f"process {self.pid} is gone"
        levels = _read_levels(self._levels, FILES.get(self._version, {}), ("limit", "high"))
        self.crowded = any(
            (_number(level.get("usage")) or 0)
            >= _CROWDED * min(_limit(level.get(key)) or NO_LIMIT for key in ("limit", "high"))
            for level in levels
        )
        self._limit = min(
            (limit for level in levels if (limit := _limit(level.get("limit"))) is not None), default=None
        )
        return {
            "pid": self.pid,
            "version": self._version,
            "view": self._view,
            "levels": levels,
            "pids": _read_levels(self._pids, PIDS_FILES, ("limit",)),
            "missing": self._missing,
            **host_sample(self._root),
        }

    def needed(self) -> tuple[int, int | None] | None:
        """Memory without page cache of the leaf (of the host where no cgroup counts) and the limit last read:
        a look that costs a part of a sample. Usage alone shows nothing where page cache fills the cgroup: it
        is at the limit then."""
        files = FILES.get(self._version, {})
        if self._levels and "usage" in files:
            fd = self._levels[0].fd
            read = _level(
                {"usage": as_text(_read_at(fd, files["usage"])), "stat": as_text(_read_at(fd, files["stat"]))}
            )
            return None if read is None else (max(0, read.usage - read.cache), self._limit)
        host = named_numbers(
            as_text(lines_of(read_raw(f"{self._root}/meminfo"), (b"MemTotal:", b"MemAvailable:")))
        )
        if len(host) != 2:
            return None
        return (host["MemTotal"] - host["MemAvailable"]) * 1024, host["MemTotal"] * 1024

    def _is_ending(self) -> bool:
        """Of v1 a process that ends shows "/" (kernel/cgroup/cgroup.c proc_cgroup_show): it was not moved."""
        fields = stat_fields(self.pid, self._root)
        if fields is None or len(fields) < 7 or not fields[6].isdecimal():
            return True  # gone
        return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)

    def _find(self, membership: str) -> None:
        self.close()
        memory = find(self.pid, membership, "memory", LIMITS, self._root, self._own)
        self._version, self._view, self._missing = memory.version, memory.view, memory.missing
        self._levels = self._open(memory.levels)
        self._pids = self._open(find(self.pid, membership, "pids", PIDS_LIMITS, self._root, self._own).levels)

    def _open(self, places: list[tuple[str, str]]) -> list[_Level]:
        levels = []
        for path, directory in places:
            try:
                levels.append(_Level(path, self._open_folder(directory)))
            except OSError:  # removed meanwhile
                continue
        return levels

    def _open_folder(self, directory: str) -> int:
        inside = directory.removeprefix(f"{os.fspath(self._root)}/{self.pid}/root")
        if inside == directory:
            return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with JobFiles(self.pid, self._root) as files:
            return files.open(inside, os.O_RDONLY | os.O_DIRECTORY)


def host_sample(root: Path = PROC) -> dict[str, Payload]:
    """The host's part of each sample, on its own."""
    return {
        "meminfo": as_text(lines_of(read_raw(f"{root}/meminfo"), MEMINFO_LINES)),
        "vmstat": as_text(lines_of(read_raw(f"{root}/vmstat"), (b"oom_kill ",))),
        "overcommit": as_text(read_raw(f"{root}/sys/vm/overcommit_memory")),
        "pressure": as_text(lines_of(read_raw(f"{root}/pressure/memory"), (b"full ",))),
    }


def _read_levels(levels: list[_Level], files: Mapping[str, str], limits: tuple[str, ...]) -> list[Payload]:
    """The leaf, and of its parents only those that may bind. One that was removed has nothing and is left
    out."""
    read: list[Payload] = []
    for number, level in enumerate(levels):
        if number and not any(
            _limit(as_text(_read_at(level.fd, files[key]))) is not None for key in limits if key in files
        ):
            continue
        texts = {key: raw for key, name in files.items() if (raw := _read_at(level.fd, name)) is not None}
        if "stat" in texts:
            texts["stat"] = lines_of(texts["stat"], STAT_LINES) or b""
        if texts:
            read.append({"path": level.path, **{key: as_text(raw) for key, raw in texts.items()}})
    return read


def _read_at(directory: int, name: str) -> bytes | None:
    try:
        # Not through a link: cgroups have none, but what a container has mounted over them may.
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except OSError:
        return None
    try:
        return os.read(fd, 65536)
    except OSError:  # ENODEV: the cgroup was removed; EOPNOTSUPP: no PSI
        return None
    finally:
        os.close(fd)


# --- understanding it


def parse(record: Record) -> Iterator[facts.Observation]:
    """CgroupMemory of the level with the least room left (nothing when no level has a counter), facts.CgroupPids,
    and facts.HostMemory."""
    payload = record.payload
    if not isinstance(payload, Mapping):
        yield facts.Unparsed(record.rank, SOURCE, "no cgroup payload", str(payload)[:200])
        return
    if payload.get("missing"):
        yield facts.SourceFailed(
            record.rank,
            SOURCE,
            str(payload["missing"])[:200],
            "run diag as the same user in the same container, or mount the host's /sys/fs/cgroup into it",
        )
    levels = payload.get("levels")
    if isinstance(levels, list) and levels:
        yield _cgroup_memory(record, payload, levels)
    if (pids := _cgroup_pids(record, payload.get("pids"))) is not None:
        yield pids
    yield _host_memory(record, payload)


def _host_memory(record: Record, payload: Mapping[str, Any]) -> facts.Observation:
    host = named_numbers(payload.get("meminfo"))
    if "MemTotal" not in host:
        return facts.Unparsed(record.rank, SOURCE, "meminfo", str(payload.get("meminfo"))[:200])
    kilobytes = {name: value * 1024 for name, value in host.items()}
    return facts.HostMemory(
        rank=record.rank,
        total_bytes=kilobytes["MemTotal"],
        # MemAvailable: Linux 3.14 and later
        available_bytes=kilobytes.get("MemAvailable", kilobytes.get("MemFree", 0)),
        oom_kills=named_numbers(payload.get("vmstat")).get("oom_kill"),
        overcommit=_number(payload.get("overcommit")),
        commit_limit_bytes=kilobytes.get("CommitLimit"),
        committed_bytes=kilobytes.get("Committed_AS"),
        swap_total_bytes=kilobytes.get("SwapTotal", 0),
        swap_free_bytes=kilobytes.get("SwapFree", 0),
        shmem_bytes=kilobytes.get("Shmem", 0),
        dirty_bytes=kilobytes.get("Dirty", 0),
        pressure_full_ratio=_pressure(payload.get("pressure")),
    )


def _cgroup_memory(record: Record, payload: Mapping[str, Any], levels: list[Any]) -> facts.Observation:
    read = [level for level in map(_level, levels) if level is not None]
    if not read:
        return facts.Unparsed(record.rank, SOURCE, "no level has a usage", str(levels)[:200])
    read = _with_hidden_limit(read)
    # The leaf is first, and wins when two have the same room.
    tightest = min(read, key=lambda level: NO_LIMIT if level.limit is None else level.limit - level.usage)
    # Kills are counted where the victim lived (v2: and in all its parents, which may have other children
    # too).
    leaf = levels[0] if isinstance(levels[0], Mapping) else {}
    events = named_numbers(leaf.get("events"))
    met = _number(leaf.get("met"))
    return facts.CgroupMemory(
        rank=record.rank,
        version=1 if payload.get("version") == 1 else 2,
        path=tightest.shown.path,
        usage_bytes=tightest.usage,
        limit_bytes=tightest.limit,
        peak_bytes=tightest.shown.peak_bytes,
        oom_kills=events.get("oom_kill", 0),
        cache_bytes=tightest.cache,
        shmem_bytes=tightest.shmem,
        high_events=events.get("high", 0),
        anon_bytes=tightest.anon,
        dirty_bytes=tightest.dirty,
        max_events=events.get("max", 0) if met is None else met,
        pressure_full_ratio=_pressure(leaf.get("pressure")),
        levels=tuple(level.shown for level in read),
        group_kills=events.get("oom_group_kill", 0),
    )


class _Read(NamedTuple):
    shown: facts.CgroupLevel
    usage: int
    limit: int | None
    # the tightest limit of this level and all above it, those that we cannot see too: v1 shows it
    hidden: int | None
    cache: int
    shmem: int
    anon: int
    dirty: int


def _level(level: object) -> _Read | None:
    if not isinstance(level, Mapping) or (usage := _number(level.get("usage"))) is None:
        return None
    stat, events, local = (named_numbers(level.get(name)) for name in ("stat", "events", "local"))
    # v1 has both: of the cgroup alone, and with those below it
    total = "total_" if "total_inactive_file" in stat else ""
    limit = _limit(level.get("limit"))
    hidden = stat.get("hierarchical_memory_limit", NO_LIMIT)
    shown = facts.CgroupLevel(
        path=str(level.get("path", ""))[:1000],
        usage_bytes=usage,
        limit_bytes=limit,
        peak_bytes=_number(level.get("peak")),
        high_bytes=_limit(level.get("high")),
        oom_kills=events.get("oom_kill"),
        max_events=(local or events).get("max", _number(level.get("met"))),
    )

    def bytes_of(*names: str) -> int:
        return sum(stat.get(name, 0) for name in names)

    return _Read(
        shown,
        usage,
        limit,
        hidden if hidden < NO_LIMIT else None,
        cache=bytes_of(f"{total}inactive_file", f"{total}active_file"),
        shmem=bytes_of(f"{total}shmem"),
        anon=bytes_of("total_rss" if total else "anon"),
        dirty=bytes_of(f"{total or 'file_'}dirty", f"{total or 'file_'}writeback"),
    )


def _with_hidden_limit(read: list[_Read]) -> list[_Read]:
    """A parent's limit that we cannot see, where it is lower than those that we see: put on the topmost that
    we see."""
    seen = min((level.limit for level in read if level.limit is not None), default=NO_LIMIT)
    hidden = min((level.hidden for level in read if level.hidden is not None), default=NO_LIMIT)
    return [*read[:-1], read[-1]._replace(limit=hidden)] if hidden < seen else read


def _cgroup_pids(record: Record, levels: object) -> facts.CgroupPids | None:
    """The level with the least room; refusals of all levels, each of which counts its own."""
    read = [level for level in levels if isinstance(level, Mapping)] if isinstance(levels, list) else []
    known = [(level, now) for level in read if (now := _number(level.get("current"))) is not None]
    if not known:
        return None
    rooms = [
        NO_LIMIT if (limit := _limit(level.get("limit"))) is None else limit - now for level, now in known
    ]
    tightest, current = known[rooms.index(min(rooms))]
    # Until Linux 6.10 (and on v1 still) `max` counts forks that failed in this cgroup, later those that its
    # own limit forbade; there pids.events counts for the parents too, pids.events.local does not
    # (kernel/cgroup/pids.c).
    refused = sum(
        (named_numbers(level.get("local")) or named_numbers(level.get("events"))).get("max", 0)
        for level, _ in known
    )
    return facts.CgroupPids(
        record.rank, str(tightest.get("path", ""))[:1000], current, _limit(tightest.get("limit")), refused
    )


# memory.pressure and /proc/pressure/memory, Linux 6.1, a cgroup above its memory.high:
#   some avg10=35.29 avg60=7.04 avg300=1.49 total=5437379
#   full avg10=35.17 avg60=7.01 avg300=1.49 total=4819855
_PRESSURE = re.compile(r"^full avg10=(\d{1,3}(?:\.\d{1,4})?)\b", re.ASCII | re.MULTILINE)


def _pressure(text: object) -> float | None:
    match = _PRESSURE.search(text) if isinstance(text, str) else None
    return float(match[1]) / 100 if match else None


def _limit(text: object) -> int | None:
    number = _number(text)
    return number if number is not None and number < NO_LIMIT else None


def _number(text: object) -> int | None:
    match = re.match(r"\d{1,20}\b", text, re.ASCII) if isinstance(text, str) else None
    return int(match[0]) if match else None


def own_facts(proc: Path = PROC) -> list[facts.Observation]:
    """Of this process, now."""
    reader = CgroupReader(os.getpid(), proc)
    try:
        return list(parse(Record(SOURCE, reader.sample())))
    finally:
        reader.close()
