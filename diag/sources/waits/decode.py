"""What one thread waits for, by its own line of facts alone: state, wchan and system call. No reading here.

Numbers of system calls are those of the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl;
include/uapi/asm-generic/unistd.h for arm64): those in which a thread may be blocked.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from diag.sources.host.process_tree import split_stat

# Name: its numbers on x86-64 and arm64 (-1 where the architecture has no such call), what it waits for ("": its wait
# channel tells), and its arguments: a descriptor, a path, or (at) a folder's descriptor and a path.
_CALLS = {
    "read": (0, 63, "read", "fd"), "write": (1, 64, "write", "fd"), "close": (3, 57, "file_io", "fd"),
    "fstat": (5, 80, "file_io", "fd"), "poll": (7, -1, "poll", ""), "ioctl": (16, 29, "", "fd"),
    "pread64": (17, 67, "read", "fd"), "pwrite64": (18, 68, "write", "fd"), "readv": (19, 65, "read", "fd"),
    "writev": (20, 66, "write", "fd"), "select": (23, -1, "poll", ""), "pause": (34, -1, "signal", ""),
    "nanosleep": (35, 101, "sleep", ""), "connect": (42, 203, "connect", "fd"),
    "accept": (43, 202, "tcp_accept", "fd"), "sendto": (44, 206, "send", "fd"),
    "recvfrom": (45, 207, "receive", "fd"), "sendmsg": (46, 211, "send", "fd"), "recvmsg": (47, 212, "receive", "fd"),
    "clone": (56, 220, "", ""), "vfork": (58, -1, "vfork", ""), "execve": (59, 221, "file_io", "path"),
    "exit": (60, 93, "", ""), "wait4": (61, 260, "child", ""), "semop": (65, 193, "semaphore", ""),
    "fcntl": (72, 25, "", "fd"), "flock": (73, 32, "file_lock", "fd"), "fsync": (74, 82, "file_io", "fd"),
    "fdatasync": (75, 83, "file_io", "fd"), "getdents": (78, -1, "file_io", "fd"),
    "mkdir": (83, -1, "file_io", "path"), "unlink": (87, -1, "file_io", "path"),
    "rename": (82, -1, "file_io", "path"), "stat": (4, -1, "file_io", "path"), "open": (2, -1, "file_io", "path"),
    "statfs": (137, 43, "file_io", "path"), "sync": (162, 81, "file_io", ""), "mount": (165, 40, "file_io", ""),
    "futex": (202, 98, "futex", ""), "getdents64": (217, 61, "file_io", "fd"), "restart_syscall": (219, 128, "", ""),
    "semtimedop": (220, 192, "semaphore", ""), "rt_sigtimedwait": (128, 137, "signal", ""),
    "clock_nanosleep": (230, 115, "sleep", ""), "exit_group": (231, 94, "", ""),
    "epoll_wait": (232, -1, "poll", "fd"), "waitid": (247, 95, "child", ""), "openat": (257, 56, "file_io", "at"),
    "mkdirat": (258, 34, "file_io", "at"), "newfstatat": (262, 79, "file_io", "at"),
    "unlinkat": (263, 35, "file_io", "at"), "pselect6": (270, 72, "poll", ""), "ppoll": (271, 73, "poll", ""),
    "sync_file_range": (277, 84, "file_io", "fd"), "epoll_pwait": (281, 22, "poll", "fd"),
    "fallocate": (285, 47, "file_io", "fd"), "accept4": (288, 242, "tcp_accept", "fd"),
    "syncfs": (306, 267, "file_io", "fd"), "renameat2": (316, 276, "file_io", "at"),
    "statx": (332, 291, "file_io", "at"), "io_uring_enter": (426, 426, "io_uring", "fd"),
    "clone3": (435, 435, "", ""), "openat2": (437, 437, "file_io", "at"), "epoll_pwait2": (441, 441, "poll", "fd"),
}  # fmt: skip
_BY_NUMBER = {
    "x86_64": {number: name for name, (number, *_) in _CALLS.items()},
    "aarch64": {number: name for name, (_, number, *_) in _CALLS.items() if number >= 0},
}


@dataclass(frozen=True, slots=True)
class Call:
    """A line of /proc/PID/task/TID/syscall. `name`: empty in the kernel for another reason than a call (a page
    fault, stopped in user mode), "running" on a CPU or ready for one, else the call's name, or its number."""

    name: str
    args: tuple[int, ...] = ()

    def signed(self, index: int = 0) -> int:
        """An argument as a descriptor has it: registers have 64 bits, a descriptor 32, and a sign."""
        value = self.args[index] & 0xFFFFFFFF if index < len(self.args) else 0
        return value - (1 << 32) if value >= 1 << 31 else value

    def word(self, index: int) -> int:
        return self.args[index] if index < len(self.args) else 0


