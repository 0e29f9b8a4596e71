"""One rank's process as /proc shows it: state, CPU, I/O, memory, threads, open files, limits and all its
children.

`ProcessReader` reads, `parse` understands. What the numbers mean (stuck, stopped, near a limit) is the
detectors'.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diag.model import Payload, Record
from diag.model.observations import LimitsSeen, Observation, ProcessSample, ProcessTree, Unparsed
from diag.sources.host import core_neighbours
from diag.sources.host.process_tree import (
    FULL_SCAN_EVERY,
    PROC,
    Tree,
    as_text,
    lines_of,
    named_numbers,
    read_raw,
    split_stat,
)
from diag.sources.network.rdma_access import device_nodes, ipc_lock, lock_rights
from diag.sources.payload import UNFIT, whole

SOURCE = "proc"

# Of the ~60 lines of /proc/PID/status, those that say what stat does not.
STATUS_LINES = (
    b"NSpid:", b"VmLck:", b"VmPin:", b"VmHWM:", b"RssAnon:", b"RssShmem:", b"VmSwap:", b"voluntary_ctxt_switches:",
    b"nonvoluntary_ctxt_switches:", b"Cpus_allowed_list:",
)  # fmt: skip


_KILOBYTES: dict[str, Any] = {  # of them those in kB, and what they are in a ProcessTree
    "VmHWM": "peak_rss_bytes", "VmPin": "pinned_bytes", "VmLck": "locked_bytes",
    "RssAnon": "anon_bytes", "RssShmem": "shmem_bytes", "VmSwap": "swap_bytes",
}  # fmt: skip


class ProcessGone(Exception):
    """The process ended, or its pid belongs to another one by now."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} is gone")
        self.pid = pid


