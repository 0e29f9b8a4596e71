"""What a person reads of /proc by hand in a hang (status, limits, maps, `ls -l fd`, the system call of each thread, `ss`), of
one process at one moment. For a dump: nothing is judged by it.

Nothing here opens a path of the job or stops it: links of descriptors and lines of /proc alone. The memory map and the
command line wait for the process's own changes of its memory, so that they are read apart from all else.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diag.launch.launchers.secrets import without_secrets
from diag.sources.host.process_tree import PROC, read_text, same_namespace, split_stat
from diag.sources.waits import sock_diag
from diag.sources.waits.decode import Call, format_call, parse_call
from diag.sources.waits.proc_files import command_of, fdinfo, open_mode
from diag.text.units import format_seconds

_FILES = 256  # that are listed; of the others their kinds are counted
_COUNTED = 4096
_THREADS = 512
_LIBRARIES = 100
_COMMAND = 2000  # characters
_MAP_BYTES = 8 << 20  # of a torch rank: 0.5 MB
_MODES = ("read", "write", "read and write")
# 7f2b6f8c1000-7f2b6f9bd000 r-xp 00026000 fe:00 1450   /usr/lib/x86_64-linux-gnu/libc.so.6        (Linux 6.18)
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ (\S+) \d+ *(.*)")
_LIBRARY = re.compile(r"\.so(?:\.[\d.]+)?(?: \(deleted\))?$")
# Whose they are, as people ask: the first that fits a path.
_OF = (
    ("NCCL", re.compile(r"libnccl|librccl|libhccl")),
    ("CUDA", re.compile(r"/nvidia/|/cuda|libcuda|libcudnn|libcublas|libnv|libascend|/ascend", re.IGNORECASE)),
    ("torch", re.compile(r"/torch/|libtorch|libc10")),
    ("Python", re.compile(r"/libpython3|/python3?\.?\d*$")),
    ("RDMA", re.compile(r"libibverbs|libmlx|librdmacm|libefa")),
)


class Inventory:
    """Of several processes. Each method returns why there is nothing, empty where there is; what one thread reads another may
    take at any time (`rows`)."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = os.fspath(proc)
        self._rows: dict[int, dict[str, Any]] = {}

    def rows(self, late: Iterable[str] = ()) -> list[dict[str, Any]]:
        """As a dump has them. `late`: parts that did not come back in time."""
        missing = [f"{part}: not finished in time" for part in late]
        return [
            {
                **dict(row),
                "not_checked": [
                    *row["not_checked"],
                    *(text for text in missing if text.split(":")[0] not in row),
                ],
            }
            for row in [*self._rows.values()]
        ]

    def read_kernel(self, pid: int) -> str:
        """Status, limits, threads, descriptors and sockets."""
        row = self._row(pid)
        base = f"{self._proc}/{pid}"
        try:
            row["status"] = Path(base, "status").read_text(encoding="utf-8", errors="replace")
            links = self._links(base)
        except (ProcessLookupError, FileNotFoundError):
            self._rows.pop(pid, None)
            return "the process is gone"
        except PermissionError as error:
            links = {}
            row["not_checked"].append(f"open files: {error.strerror}")
        else:
            row["open_files"] = self._files(pid, links, row)
        row["limits"] = read_text(f"{base}/limits")
        row["threads"] = self._threads(base, links, row)
        return ""

    def read_map(self, pid: int) -> str:
        """The command line, and the memory map by kind and library."""
        row = self._row(pid)
        row["command"] = command_of(self._proc, pid, _COMMAND)
        try:
            with open(f"{self._proc}/{pid}/maps", "rb") as file:
                text = file.read(_MAP_BYTES + 1)
        except OSError as error:
            reason = f"memory map: {error.strerror}"
            row["not_checked"].append(reason)
            return reason
        row["memory_map"] = {
            **summed(text[:_MAP_BYTES].decode(errors="replace")),
            "whole": len(text) <= _MAP_BYTES,
        }
        return ""

    def _row(self, pid: int) -> dict[str, Any]:
        return self._rows.setdefault(pid, {"pid": pid, "not_checked": []})

    def _links(self, base: str) -> dict[int, str]:
        """Raises OSError where they may not be listed."""
        links: dict[int, str] = {}
        for name in sorted(map(int, os.listdir(f"{base}/fd"))):
            try:
                links[name] = os.readlink(f"{base}/fd/{name}") if len(links) < _COUNTED else "?"
            except OSError:
                continue  # closed meanwhile
        return links

    def _files(self, pid: int, links: dict[int, str], row: dict[str, Any]) -> dict[str, Any]:
        shown = dict([*links.items()][:_FILES])
        sockets = self._sockets(pid, row) if any(map(_is_socket, shown.values())) else {}
        listed = []
        for fd, link in shown.items():
            item: dict[str, Any] = {"fd": fd, "to": without_secrets(link)}
            if link.startswith("/"):
                info = fdinfo(self._proc, pid, fd)
                item["mode"] = _MODES[min(open_mode(info), 2)]
                item["at"] = int(info.get("pos", "0"))
            elif _is_socket(link) and (about := sockets.get(int(link[8:-1]))):
                item["socket"] = about
            listed.append(item)
        rest = Counter(kind_of(link) for link in [*links.values()][_FILES:])
        return {"count": len(links), "listed": listed, "more": dict(rest)}

    def _sockets(self, pid: int, row: dict[str, Any]) -> dict[int, str]:
        if not (same := same_namespace("net", pid, self._proc)):
            reason = "it may not be seen" if same is None else "the process is in another one"
            row["not_checked"].append(f"ends of sockets: their network namespace: {reason}")
            return {}
        found: dict[int, str] = {}
        for family, read in (("TCP", _tcp), ("UNIX", _unix)):
            try:
                found.update(read())
            except OSError as error:
                row["not_checked"].append(f"ends of {family} sockets: {error.strerror}")
        return found

    def _threads(self, base: str, links: Mapping[int, str], row: dict[str, Any]) -> dict[str, Any]:
        try:
            tids = sorted(map(int, os.listdir(f"{base}/task")))
        except OSError:
            return {"count": 0, "listed": []}
        listed = [one for tid in tids[:_THREADS] if (one := self._thread(f"{base}/task/{tid}", tid, links))]
        if listed and not any("call" in one for one in listed):
            try:
                Path(base, "syscall").read_bytes()
            except OSError as error:
                row["not_checked"].append(f"system calls: {error.strerror}")
        return {"count": len(tids), "listed": listed}

    def _thread(self, base: str, tid: int, links: Mapping[int, str]) -> dict[str, Any] | None:
        try:
            _, name, fields = split_stat(read_text(f"{base}/stat"))
        except ValueError:
            return None  # it has ended
        one: dict[str, Any] = {"tid": tid, "name": name, "state": fields[0]}
        if (wchan := read_text(f"{base}/wchan").strip()) not in ("", "0"):
            one["wchan"] = wchan
        call: Call | None = parse_call(read_text(f"{base}/syscall"))
        if call is not None and call.name:
            one["call"] = without_secrets(format_call(call, links))
        return one


