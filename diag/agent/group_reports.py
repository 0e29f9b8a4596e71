"""What processes report of their own process group: the hook's files in the run directory, as the finder reads them.

The hook (`diag/launch/inject`) writes hook.<pid>.json when `init_process_group` has returned. The files are the
job's: nothing in them is believed of a process that they cannot be about.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from diag.launch.launchers import Identity
from diag.sources.host.process_tree import PROC, Process, ancestors, read_process
from diag.sources.payload import UNFIT, integer, mapping, sequence, word
from diag.state.stack_digest import MOST_RANKS

BY_GROUP = "group"  # the launcher of ranks that no launcher's variables number
_MOST_BYTES = 64 * 1024
_MOST_FILES = 4096  # of the largest nodes some hundred


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One process's report: rank `rank` of `world` in its default process group, the `number`-th that it made."""

    pid: int
    ticks: int  # when the process was started, as in /proc/PID/stat
    uid: int  # who wrote the file
    rank: int
    world: int
    store: str = ""  # where the group meets; "" where torch does not say
    number: int = 1
    thread: tuple[
        int, ...
    ] = ()  # that made the group, by the kernel's number and Python's; (): the main thread
    variables: Mapping[str, str] = field(
        default_factory=dict, compare=False, hash=False
    )  # set inside, some of them

    @property
    def group(self) -> tuple[str, int]:
        """What all its ranks have in common."""
        return self.store, self.world

    def is_with(self, other: GroupReport) -> bool:
        """Another rank of the same group, as far as it is known where that meets."""
        return bool(self.store) and self.group == other.group and self.rank != other.rank


class GroupReports:
    """Call `read` at each scan: a file is opened once, and again when it was replaced."""

    def __init__(self, run_dir: Path | None, proc: Path = PROC) -> None:
        self._run_dir, self._proc = run_dir, proc
        self._known: dict[str, tuple[tuple[int, int], GroupReport | None]] = {}

    def read(self) -> dict[int, GroupReport]:
        """By pid, of the processes that live."""
        names = [name for name in self._names() if name.startswith("hook.") and name.endswith(".json")]
        # A rank takes its file away at its exit, which may take long or hang: it is that rank until it is gone.
        known = {
            name: kept
            for name, kept in self._known.items()
            if name in names or (kept[1] is not None and self._lives(kept[1]))
        }
        for name in names[:_MOST_FILES]:
            known[name] = self._read(name, known.get(name))
        self._known = known
        reports = (one for _, one in known.values() if one is not None)
        return {one.pid: one for one in reports if self._lives(one)}

    def _names(self) -> list[str]:
        try:
            return [] if self._run_dir is None else os.listdir(self._run_dir)
        except OSError:
            return []

    def _read(
        self, name: str, known: tuple[tuple[int, int], GroupReport | None] | None
    ) -> tuple[tuple[int, int], GroupReport | None]:
        assert self._run_dir is not None
        path = self._run_dir / name
        try:
            seen = path.lstat()
            mark = (seen.st_ino, seen.st_mtime_ns)
            if known is not None and known[0] == mark:
                return known
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return (0, 0), None
        try:
            file = os.fstat(fd)
            if not stat.S_ISREG(file.st_mode):
                return mark, None
            return mark, _parse(json.loads(os.read(fd, _MOST_BYTES)), file.st_uid)
        except (OSError, *UNFIT):
            return mark, None
        finally:
            os.close(fd)

    def _lives(self, one: GroupReport) -> bool:
        process = read_process(one.pid, self._proc)
        return process is not None and process.ticks == one.ticks and process.state not in "ZX"


def _parse(raw: object, uid: int) -> GroupReport | None:
    """None for a process without a process group. Raises one of UNFIT for what the hook did not write."""
    data = mapping(raw)
    group = mapping(data.get("group"))
    rank, world = integer(group.get("rank", -1)), integer(group.get("world"))
    if not group or not 0 <= rank < world <= MOST_RANKS:
        return None
    return GroupReport(
        integer(data["pid"]),
        integer(group["ticks"]),
        uid,
        rank,
        world,
        word(group.get("store")),
        max(1, integer(group.get("number"))),
        tuple(integer(one) for one in sequence(group.get("thread"))[:2]),
        {word(name): word(value, 1000) for name, value in mapping(group.get("env")).items()},
    )


# --- which of them are the job's ranks


def members(
    reports: Mapping[int, GroupReport], identities: Mapping[int, Identity], processes: Mapping[int, Process]
) -> dict[int, GroupReport]:
    """Those of the job's own group: one, where there are several. `identities`: who is a rank by its environment.

    Not of the job's: another group made below a rank (vLLM's workers below a trainer), whether the rank is known by its
    group or by a launcher that started as many or more. Of groups side by side the one with the most processes
    here is the job's. A rank may have started the others of its own group (Lightning's rank 0 does).
    """
    own = {
        pid: one for pid, one in reports.items() if not _is_inner(pid, one, reports, identities, processes)
    }
    sizes = Counter(one.group for one in own.values())
    job = max(sizes, key=lambda group: (sizes[group], group[1], group[0]), default=None)
    launched = max((who.world_size for pid, who in identities.items() if pid not in own), default=0)
    return {
        pid: one
        for pid, one in own.items()
        if one.group == job and (pid in identities or one.world >= launched)
    }


def _is_inner(
    pid: int,
    one: GroupReport,
    reports: Mapping[int, GroupReport],
    identities: Mapping[int, Identity],
    processes: Mapping[int, Process],
) -> bool:
    own = identities.get(pid)
    if own is not None and one.world < own.world_size:
        return True  # a part of what the launcher has started
    return any(
        not one.is_with(reports[above])
        if above in reports
        else (above in identities and one.world <= identities[above].world_size)
        for above in ancestors(pid, processes)
    )


def named(
    identities: Mapping[int, Identity], group: Mapping[int, GroupReport], processes: Mapping[int, Process]
) -> dict[int, Identity]:
    """Who is which rank, by its group's report where there is one; without whom that shows to be a launcher.

    What started members of the group and is none itself (mp.spawn's parent, a launcher of launchers) is no rank,
    and neither is what another launcher numbered beside a larger group.
    """
    world = max((one.world for one in group.values()), default=0)
    launchers = {above for pid in group if pid not in identities or group[pid].world > identities[pid].world_size
                 for above in ancestors(pid, processes)}  # fmt: skip
    found = {
        pid: who
        for pid, who in identities.items()
        if pid not in launchers and pid not in group and (not group or who.world_size >= world)
    }
    return found | {pid: _identity(one, identities.get(pid)) for pid, one in group.items()}


def _identity(one: GroupReport, launched: Identity | None) -> Identity:
    if launched is not None and launched.world_size == one.world:
        return replace(launched, rank=one.rank)

    def number(*names: str) -> int | None:
        values = (one.variables.get(name, "") for name in names)
        return next((int(value) for value in values if value.isdecimal() and len(value) < 8), None)

    local = number("LOCAL_RANK", "RAY_LOCAL_RANK")
    return Identity(
        one.rank,
        one.rank if local is None else local,
        one.world,
        BY_GROUP,
        0,
        number("LOCAL_WORLD_SIZE", "RAY_LOCAL_WORLD_SIZE") or 0,
    )
