"""The kernel's log (/dev/kmsg) while the job runs: the few lines that concern it, as records. Judges nothing."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from diag.agent.samplers.context import NodeContext, NodeSampler
from diag.agent.samplers.sampler import Reporter
from diag.sources.host.kmsg import SOURCE
from diag.sources.host.process_tree import sees_machine

# What a line must hold to be taken. Rows of the table of tasks and the numbers of a cgroup count only inside
# a report of a kill, which begins with the first word and ends with the second.
_BEGINS, _ENDS = b"invoked oom-killer", b"Killed process"
_WORDS = (
    _BEGINS,
    _ENDS,
    b"oom-kill:",
    b"memory: usage",
    b"memory.oom.group",
    b"as a result of limit of",
    b"enough memory for the",
    b"pids controller",
    b"NVRM",
    b"nvidia-nvswitch",
    b"SXid",
    b"fallen off the bus",
)
_NUMBERS = (
    b"anon ",
    b"file ",
    b"shmem ",
    b"file_dirty ",
    b"total_rss ",
    b"total_cache ",
    b"total_shmem ",
    b"total_dirty ",
)
_LEAST_PAGES = 2560  # 10 MiB: smaller tasks of the table are left out

_BUFFER = 16 * 1024  # the kernel's longest record is 8 KiB with its escapes
_GATHER_SECONDS = 0.2  # a report of a kill comes line by line
_LONGEST_GATHER_SECONDS = 1.0
# records a second; beyond it the log is a flood, and the kernel may overwrite what we do not read
_MOST_READ = 2000
_MOST_TAKEN = 1000  # lines in one record of ours


class KmsgLines:
    """Takes raw records of /dev/kmsg, gives the lines that matter, as `dmesg` shows them."""

    def __init__(self, words: Iterable[str] = ()) -> None:
        """`words`: what other lines that matter hold, beside those of memory and of GPUs."""
        self._words = (*_WORDS, *(word.encode() for word in words))
        self._inside = False
        self._fragment: bytes | None = None

    # Linux 6.1, /dev/kmsg, one read: b'3,561,57407793,-;Out of memory: Killed process 216 (python3)
    # total-vm:...\n' Lines after the first begin with a space and name a device: b' SUBSYSTEM=pci\n
    # DEVICE=+pci:0000:00:07.0\n' Kernels before 4.10 give fragments of one line as records of their own: flag
    # c, those that follow +. In newer ones a line of NVIDIA's driver has flag c though it is whole (driver
    # 580.159.04, 2026-11-21):
    #   4,377,508873986,c;NVRM: Xid (PCI:0000:00:07): 43, pid=11853, name=python3, channel 0x0000000a
    # Kernels before 6.10 give the numbers of a v2 cgroup as one record, the ends of its lines escaped (Linux
    # 6.1, 2026-11-21):
    #   b'6,443,57954903,-;anon 116965376\\x0afile 8192\\x0akernel 466944\\x0akernel_stack 0\\x0apagetables 344064...\n'
    def take(self, raw: bytes) -> list[str]:
        head, found, text = raw.partition(b";")
        fields = head.split(b",")
        if not found or len(fields) < 4:
            return []
        text = text.partition(b"\n")[0]
        flag = fields[3]
        if self._fragment is not None and flag == b"+":
            text = self._fragment + text
        self._fragment = text[:1000] if flag in (b"+", b"c") else None
        micros = int(fields[2]) if fields[2].isdigit() and len(fields[2]) < 20 else 0
        stamp = f"[{micros // 1_000_000:5d}.{micros % 1_000_000:06d}] "
        return [
            stamp + line.decode("utf-8", "replace")[:900]
            for line in text.split(b"\\x0a")
            if self._wanted(line)
        ]

    def _wanted(self, text: bytes) -> bool:
        if any(word in text for word in self._words):
            if _BEGINS in text:
                self._inside = True
            elif _ENDS in text:
                self._inside = False
            return True
        if not self._inside:
            return False
        if text.startswith(b"["):
            fields = text.partition(b"]")[2].split(None, 4)
            return (
                len(fields) == 5
                and fields[3].isdigit()
                and len(fields[3]) < 20
                and int(fields[3]) >= _LEAST_PAGES
            )
        return text.startswith(_NUMBERS)


def open_log(path: Path = Path("/dev/kmsg")) -> int:
    """At its end: what the kernel logged before is not of this job. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.lseek(fd, 0, os.SEEK_END)
    return fd


class KernelLogSampler(NodeSampler):
    """Reads whenever the kernel has written: the lines that matter, from the moment it starts on, until it is
    stopped."""

    name, what, sources = "kernel-log", "kernel log", (SOURCE,)

    def __init__(
        self, reporter: Reporter, opened: Callable[[], int] = open_log, words: Iterable[str] = ()
    ) -> None:
        super().__init__(reporter)
        self._opened = opened
        self._ending = threading.Event()
        self._wake_read, self._wake_write = -1, -1
        self._lines = KmsgLines(words)

    @classmethod
    def of(cls, node: NodeContext) -> KernelLogSampler:
        return cls(node.reporter, words=node.kernel_words)

    def start(self) -> None:
        """What the kernel logs from now on is read: the place in its log is taken before this returns."""
        try:
            fd = self._opened()
        except OSError as error:
            reason = (
                "there is no /dev/kmsg here"
                if error.errno == errno.ENOENT
                else f"/dev/kmsg: {error.strerror}"
            )
            self.reporter.failed(
                self.what,
                reason,
                "run diag as root on the host, or give the container /dev/kmsg and CAP_SYSLOG (docker run --device /dev/kmsg "
                "--cap-add SYSLOG): the kernel's log then shows which process it killed for memory and which GPU failed",
            )
            return
        try:
            self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._fd = fd
            super().start()
        except BaseException:
            self.thread = None
            os.close(fd)
            raise

    def stop(self) -> None:
        """What the kernel has logged until now is put before this returns."""
        if self.thread is None or self._ending.is_set():
            return
        self._ending.set()
        os.write(self._wake_write, b"x")
        self.thread.join(_LONGEST_GATHER_SECONDS)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while not self._ending.is_set():
            poll.poll()
            self._gather(self._fd)

    def tidy(self) -> None:
        os.close(self._fd)

    def _gather(self, fd: int) -> None:
        """All that is there, and what follows closely where a line of it mattered."""
        taken: list[str] = []
        began = time.monotonic()
        read = 0
        while True:
            count = self._read_some(fd, taken)
            read += count
            waited = time.monotonic() - began
            if read >= _MOST_READ:
                # a flood: what is overwritten meanwhile is lost, and costs nothing
                self._ending.wait(max(0.0, 1.0 - waited))
                break
            if not taken or waited >= _LONGEST_GATHER_SECONDS or (not count and waited >= _GATHER_SECONDS):
                break
            if self._ending.wait(_GATHER_SECONDS / 4):
                self._read_some(fd, taken)
                break
        if taken:
            self.reporter.record(SOURCE, {"lines": taken, "host_pids": sees_machine() is True})

    def _read_some(self, fd: int, taken: list[str]) -> int:
        for count in range(_MOST_READ):
            try:
                raw = os.read(fd, _BUFFER)
            except BlockingIOError:
                return count
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # overwritten before we came to it: the next read goes on with the oldest that is left
                if error.errno == errno.EINVAL:  # longer than any that the kernel writes today: pass it by
                    os.lseek(fd, 0, os.SEEK_END)
                    return count
                raise
            if not raw:
                return count
            taken += self._lines.take(raw)[: _MOST_TAKEN - len(taken)]
        return _MOST_READ