def parse_call(text: str, machine: str = "") -> Call | None:
    """None for an empty line (access was refused, or the thread is gone).

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


# How many arguments a call has; of one that is not named here the registers tell nothing.
_ARGUMENTS = {
    0: "pause vfork sync restart_syscall", 1: "close exit exit_group fsync fdatasync unlink syncfs",
    2: "fstat nanosleep flock mkdir rename stat statfs clone3",
    3: "read write poll ioctl readv writev connect accept sendmsg recvmsg execve semop fcntl getdents open getdents64 mkdirat "
    "unlinkat",
    4: "pread64 pwrite64 wait4 semtimedop rt_sigtimedwait clock_nanosleep epoll_wait openat newfstatat sync_file_range "
    "fallocate accept4 openat2",
    5: "select clone mount waitid ppoll renameat2 statx",
    6: "sendto recvfrom futex pselect6 epoll_pwait io_uring_enter epoll_pwait2",
}  # fmt: skip
_COUNTS = {name: count for count, names in _ARGUMENTS.items() for name in names.split()}
_FUTEX = {0: "WAIT", 1: "WAKE", 6: "LOCK_PI", 9: "WAIT_BITSET", 11: "WAIT_REQUEUE_PI", 13: "LOCK_PI2"}


def format_call(call: Call, links: Mapping[int, str]) -> str:
    """As strace would, as far as registers tell; a descriptor with what it refers to.

    >>> format_call(Call("read", (3, 0x7F00, 16, 0, 0, 0)), {3: "pipe:[71]"})
    'read(3 -> pipe:[71], 0x7f00, 16)'
    >>> format_call(Call("futex", (0x7F00, 0x189, 0, 0, 0, 0xFFFFFFFF)), {})
    'futex(0x7f00, WAIT_BITSET|PRIVATE|CLOCK_REALTIME, 0, 0, 0, 4294967295)'
    """
    if call.name == "running":
        return "running"
    count = _COUNTS.get(call.name)
    if count is None:
        return f"call {call.name}" if call.name.isdigit() else call.name
    words = [_word(value) for value in call.args[:count]]
    if words and _CALLS[call.name][3] in ("fd", "at"):
        fd = call.signed()
        words[0] = "AT_FDCWD" if fd == -100 else f"{fd} -> {links[fd]}" if fd in links else str(fd)
    if call.name in ("wait4", "waitid", "poll", "epoll_wait", "epoll_pwait"):  # -1: any child, no timeout
        words = [
            str(call.signed(at)) if call.word(at) in (_MINUS_ONE, 0xFFFFFFFF) else word
            for at, word in enumerate(words)
        ]
    if call.name == "futex":
        op = call.word(1) & 0xFFFFFFFF
        flags = [name for bit, name in ((_PRIVATE, "PRIVATE"), (0x100, "CLOCK_REALTIME")) if op & bit]
        words[1] = "|".join([_FUTEX.get(op & 0x7F, str(op & 0x7F)), *flags])
    return f"{call.name}({', '.join(words)})"


_MINUS_ONE = (1 << 64) - 1


def _word(value: int) -> str:
    """Small numbers and those of 32 bits that are no address as such."""
    if value == _MINUS_ONE:
        return "-1"
    return str(value) if value < 4096 or value == 0xFFFFFFFF else f"{value:#x}"


# --- what it waits for

_EXITING = 0x4  # PF_EXITING of include/linux/sched.h, in field 9 of stat

# By the beginning of wchan, where the call is not readable, or was interrupted (restart_syscall): names differ by
# kernel and compiler behind a common beginning. Seen on Linux 6.18.44 and 6.1.187.
_BY_WCHAN = (
    ("do_wait", "child"), ("hrtimer_nanosleep", "sleep"), ("anon_pipe_read", "pipe_read"), ("pipe_read", "pipe_read"),
    ("anon_pipe_write", "pipe_write"), ("pipe_write", "pipe_write"), ("wait_for_partner", "fifo_open"),
    ("unix_stream_read", "unix_receive"), ("__skb_wait_for_more_packets", "unix_receive"),
    ("unix_wait_for_peer", "unix_connect"), ("inet_csk_accept", "tcp_accept"), ("poll_schedule", "poll"),
    ("do_sys_poll", "poll"), ("do_select", "poll"), ("do_epoll_wait", "poll"), ("ep_poll", "poll"),
    ("locks_lock_inode_wait", "file_lock"), ("fcntl_setlk", "file_lock"), ("futex", "futex"),
    ("rt_mutex", "mutex"), ("request_wait_answer", "file_io"), ("folio_wait", "file_io"), ("iomap", "file_io"),
    ("io_cqring_wait", "io_uring"), ("io_schedule", "file_io"), ("rpc_wait", "file_io"), ("nfs_", "file_io"),
    ("cl_sync_io_wait", "file_io"), ("ptlrpc_", "file_io"), ("jbd2_", "file_io"), ("wait_on_page", "file_io"),
    ("do_sigtimedwait", "signal"), ("__do_sys_pause", "signal"), ("handle_userfault", "page_fault"),
    ("kernel_clone", "vfork"), ("mem_cgroup", "memory"), ("__do_semtimedop", "semaphore"),
)  # fmt: skip
_LOCKING_FCNTL = (7, 38)  # F_SETLKW, F_OFD_SETLKW

# futex(2): the operation without its flags
_WAIT, _WAIT_BITSET, _LOCK_PI, _LOCK_PI2 = 0, 9, 6, 13
_PRIVATE = 0x80
_WAITERS = 0x80000000  # FUTEX_WAITERS, in the value of a robust mutex


@dataclass(frozen=True, slots=True)
class Blocked:
    """`kind` as in `Wait`, but for what only the descriptor behind `fd` tells: read, write, receive, send, connect,
    and futex: a futex word without an owner beside it. `address`: of the futex, path, pollfd array or timespec.
    `tid`: the thread or process that the call itself names, as the waiter's PID namespace counts."""

    kind: str
    fd: int = -1
    address: int = 0
    count: int = 0
    tid: int = 0
    timeout_ms: int = -1
    absolute: bool = False
    timed: bool = False
    shared: bool = False  # a futex that other processes may wait for too
    in_file_system: bool = False  # by its state or wait channel, whatever the call is
    reason: str = ""


