"""System calls by number: those in which a thread may be blocked. Numbers of the kernel's syscall tables
(arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h for arm64)."""

from __future__ import annotations

import platform
from dataclasses import dataclass

# name: x86-64, arm64; -1 where the architecture has no such call
_NUMBERS = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "poll": (7, -1),
    "ioctl": (16, 29), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "select": (23, -1), "pause": (34, -1), "nanosleep": (35, 101), "connect": (42, 203), "accept": (43, 202),
    "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211), "recvmsg": (47, 212), "clone": (56, 220),
    "vfork": (58, -1), "execve": (59, 221), "exit": (60, 93), "wait4": (61, 260), "semop": (65, 193),
    "fcntl": (72, 25), "flock": (73, 32), "fsync": (74, 82), "fdatasync": (75, 83), "getdents": (78, -1),
    "mkdir": (83, -1), "unlink": (87, -1), "rename": (82, -1), "stat": (4, -1), "open": (2, -1),
    "statfs": (137, 43), "sync": (162, 81), "mount": (165, 40), "futex": (202, 98), "getdents64": (217, 61),
    "restart_syscall": (219, 128), "semtimedop": (220, 192), "rt_sigtimedwait": (128, 137),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "epoll_wait": (232, -1), "waitid": (247, 95),
    "openat": (257, 56), "mkdirat": (258, 34), "newfstatat": (262, 79), "unlinkat": (263, 35), "pselect6": (270, 72),
    "ppoll": (271, 73), "sync_file_range": (277, 84), "epoll_pwait": (281, 22), "fallocate": (285, 47),
    "accept4": (288, 242), "syncfs": (306, 267), "renameat2": (316, 276), "statx": (332, 291),
    "io_uring_enter": (426, 426), "clone3": (435, 435), "openat2": (437, 437), "epoll_pwait2": (441, 441),
}  # fmt: skip
_COLUMN = {"x86_64": 0, "aarch64": 1}
_BY_NUMBER = {
    machine: {numbers[column]: name for name, numbers in _NUMBERS.items() if numbers[column] >= 0}
    for machine, column in _COLUMN.items()
}


@dataclass(frozen=True, slots=True)
class Call:
    """A line of /proc/PID/task/TID/syscall. `name`: empty in the kernel for another reason than a call (a page
    fault, stopped in user mode), "running" on a CPU or ready for one, else the call's name, or its number."""

    name: str
    args: tuple[int, ...] = ()

    def fd(self, index: int = 0) -> int:
        """An argument as a descriptor: registers have 64 bits, a descriptor 32, and a sign."""
        return self.signed(index)

    def signed(self, index: int) -> int:
        value = self.args[index] & 0xFFFFFFFF if index < len(self.args) else 0
        return value - (1 << 32) if value >= 1 << 31 else value

    def word(self, index: int) -> int:
        return self.args[index] if index < len(self.args) else 0


def parse_call(text: str, machine: str = "") -> Call | None:
    """None for no line (refused, or gone).

    >>> parse_call("61 0x5b 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f3c", "x86_64")
    Call(name='wait4', args=(91, 0, 0, 0, 0, 0))
    """
    # Linux 6.18, x86-64, a Python 3.11 in os.waitpid, and one that computes:
    #   61 0x410 0x7ffe1f8a4a3c 0x0 0x0 0x0 0x0 0x7ffe1f8a49e8 0x7f2b6f9bd257
    #   running
    fields = text.split()
    if not fields:
        return None
    if fields[0] == "running":
        return Call("running")
    try:
        number, args = int(fields[0]), tuple(int(field, 16) for field in fields[1:7])
    except ValueError:
        return None
    if number < 0:
        return Call("")
    return Call(_BY_NUMBER.get(machine or platform.machine(), {}).get(number, str(number)), args)
