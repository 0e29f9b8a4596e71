"""Who holds the other end of a pipe, FIFO or socket, and who holds a lock on a file: by the descriptors of all
processes that may be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from diag.sources.host.process_tree import read_raw, read_text
from diag.sources.waits.proc_files import command_of, fdinfo, mounts, open_mode, parent_and_start

_HOLDERS = 16  # that are kept
_ASKED = 512  # of which the mode is read: 8 us each
_RDONLY, _WRONLY = 0, 1


class Ends:
    """Every descriptor of every process is listed once, when the first wait asks: 8 ms for 100 processes."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._files: dict[int, dict[str, tuple[str, int]]] = {}
        self._unread: list[float] = []  # when those began whose descriptors may not be read

    def pipe(self, pid: int, link: str, mode: int) -> dict[str, Any]:
        """Of a pipe that `pid` has open in this mode: who could end its wait. `beside`: others that have it open to write, as
        `pid` has."""
        ends = self._all.get(link, [])
        facts = self._facts(pid, mode, ends)
        if mode == _WRONLY:
            other = {holder for holder, _ in ends} - {pid, *(row[0] for row in facts["held"])}
            facts["beside"] = sorted(other)[:_ASKED]
        return facts

    def fifo(self, pid: int, link: str, mode: int, file: tuple[str, int]) -> dict[str, Any]:
        """Of a FIFO, by its name at the end and its device and inode: another process may see it under another path."""
        return self._facts(pid, mode, list(self._with_file(link, file)))

    def socket(self, inode: int) -> list[list[Any]]:
        return [self._row(pid, fd, 2) for pid, fd in self._all.get(f"socket:[{inode}]", [])[:_HOLDERS]]

    def pair(self, pid: int, inode: int) -> dict[str, Any]:
        """Of a pair of sockets, by the inode of the other one."""
        return self._facts(pid, 2, self._all.get(f"socket:[{inode}]", []))

    def _facts(self, pid: int, mode: int, ends: list[tuple[int, int]]) -> dict[str, Any]:
        """`held`: those of the other mode, other processes first. `held_left_out`: how many were not read, or not kept."""
        rows = []
        for holder, fd in ends[:_ASKED]:
            theirs = open_mode(fdinfo(self._proc, holder, fd))
            if theirs != mode or mode not in (_RDONLY, _WRONLY):
                rows.append((holder == pid, holder, fd, theirs))
        return {
            "held": [self._row(holder, fd, theirs) for _, holder, fd, theirs in sorted(rows)[:_HOLDERS]],
            "held_left_out": max(0, len(ends) - _ASKED) + max(0, len(rows) - _HOLDERS),
            "unread_processes": self._unread_near(pid),
        }

    def _row(self, pid: int, fd: int, mode: int) -> list[Any]:
        return [pid, fd, mode, command_of(self._proc, pid)]

    @cached_property
    def _all(self) -> dict[str, list[tuple[int, int]]]:
        """Link to (pid, fd)."""
        ends: dict[str, list[tuple[int, int]]] = {}
        for name in os.listdir(self._proc):
            if not name.isdigit():
                continue
            try:
                for fd in os.listdir(f"{self._proc}/{name}/fd"):
                    link = os.readlink(f"{self._proc}/{name}/fd/{fd}")
                    ends.setdefault(link, []).append((int(name), int(fd)))
            except PermissionError:
                self._unread.append(parent_and_start(self._proc, int(name))[1])
            except OSError:
                continue  # the process, or this descriptor of it, is gone
        return ends

    def _with_file(self, link: str, file: tuple[str, int]) -> Iterator[tuple[int, int]]:
        device, inode = file
        name = _base(link)
        for other, ends in self._all.items():
            if not other.startswith("/") or _base(other) != name:
                continue
            for pid, fd in ends[:_ASKED]:
                info = fdinfo(self._proc, pid, fd)
                if "ino" not in info or not device:  # Linux before 5.14
                    if other == link:
                        yield pid, fd
                elif int(info["ino"]) == inode and device == self._device(pid, info.get("mnt_id", "")):
                    yield pid, fd

    def _device(self, pid: int, mount: str) -> str:
        return next((row.device for row in mounts(self._proc, pid) if row.number == mount), "")

    def _unread_near(self, pid: int) -> int:
        """How many may not be read and may have been given a pipe of this process: by it, or by one that it has the
        pipe from. That is who began after the first of its ancestors that may not be read itself."""
        _ = self._all
        if self._hides_processes:
            return 1
        if not self._unread:
            return 0
        oldest = parent_and_start(self._proc, pid)[1]
        while pid > 1:
            pid, _start = parent_and_start(self._proc, pid)
            if pid <= 1:
                break
            oldest = min(oldest, parent_and_start(self._proc, pid)[1])
            try:
                os.listdir(f"{self._proc}/{pid}/fd")
            except OSError:
                break
        return len([start for start in self._unread if start >= oldest])

    @cached_property
    def _hides_processes(self) -> bool:
        """By /proc's option hidepid: there may be processes that are not even listed."""
        options = [row.options for row in mounts(self._proc, "self") if row.type == "proc"]
        return os.geteuid() != 0 and any("hidepid=" in one and "hidepid=0" not in one for one in options)

    # -- locks on files ---------------------------------------------------------------------------------------

    def lock_holders(self, pid: int, link: str, file: tuple[str, int]) -> list[list[Any]]:
        """Of the lock that `pid` waits for: the kernel numbers each lock, and lists under its number who waits for it.

        The process that /proc/locks names may be gone (flock after fork) or be none (-1, an open file description
        lock): so whoever has a descriptor with that very lock holds it.
        """
        lines = self._locks()
        where = _in_locks(file)
        waiting = [
            row
            for row in lines
            if len(row) > 8 and row[1] == "->" and row[6].endswith(where) and row[5] in (str(pid), "-1")
        ]
        own = [row for row in waiting if row[5] == str(pid)]
        numbers = {row[0] for row in own or waiting}
        rows: list[list[Any]] = []
        for row in lines:
            if len(row) > 7 and row[1] != "->" and row[0] in numbers:
                # and who took it, and may have left it to a fork
                rows += [[*one, int(row[4])] for one in self._with_lock(link, file, row)]
        return sorted(rows, key=lambda row: row[0] == pid)[:_HOLDERS]

    def locked_by_others(self, pid: int) -> dict[str, Any]:
        """A file that `pid` has open and that another process holds a lock on, one to write before one to read: what
        it may be waiting for in a call that sleeps and tries again, as databases do."""
        held = [row for row in self._locks() if len(row) > 7 and row[1] != "->" and row[4] != str(pid)]
        for row in sorted(held, key=lambda row: row[3] != "WRITE"):
            for link, file in self._open_files(pid).items():
                if not (where := _in_locks(file)) or row[5] != where:
                    continue
                if rows := [one for one in self._with_lock(link, file, row) if one[0] != pid]:
                    lock = " ".join((row[1], row[3], *row[6:8]))
                    return {"link": link, "held": rows[:_HOLDERS], "lock": lock}
        return {}

    def locked_beside(self, pid: int, link: str) -> list[list[Any]]:
        """Other files of the folder that other processes hold locks on: [path, pid]."""
        folder = link.rpartition("/")[0] + "/"
        ends = [
            (other, one, fd)
            for other, ends in self._all.items()
            if other.startswith(folder) and other != link and "/" not in other[len(folder) :]
            for one, fd in ends
        ]
        found = {
            (other, one): None
            for other, one, fd in ends[:_ASKED]
            if one != pid and fdinfo(self._proc, one, fd).get("lock")
        }
        return [[other, one] for other, one in sorted(found)[:_HOLDERS]]

    def _locks(self) -> list[list[str]]:
        # 1: FLOCK  ADVISORY  WRITE 1034 fd:00:131 0 EOF
        # 1: -> FLOCK  ADVISORY  WRITE 1035 fd:00:131 0 EOF          (Linux 6.18)
        return [line.split() for line in read_text(f"{self._proc}/locks").splitlines()]

    def _open_files(self, pid: int) -> dict[str, tuple[str, int]]:
        if pid not in self._files:
            found = self._files[pid] = {}
            ends = [(link, fd) for link, ends in self._all.items() for one, fd in ends if one == pid]
            for link, fd in [one for one in ends if one[0].startswith("/")][:_ASKED]:
                info = fdinfo(self._proc, pid, fd)
                found[link] = (self._device(pid, info.get("mnt_id", "")), int(info.get("ino", 0)))
        return self._files[pid]

    def _with_lock(self, link: str, file: tuple[str, int], row: list[str]) -> list[list[Any]]:
        """Whoever has a descriptor with the lock of this row, else the process that it names, if it lives."""
        found = [
            self._row(pid, fd, 0)
            for pid, fd in self._with_file(link, file)
            if any(
                line.split()[1:] == row[1:]
                for line in fdinfo(self._proc, pid, fd).get("lock", "").split("\n")
            )
        ]
        named = int(row[4])
        alive = not found and named > 0 and read_raw(f"{self._proc}/{named}/stat")
        return [self._row(named, -1, 0)] if alive else found


def _in_locks(file: tuple[str, int]) -> str:
    """
    >>> _in_locks(("253:0", 131)), _in_locks(("", 0))
    ('fd:00:131', '')
    """
    device, inode = file
    if not device or not inode:
        return ""
    major, _, minor = device.partition(":")
    return f"{int(major):02x}:{int(minor):02x}:{inode}"


def _base(link: str) -> str:
    return link.removesuffix(" (deleted)").rpartition("/")[2]