class Seen(NamedTuple):
    name: str
    fields: list[str]  # of stat, from the state on
    wchan: str | None
    call: Call | None
    blocked: Blocked


def read_thread(thread: Mapping[str, Any], machine: str = "") -> Seen | None:
    """Parses a thread's raw lines of /proc; None where they are not those of a thread."""
    try:
        _, name, fields = split_stat(thread["stat"])
        flags = int(fields[6])
    except (KeyError, ValueError, IndexError):
        return None
    wchan: str | None = str(thread.get("wchan", ""))
    if wchan in ("", "0") and fields[0] in ("S", "D"):
        wchan = None  # a refusal (field 35 of stat is 0 there, else 1)
    call = parse_call(thread.get("syscall", ""), machine)
    return Seen(name, fields, wchan, call, blocked_in(fields[0], flags, wchan, call))


def blocked_in(state: str, flags: int, wchan: str | None, call: Call | None) -> Blocked:
    """`wchan`: None where it is not readable (a sleeping thread that shows 0 hides it)."""
    if state in ("Z", "X"):
        return Blocked("ended")
    if state in ("T", "t"):  # t: by a debugger or a reader of native frames, which lets it go on
        return Blocked("stopped" if state == "T" else "traced")
    if flags & _EXITING:
        return Blocked("exiting")
    if wchan and wchan.startswith(("get_signal", "__refrigerator")):  # the call that it was in stays readable
        return Blocked("frozen")
    if state == "R" or (call is not None and call.name == "running"):
        return Blocked("running")
    if call is None:
        if wchan is None:
            return Blocked("unreadable", reason="neither its wait channel nor its system call can be read")
        return Blocked(_by_wchan(wchan))
    if state == "D" and wchan and (kind := _by_wchan(wchan)) in ("vfork", "memory"):
        return Blocked(kind)
    if wchan and wchan.startswith("wait_for_partner"):
        return _with_arguments("fifo_open", call)
    if call.name == "":
        return Blocked("page_fault" if wchan is None or _by_wchan(wchan) == "other" else _by_wchan(wchan))
    if call.name == "restart_syscall":  # after SIGCONT: the arguments are still those of the first call
        return _with_arguments(_by_wchan(wchan or ""), call)
    if call.name == "fcntl":
        return _with_arguments("file_lock" if call.signed(1) in _LOCKING_FCNTL else "other", call)
    seen = _by_wchan(wchan or "")
    inside = state == "D" or seen == "file_io"
    kind, takes = _CALLS.get(call.name, (-1, -1, "", ""))[2:]
    kind = kind or seen
    if kind in ("read", "write") and seen in ("pipe_read", "pipe_write"):
        kind = seen  # of a FIFO too, whose descriptor shows a path as a file's does
    elif kind == "file_io" and takes not in ("path", "at") and not inside:
        kind = "other"  # close() of a socket that lingers
    return replace(_with_arguments(kind, call), in_file_system=inside)