def kind_of(link: str) -> str:
    """
    >>> kind_of("pipe:[71]"), kind_of("anon_inode:[eventpoll]"), kind_of("/dev/nvidia0"), kind_of("/data/a")
    ('pipe', 'eventpoll', 'device', 'file')
    """
    if link.startswith("anon_inode:"):
        return link[11:].strip("[]")
    if link.startswith("/"):
        return "device" if link.startswith("/dev/") and not link.startswith("/dev/shm/") else "file"
    return link.partition(":")[0]


def _is_socket(link: str) -> bool:
    return link.startswith("socket:[") and link[8:-1].isdigit()


def _tcp() -> dict[int, str]:
    return {one.inode: _of_tcp(one) for one in sock_diag.tcp_sockets() if one.inode}


def _of_tcp(one: sock_diag.TcpSocket) -> str:
    if one.state == "LISTEN":  # whose queues are of connections
        return f"TCP LISTEN {one.local}, {one.unread} of {one.unsent} connections wait to be accepted"
    text = f"TCP {one.state} {one.local} -> {one.peer}, unread {one.unread}, unsent {one.unsent} bytes"
    if one.retransmits:
        text += f", {one.retransmits} retransmits"
    if one.silent_ms is not None and one.state == "ESTABLISHED":
        text += f", silent {format_seconds(one.silent_ms / 1000)}"
    return text


def _unix() -> dict[int, str]:
    return {
        one.inode: (f"UNIX -> socket:[{one.peer}]" if one.peer else "UNIX, no peer")
        + f", unread {one.unread}"
        for one in sock_diag.unix_sockets()
    }


def summed(maps: str) -> dict[str, Any]:
    """Bytes of address space by kind (the sum over /proc/PID/maps is no resident memory), and the libraries, those that
    people ask for first and then the largest.

    >>> summed("7f00-7f10 r-xp 0 fe:00 9 /opt/lib/libnccl.so.2\\n")["libraries"]
    [{'path': '/opt/lib/libnccl.so.2', 'bytes': 16, 'of': 'NCCL'}]
    """
    kinds: Counter[str] = Counter()
    libraries: Counter[str] = Counter()
    for line in maps.splitlines():
        found = _MAPPING.match(line)
        if found is None:
            continue
        size, path = int(found[2], 16) - int(found[1], 16), found[5]
        kinds[_kind_of_mapping(path, found[3])] += size
        if _LIBRARY.search(path) or _of(path) == "Python":
            libraries[path] += size
    order = sorted(libraries, key=lambda path: (not _of(path), -libraries[path], path))
    return {
        "bytes": dict(kinds.most_common()),
        "libraries": [
            {"path": without_secrets(path), "bytes": libraries[path], "of": _of(path)}
            for path in order[:_LIBRARIES]
        ],
        "libraries_left_out": max(0, len(order) - _LIBRARIES),
    }


def _kind_of_mapping(path: str, rights: str) -> str:
    if path.startswith(("/dev/shm/", "/SYSV", "/memfd:", "/dev/zero")):
        return "shared memory"
    if path.startswith("/dev/"):
        return "devices"
    if _LIBRARY.search(path):
        return "libraries"
    if path.startswith("/"):
        return "other files"
    if path in ("[heap]", "[stack]"):
        return path.strip("[]")
    if rights[:3] == "---":
        return "reserved"
    return "anonymous" if not path or path.startswith("[anon") else "kernel's own"


def _of(path: str) -> str:
    return next((name for name, pattern in _OF if pattern.search(path)), "")
