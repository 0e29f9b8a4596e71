"""Kernel messages (`dmesg`, /dev/kmsg) that matter to training: kills and refusals for memory, faults of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.model import Record
from diag.model.observations import (
    KernelLine,
    KernelOomKill,
    KernelRefusal,
    Observation,
    SxidReported,
    Unparsed,
    XidReported,
)

SOURCE = "kmsg"

_LONGEST = 1000
_MOST_TASKS = 8
_MOST_SEEN = 4096


def parse(record: Record) -> Iterator[Observation]:
    """Payload: {"lines": [str, ...], "host_pids": bool?}; the kernel's log has the host's pids, diag may be
    in a container."""
    payload = record.payload
    lines = payload.get("lines") if isinstance(payload, dict) else None
    if not isinstance(lines, list):
        yield Unparsed(record.rank, SOURCE, "no list of lines", repr(payload)[:200])
        return
    memory = _Memory()
    host_pids = payload.get("host_pids") is True
    for line in lines:
        if isinstance(line, str):
            yield KernelLine(None, line[:_LONGEST], host_pids)
            yield from _of_gpu(line[:_LONGEST], host_pids)
            yield from memory.read_line(line[:_LONGEST])


# --- NVIDIA's driver: Xid (a GPU), SXid (an NVSwitch), and a GPU that fell off the bus without either

# driver 580.159.04, H200, 2026-11-20, after a device-side assert:
#   [  482.229132] NVRM: Xid (PCI:0000:00:07): 43, pid=1562, name=python3, channel 0x0000000a
# leptonai/gpud PR 46, 2024:
#   NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): ...
# drivers before 2012, and gpud's tests: NVRM: Xid (0000:03:00): 14, Channel 00000001 doitsujin/dxvk issue
# 1027 (driver 418): NVRM: Xid (PCI:0000:01:00): 31, Ch 0000005a, intr 10000000. MMU Fault: ENGINE ...
# NVIDIA/open-gpu-kernel-modules issue 1150 (590.48): NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990,
# name=python3, Ch 00000001 ...
# gpud PR 1160 (Blackwell): NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 ...)
# With MIG the address has more behind it: NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 119, ...
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,32})[^)]{0,40}\): (\d{1,4})(?=\D|$)(?:, pid='?(\d{1,10}))?"
)

# gpud's tests and NVIDIA's fabric manager guide (DU-09883-001):
#   [111111111.111] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
#   [131453.740743] nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
# Each is followed by lines of the same number with `Severity 0 Engine instance 46 ...` and `Data {0x...}`:
# not taken.
_SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]{4,32})\): (\d{1,6}), (Fatal|Non-fatal)(?:, Link (\d{1,4}))?")

# NVIDIA/NVSentinel issue 155 (570.158.01), three lines; the first has the address:
#   [ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
#                  NVRM: (PCI ID: 10de:26b5) installed in this system has
#                  NVRM: fallen off the bus and is not responding to commands.
# gpud: NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.
# Bumblebee issue 554: NVRM: GPU at 0000:01:00.0 has fallen off the bus.
# It comes with Xid 79 or in place of it: taken as one.
_FALLEN = re.compile(r"NVRM: GPU (?:at )?(?:PCI:)?([0-9a-fA-F:.]{4,32}?):? (?:GPU )?has fallen off the bus")
_FALLEN_LAST = re.compile(r"NVRM: +fallen off the bus and is not responding")


def _of_gpu(line: str, host_pids: bool) -> Iterator[Observation]:
    if match := _XID.search(line):
        pid = int(match[3]) if match[3] else None
        yield XidReported(None, match[1], int(match[2]), pid, line.strip()[:300], host_pids=host_pids)
        return
    if match := _SXID.search(line):
        link = int(match[4]) if match[4] else None
        yield SxidReported(None, match[1], int(match[2]), match[3] == "Fatal", link, line.strip()[:300])
        return
    if match := _FALLEN.search(line):
        yield XidReported(None, match[1], 79, None, line.strip()[:300])
    elif _FALLEN_LAST.search(line):
        yield XidReported(None, "", 79, None, line.strip()[:300])  # the address was in a line of its own


# --- memory: kills by the OOM killer, refused allocations and forks

# Lines of Linux 6.1 (cgroup v2) and 6.18 (v1) as dmesg shows them, 2026-11-21:
#   [   32.895574] memory: usage 65536kB, limit 65536kB, failcnt 48
#   [24443.912445] Memory cgroup stats for /machine/d795/diag-test-16719:
#   [24443.912494] total_rss 50225152
#   [24443.912517] [  16721]     0 16721    54329    14438    12992     1446         0   172032        0             0 python
#   [   32.896183] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/t,task_memcg=/t,
#       task=python3,pid=188,uid=0
#   [   32.911273] Memory cgroup out of memory: Killed process 188 (python3) total-vm:79692kB, anon-rss:67492kB, file-rss:4kB,
#       shmem-rss:2508kB, UID:0 pgtables:192kB oom_score_adj:0
#   [   57.407793] Out of memory: Killed process 216 (python3) total-vm:2144204kB, anon-rss:2124616kB, file-rss:4kB, ...
#   [   34.001288] Tasks in /t are going to be killed due to memory.oom.group set
# Until 4.18 the kernel wrote "Killed process" in a line of its own, and before it:
#   Task in /a/b killed as a result of limit of /a
# The kernel's own text follows a time, and a thread's number where it is built with CONFIG_PRINTK_CALLER:
#   [  332.079333][ T1844] ...
_PREFIX = re.compile(
    r"^.{0,80}?\[(?: *\d{1,10}\.\d{1,9}|[A-Z][a-z]{2} [^\[\]]{10,30})\](?:\[ *[TC]\d{1,10}\])? ?"
)
_USAGE = re.compile(r"^memory: usage (\d{1,18})kB, limit (\d{1,18})kB")
_STAT = re.compile(r"^(anon|file|shmem|file_dirty|total_rss|total_cache|total_shmem|total_dirty) (\d{1,19})$")
_TASK = re.compile(
    r"^\[ *(\d{1,10})\] +\d{1,10} +\d{1,10} +(\d{1,15}) +(\d{1,15}) .{0,200}? -?\d{1,5} (\S.{0,63})$"
)
_CHOSEN = re.compile(
    r"^oom-kill:constraint=(\w{1,40}),.{0,400}?(?:oom_memcg=([^,]{0,400})|global_oom),task_memcg=([^,]{0,400}),"
    r"task=.{0,64},pid=(\d{1,10}),uid="
)
_OLD_CHOSEN = re.compile(r"^Task in (\S{1,400}) killed as a result of limit of (\S{1,400})")
_KILLED = re.compile(
    r"Killed process (\d{1,10}) \((.{1,64}?)\),?(?: UID \d{1,10},)? total-vm:(\d{1,18})kB, "
    r"anon-rss:(\d{1,18})kB, file-rss:(\d{1,18})kB(?:, shmem-rss:(\d{1,18})kB)?"
)
# Linux 6.1 under vm.overcommit_memory=2; from 6.10 on with "bytes: 1073741824 not enough memory ...":
#   [   42.626833] __vm_enough_memory: pid: 212, comm: python3, no enough memory for the allocation
_OVERCOMMIT = re.compile(
    r"__vm_enough_memory: pid: (\d{1,10}), comm: (.{1,64}?), (?:bytes: (\d{1,20}) )?not? enough memory"
)
# Linux 6.1 and 6.18, once for each cgroup; until 6.10 and on v1 the cgroup is that which forked, later too:
#   cgroup: fork rejected by pids controller in /docker/4d27
_PIDS = re.compile(r"cgroup: fork rejected by pids controller in (\S{1,400})")

_STAT_NAMES = {
    "total_rss": "anon", "total_cache": "cache", "file": "cache", "total_shmem": "shmem", "file_dirty": "dirty",
    "total_dirty": "dirty",
}  # fmt: skip


class _Memory:
    """Reads one run of lines: a kill is in several, of which the first name the cgroup and the last the
    process."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._begin()

    def _begin(self) -> None:
        self._usage: int | None = None
        self._limit: int | None = None
        self._breakdown: dict[str, int] = {}
        self._tasks: list[tuple[int, str, int, int]] = []  # pid, name, resident and virtual pages
        self._group: tuple[str, str] | None = None  # the cgroup whose limit was met, and the victim's
        self._chosen: int | None = None
        self._whole_group = False
        self._seen.clear()

    def read_line(self, line: str) -> Iterator[Observation]:
        text = _PREFIX.sub("", line, count=1).strip()
        if "Killed process" in text:
            yield from self._killed(text, line)
        elif "oom" in text or "killed" in text:
            self._choose(text)
        elif text.startswith("memory: usage"):
            if match := _USAGE.match(text):
                self._usage, self._limit = int(match[1]) * 1024, int(match[2]) * 1024
        elif text.startswith("["):
            if len(self._tasks) < _MOST_SEEN and (match := _TASK.match(text)):
                self._tasks.append((int(match[1]), match[4].strip(), int(match[3]), int(match[2])))
        elif "enough memory" in text:
            if match := _OVERCOMMIT.search(text):
                size = int(match[3]) if match[3] else None
                yield KernelRefusal(
                    None, "overcommit", int(match[1]), match[2], line.strip()[:300], size_bytes=size
                )
        elif "pids controller" in text:
            if match := _PIDS.search(text):
                yield KernelRefusal(None, "pids", None, "", line.strip()[:300], cgroup=match[1])
        elif self._usage is not None and (match := _STAT.match(text)):
            self._breakdown[_STAT_NAMES.get(match[1], match[1])] = int(match[2])

    def _choose(self, text: str) -> None:
        if "invoked oom-killer" in text:
            self._begin()
        elif match := _CHOSEN.match(text):
            self._group = (match[2] or "", match[3])
            self._chosen, self._whole_group = int(match[4]), False
            self._seen.clear()
        elif match := _OLD_CHOSEN.match(text):
            self._group = (match[2], match[1])
        elif "memory.oom.group" in text:
            self._whole_group = True

    def _killed(self, text: str, line: str) -> Iterator[Observation]:
        match = _KILLED.search(text)
        if match is None or int(match[1]) in self._seen:
            return  # with memory.oom.group the first victim is logged twice
        pid = int(match[1])
        if self._chosen is not None and self._chosen != pid and not self._whole_group:
            self._begin()  # the kernel writes of many kills in a row only this line: what came before was another's
        self._seen.add(pid)
        cgroup, victim = self._group or ("", "")
        if "emory cgroup out of memory" in text:
            cgroup = cgroup or "?"
        elif text.startswith("Out of memory"):
            cgroup = ""
        yield KernelOomKill(
            rank=None,
            pid=pid,
            comm=match[2],
            anon_bytes=int(match[4]) * 1024,
            file_bytes=int(match[5]) * 1024,
            shmem_bytes=int(match[6] or 0) * 1024,
            cgroup=cgroup,
            usage_bytes=self._usage,
            limit_bytes=self._limit,
            text=line.strip()[:300],
            victim_cgroup=victim,
            breakdown=tuple(sorted(self._breakdown.items())),
            tasks=self._biggest(pid, int(match[3]) * 1024),
        )

    def _biggest(self, victim: int, virtual_bytes: int) -> tuple[tuple[int, str, int], ...]:
        """The table counts pages; how long they are follows from the victim, whose size is in both."""
        pages = next((virtual for pid, _, _, virtual in self._tasks if pid == victim), 0)
        page = (
            1 << round(virtual_bytes / pages).bit_length() - 1 if pages and virtual_bytes >= pages else 4096
        )
        biggest = sorted(self._tasks, key=lambda task: -task[2])[:_MOST_TASKS]
        return tuple((pid, name, resident * page) for pid, name, resident, _ in biggest)
