"""The kernel's log while a job runs: a real kill is told, a flood costs nothing, one that may not be read is
said once."""

from __future__ import annotations

import errno
import os
import queue
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diag.agent.samplers.kernel import KernelLogSampler, KmsgLines, open_log
from diag.agent.samplers.sampler import Reporter
from diag.detectors.rules.load import packaged
from diag.model import Record
from diag.model.observations import KernelLine, KernelOomKill, SourceFailed, XidReported
from diag.sources.host import kmsg
from diag.sources.parsers import PARSERS

# Linux 6.1, as read from /dev/kmsg, 2026-11-21
KILL = (
    b"6,560,57407639,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,"
    b"task=python3,pid=216,uid=0\n",
    b"3,561,57407793,-;Out of memory: Killed process 216 (python3) total-vm:2144204kB, anon-rss:2124616kB, file-rss:4kB, "
    b"shmem-rss:5288kB, UID:0 pgtables:4220kB oom_score_adj:0\n",
)


def facts(records: list[Record]) -> list[object]:
    """But for the lines themselves."""
    told = [fact for record in records for fact in PARSERS[record.source](record)]
    return [fact for fact in told if not isinstance(fact, KernelLine)]


class Log:
    """A log of which each read gives one record, as /dev/kmsg does."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        self.socket, self.fd = ours, theirs.detach()
        self.records: queue.SimpleQueue[Record] = queue.SimpleQueue()
        self.watch = KernelLogSampler(Reporter(self.records.put, "node-0"), lambda: self.fd)

    def taken(self) -> list[Record]:
        return [self.records.get() for _ in range(self.records.qsize())]


def test_report_that_comes_line_by_line_is_one_record() -> None:
    log = Log()
    log.watch.start()
    for line in KILL:
        log.socket.send(line)
        log.socket.send(b"6,1,1,-;EXT4-fs (vda): mounted filesystem\n SUBSYSTEM=block\n")

    record = log.records.get(timeout=5)
    log.watch.stop()

    assert [line.partition("] ")[2][:12] for line in record.payload["lines"]] == [
        "oom-kill:con",
        "Out of memor",
    ]
    assert record.payload["lines"][1].startswith("[   57.407793] Out of memory")
    assert [type(fact) for fact in facts([record])] == [KernelOomKill]


def test_what_the_kernel_said_until_the_end_is_told_before_the_watch_ends() -> None:
    log = Log()
    log.watch.start()
    for line in KILL:
        log.socket.send(line)

    log.watch.stop()

    assert [type(fact) for fact in facts(log.taken())] == [KernelOomKill]


def test_flood_is_read_at_a_bounded_rate_and_taken_at_a_bounded_size() -> None:
    # given a kernel that writes lines as fast as it can, each of which would be taken
    log = Log()
    log.watch.start()
    log.socket.settimeout(0.01)
    before, end = time.process_time(), time.monotonic() + 2.0
    sent = 0
    while time.monotonic() < end:
        try:
            sent += log.socket.send(KILL[1]) > 0
        except TimeoutError:
            continue
    spent = time.process_time() - before

    log.watch.stop()
    taken = log.taken()

    assert sent < 10_000  # it was not read faster
    assert max(len(record.payload["lines"]) for record in taken) <= 1000
    assert spent < 1.0


def test_only_lines_that_matter_are_taken_and_tables_only_inside_a_report() -> None:
    lines = KmsgLines()
    texts = [
        b"anon 4096",
        b"[  300]     0   300   100000    90000 1 2 3 0 0 0 python3",
        b"usb 1-1: new device",
        b"python3 invoked oom-killer: gfp_mask=0xcc0",
        b"anon 4096",
        b"anon_thp 4096",
        b"[  300]     0   300   100000    90000 1 2 3 0 0 0 python3",
        b"[  301]     0   301   100000      900 1 2 3 0 0 0 sh",
        b"Memory cgroup out of memory: Killed process 300 (python3) total-vm:1kB",
        b"anon 4096",
        b"NVRM: Xid (PCI:0000:00:07): 43, pid=1562, name=python3, channel 0x0000000a",
    ]

    taken = [line for text in texts for line in lines.take(b"6,1,1000000,-;" + text + b"\n")]

    assert [line.partition("] ")[2][:9] for line in taken] == [
        "python3 i",
        "anon 4096",
        "[  300]  ",
        "Memory cg",
        "NVRM: Xid",
    ]


def test_lines_of_nvidias_driver_stay_lines_though_the_kernel_flags_them_as_continued() -> None:
    # 2 x H200, driver 580.159.04: three programs fail one after the other
    raw = (
        (Path(__file__).parents[1] / "captures" / "gpu" / "kmsg_raw.txt")
        .read_bytes()
        .splitlines(keepends=True)
    )
    lines = KmsgLines()
    taken = [line for record in raw for line in lines.take(record)]

    told = [fact for fact in kmsg.parse(Record("kmsg", {"lines": taken})) if isinstance(fact, XidReported)]
    assert [(fact.xid, fact.pid) for fact in told] == [
        (43, 11853),
        (31, 11865),
        (13, None),
        (13, None),
        (13, 11881),
    ]


def test_fragments_of_one_line_are_put_together_and_damage_is_passed_by() -> None:
    lines = KmsgLines()

    assert lines.take(b"6,1,1,c;cgroup: fork rejected by pids controller in")
    assert lines.take(b"6,2,1,+; /docker/4d27\n") == [
        "[    0.000001] cgroup: fork rejected by pids controller in /docker/4d27"
    ]
    assert [
        lines.take(raw) for raw in (b"", b";", b"6,1;Killed process", b"\xff\xfe", b"6,1,x,-;nothing")
    ] == [[]] * 5


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EPERM, "Operation not permitted"), (errno.ENOENT, "no /dev/kmsg")]
)
def test_log_that_may_not_be_read_is_said_once_with_a_remedy(number: int, words: str) -> None:
    def refuse() -> int:
        raise OSError(number, os.strerror(number))

    records: list[Record] = []
    watch = KernelLogSampler(Reporter(records.append, "node-0"), refuse)
    watch.start()
    watch.stop()

    (failed,) = facts(records)
    assert isinstance(failed, SourceFailed)
    assert words in failed.reason and "--device /dev/kmsg" in failed.remedy


def test_real_kernel_tells_of_a_real_kill_and_nothing_from_before(small_cgroup: Path) -> None:
    try:
        os.close(open_log())
    except OSError as error:
        pytest.skip(f"/dev/kmsg: {error}")
    records: queue.SimpleQueue[Record] = queue.SimpleQueue()
    watch = KernelLogSampler(Reporter(records.put, "node-0"))
    watch.start()
    eater = subprocess.Popen([sys.executable, "-c", "input(); b'x' * (200 << 20)"], stdin=subprocess.PIPE)
    (small_cgroup / "cgroup.procs").write_text(str(eater.pid))

    eater.communicate(b"\n")
    watch.stop()

    told = [
        fact
        for fact in facts([records.get() for _ in range(records.qsize())])
        if isinstance(fact, KernelOomKill)
    ]
    (kill,) = [fact for fact in told if fact.pid == eater.pid]
    assert eater.returncode == -9
    assert kill.cgroup.endswith(small_cgroup.name) and kill.limit_bytes == 48 << 20
    assert kill.tasks[0][0] == eater.pid and dict(kill.breakdown)["anon"] > 40 << 20


def test_numbers_of_a_cgroup_that_come_as_one_record_are_lines() -> None:
    lines = KmsgLines()
    lines.take(
        b"4,440,57952877,-;python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
    )

    # Linux 6.1, cgroup v2, /dev/kmsg, 2026-11-21; the rest of 40 numbers left out
    taken = lines.take(
        b"6,443,57954903,-;anon 116965376\\x0afile 8192\\x0akernel 466944\\x0ashmem 4096\\x0afile_mapped 0\n"
    )

    assert taken == ["[   57.954903] anon 116965376", "[   57.954903] file 8192", "[   57.954903] shmem 4096"]


def test_line_that_a_rule_of_the_kernels_log_is_for_is_taken() -> None:
    lines = KmsgLines(packaged().kernel_words)

    assert lines.take(b"4,1,4711120001,-;nfs: server filer-3 not responding, still trying\n")
    assert lines.take(b"6,2,4711120002,-;usb 1-1: new high-speed USB device number 4 using xhci_hcd\n") == []