class ProcessReader:
    """Reads one rank's process again and again.

    Files of the rank itself stay open: cheaper, and they can never show another process under a reused pid.
    Not for two threads at once.
    """

    def __init__(self, pid: int, root: Path = PROC, start_ticks: int = 0) -> None:
        """Raises ProcessGone when there is no such process, or `start_ticks` is given and not its own."""
        self.pid = pid
        self._root = os.fspath(root)
        self._base = f"{self._root}/{pid}"
        self._files: dict[str, int] = {}
        self._tree = Tree(pid, root)
        self._samples = 0
        self._open_files: int | None = None
        self._starvation = core_neighbours.Starvation()
        self.start_ticks = start_ticks
        self.start_ticks = self._start_ticks(self._read_stat())

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    def sample(self, detail: bool = False, other_ranks: frozenset[int] = frozenset()) -> Payload:
        """The rank and its children now; a rank that it started is none. `detail` adds I/O counters and wchan of each
        child (twice the cost).

        Raises ProcessGone.
        """
        stat = self._read_stat()
        self._start_ticks(stat)
        status = self._read("status")
        if self._samples % FULL_SCAN_EVERY == 0 or detail:
            self._open_files = self._count_open_files()
        self._samples += 1
        schedstat = self._read("schedstat")
        self._tree.left_out = other_ranks
        children = self._tree.scan(full=detail)
        return {
            "pid": self.pid,
            "hz": os.sysconf("SC_CLK_TCK"),
            "page": os.sysconf("SC_PAGE_SIZE"),
            "stat": _trim_stat(stat),
            "io": as_text(self._read("io")),
            "status": as_text(lines_of(status, STATUS_LINES)),
            "wchan": as_text(self._read("wchan")),
            "main_stat": _trim_stat(self._read(f"task/{self.pid}/stat")),
            "schedstat": as_text(schedstat),
            "fds": self._open_files,
            "children": [child for pid in children if (child := self._child(pid, detail))],
            **self._beside(schedstat, status, children),
            **self._tracer(status),
        }

    def _tracer(self, status: bytes | None) -> dict[str, Any]:
        """Who may stop it at any time by ptrace(2): a debugger, or a reader of native frames."""
        found = _TRACER.search((status or b"").decode(errors="replace"))
        if found is None:
            return {}
        comm = as_text(read_raw(f"{self._root}/{found[1]}/comm")) or ""
        return {"tracer": {"pid": int(found[1]), "comm": comm.strip()}}

    def _beside(
        self, schedstat: bytes | None, status: bytes | None, children: tuple[int, ...]
    ) -> dict[str, Any]:
        """Who runs on the rank's cores, where its main thread was ready and without one for much of the time."""
        cores = _CORES.search((status or b"").decode(errors="replace"))
        if schedstat is None or cores is None or not self._starvation.look(schedstat, time.monotonic()):
            return {}
        return {"beside": core_neighbours.running(Path(self._root), cores[1], (self.pid, *children))}

    def limits(self) -> Payload:
        """What seldom changes: limits, the right to lock memory beyond them, whether RDMA devices are seen
        (None: may not look).

        Raises ProcessGone.
        """
        self._start_ticks(self._read_stat())
        limits = read_raw(f"{self._base}/limits")
        nodes = device_nodes(self.pid, self._root)
        rdma = None if nodes is None else bool(nodes)
        return {"pid": self.pid, "limits": as_text(limits), "rdma": rdma, **lock_rights(self._base)}

    def _child(self, pid: int, detail: bool) -> Payload:
        base = f"{self._root}/{pid}"
        stat = _trim_stat(read_raw(f"{base}/stat"))
        if stat is None:
            return None
        if not detail:
            return {"stat": stat}
        return {
            "stat": stat,
            "io": as_text(read_raw(f"{base}/io")),
            "wchan": as_text(read_raw(f"{base}/wchan")),
        }

    def _read(self, name: str) -> bytes | None:
        """A file of the rank by its kept fd; None when denied or gone."""
        try:
            fd = self._files.get(name)
            if fd is None:
                fd = self._files[name] = os.open(f"{self._base}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(fd, 16384, 0)
        except OSError:  # EACCES, ENOENT, ESRCH
            return None

    def _read_stat(self) -> bytes:
        stat = self._read("stat")
        if not stat:
            raise ProcessGone(self.pid)
        return stat

    def _start_ticks(self, stat: bytes) -> int:
        try:
            ticks = int(split_stat(stat.decode(errors="replace"))[2][19])
        except (ValueError, IndexError):
            return self.start_ticks  # unreadable is no proof; parse says so
        if self.start_ticks and ticks != self.start_ticks:
            raise ProcessGone(self.pid)
        return ticks

    def _count_open_files(self) -> int | None:
        try:
            # Linux 6.2 and later give the number as the size ("proc: report open files as size in stat() for
            # /proc/pid/fd"); before, each entry must be listed, so this is done at some samples only.
            return Path(self._base, "fd").stat().st_size or len(os.listdir(f"{self._base}/fd"))
        except OSError:
            return None


def _trim_stat(raw: bytes | None) -> str | None:
    """Up to field 24 (rss); behind it are addresses. A zombie's is kept whole: its field 52 is the exit code."""
    if not raw:
        return None
    fields = raw[raw.rfind(b")") + 1 :].split(None, 22)
    if len(fields) == 23 and fields[0] not in (b"Z", b"X"):
        raw = raw[: -len(fields[22]) - 1]
    return raw.decode(errors="replace")


# --- understanding it


def parse(record: Record) -> Iterator[Observation]:
    """A sample gives a ProcessTree, limits give LimitsSeen."""
    payload = record.payload
    if not isinstance(payload, Mapping):
        yield _unparsed(record, "no process payload", payload)
    elif "limits" in payload:
        yield from _parse_limits(record, payload)
    else:
        yield from _parse_tree(record, payload)


def _parse_tree(record: Record, payload: Mapping[str, Any]) -> Iterator[Observation]:
    hz = whole(payload.get("hz")) or 100  # USER_HZ is 100 on every Linux that runs torch
    page = whole(payload.get("page")) or 4096
    try:
        main = _process(payload, hz, page)
    except UNFIT as error:
        yield _unparsed(record, f"stat of the rank: {error}", payload.get("stat"))
        return
    children = []
    listed = payload.get("children")
    for child in listed if isinstance(listed, list) else ():
        try:
            children.append(_process(child, hz, page))
        except UNFIT as error:
            yield _unparsed(record, f"stat of a child: {error}", child)
    main_thread = payload.get("main_stat")
    try:
        main_thread_cpu = None if main_thread is None else _cpu_seconds(split_stat(main_thread)[2], hz)
    except UNFIT as error:
        main_thread_cpu = None
        yield _unparsed(record, f"stat of the main thread: {error}", main_thread)
    status = named_numbers(payload.get("status"))
    yield ProcessTree(
        rank=record.rank,
        main=main,
        children=tuple(children),
        emitted=record.read_at,
        open_files=whole(payload.get("fds")),
        main_thread_cpu_seconds=main_thread_cpu,
        run_delay_seconds=_run_delay(payload.get("schedstat")),
        preemptions=status.get("nonvoluntary_ctxt_switches"),
        switches=status.get("voluntary_ctxt_switches"),
        cores=_cores(payload.get("status")),
        beside=core_neighbours.parse(payload.get("beside")),
        pauses=whole(payload.get("pauses")) or 0,
        tracer=_tracer(payload.get("tracer")),
        **{field: status[name] * 1024 for name, field in _KILOBYTES.items() if name in status},
    )


# /proc/PID/schedstat, seconds on a CPU, ready without one (both in ns), turns. Linux 6.18, 2026-11-23:
#   3184212 41530 12
_SCHEDSTAT = re.compile(r"\d{1,19} (\d{1,19}) \d{1,19}\s*", re.ASCII)
# /proc/PID/status:
#   Cpus_allowed_list:	0-3,8
# Of another process namespace it is 0.
#   TracerPid:	812
_TRACER = re.compile(r"^TracerPid:[ \t]*([1-9]\d{0,9})$", re.ASCII | re.MULTILINE)
_CORES = re.compile(r"^Cpus_allowed_list:[ \t]*([\d,-]{1,4096})$", re.ASCII | re.MULTILINE)


def _tracer(row: object) -> tuple[int, str] | None:
    pid = whole(row.get("pid")) if isinstance(row, Mapping) else None
    return (pid, str(row["comm"])[:64]) if pid and isinstance(row, Mapping) and "comm" in row else None


def _run_delay(text: object) -> float | None:
    found = _SCHEDSTAT.fullmatch(text) if isinstance(text, str) else None
    return int(found[1]) / 1e9 if found else None


def _cores(text: object) -> str:
    found = _CORES.search(text) if isinstance(text, str) else None
    return found[1][:200] if found else ""


def _process(payload: Mapping[str, Any], hz: int, page: int) -> ProcessSample:
    stat = payload.get("stat")
    if not isinstance(stat, str):
        raise TypeError("no text")
    pid, comm, fields = split_stat(stat)
    io = named_numbers(payload.get("io"))
    wchan = payload.get("wchan")
    return ProcessSample(
        pid=pid,
        ppid=int(fields[1]),
        comm=comm,
        state=fields[0],
        cpu_seconds=_cpu_seconds(fields, hz),
        threads=int(fields[17]),
        rss_bytes=int(fields[21]) * page,
        start_ticks=int(fields[19]),
        read_chars=io.get("rchar"),
        write_chars=io.get("wchar"),
        read_bytes=io.get("read_bytes"),
        write_bytes=io.get("write_bytes"),
        # "0" is a running process, or one that we may not look into
        wchan=wchan if isinstance(wchan, str) and wchan != "0" else "",
    )


def _cpu_seconds(fields: list[str], hz: int) -> float:
    return (int(fields[11]) + int(fields[12])) / hz


# /proc/PID/limits, H200 host (Linux 6.13 or later), 2026-11-20:
#   Limit                     Soft Limit           Hard Limit           Units
#   Max locked memory         unlimited            unlimited            bytes
#   Max nice priority         0                    0
_LIMIT = re.compile(r"^(Max [a-z ]{1,30}?) {2,}(\d{1,20}|unlimited)\b", re.ASCII | re.MULTILINE)


def _parse_limits(record: Record, payload: Mapping[str, Any]) -> Iterator[Observation]:
    text = payload["limits"]
    found = _LIMIT.findall(text) if isinstance(text, str) else []
    pid = whole(payload.get("pid"))
    if not found or pid is None:
        yield _unparsed(record, "limits", text)
        return
    yield LimitsSeen(
        rank=record.rank,
        pid=pid,
        soft=tuple((name, None if value == "unlimited" else int(value)) for name, value in found),
        rdma_devices=payload.get("rdma") is True,
        ipc_lock=ipc_lock(payload.get("cap_eff"), payload.get("uid_map")),
    )


def _unparsed(record: Record, reason: str, excerpt: object) -> Unparsed:
    return Unparsed(record.rank, SOURCE, reason, str(excerpt)[:200])