def _by_wchan(wchan: str) -> str:
    return next((kind for start, kind in _BY_WCHAN if wchan.startswith(start)), "other")


def _with_arguments(kind: str, call: Call) -> Blocked:
    if kind == "futex":
        return _futex(call)
    if kind == "child":
        return Blocked(kind, tid=max(0, call.signed(1 if call.name == "waitid" else 0)))
    if kind == "sleep":
        late = call.name == "clock_nanosleep"
        return Blocked(kind, address=call.word(2 if late else 0), absolute=late and call.word(1) & 1 == 1)
    if kind == "poll":
        return _poll(call)
    takes = _CALLS[call.name][3] if call.name in _CALLS else ""
    if takes == "path":
        return Blocked(kind, fd=-100, address=call.word(0))  # AT_FDCWD
    if takes == "at":
        return Blocked(kind, fd=call.signed(), address=call.word(1))
    return Blocked(kind, fd=call.signed() if takes == "fd" else -1)


def _poll(call: Call) -> Blocked:
    if call.name in ("epoll_wait", "epoll_pwait", "epoll_pwait2"):
        return Blocked("poll", fd=call.signed(), timeout_ms=-1 if call.name[-1] == "2" else call.signed(3))
    if call.name in ("poll", "restart_syscall"):
        return Blocked("poll", address=call.word(0), count=call.word(1), timeout_ms=call.signed(2))
    if call.name == "ppoll":
        return Blocked("poll", address=call.word(0), count=call.word(1), timed=call.word(2) != 0)
    return Blocked(
        "poll", address=call.word(1), count=-call.signed(0), timed=call.word(4) != 0
    )  # a bitmap of fds


def _futex(call: Call) -> Blocked:
    """What glibc 2.36 does: a mutex waits with the value 2, pthread_join for the thread's id to become 0, a PI mutex
    in the kernel; conditions, semaphores and all that Python builds on them name nobody."""
    address, op, value = call.word(0), call.word(1) & 0xFFFFFFFF, call.word(2) & 0xFFFFFFFF
    operation, private = op & 0x7F, bool(op & _PRIVATE)
    timed = call.word(3) != 0
    if operation in (_LOCK_PI, _LOCK_PI2) or (operation == _WAIT and (value == 2 or value >= _WAITERS)):
        return Blocked("mutex", address=address, timed=timed, shared=not private)
    if operation == _WAIT_BITSET and not private:
        return Blocked("join" if value else "semaphore", address=address, tid=value, timed=timed)
    return Blocked("futex", address=address, timed=timed, shared=not private)
