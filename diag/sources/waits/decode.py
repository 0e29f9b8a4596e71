"""What one thread waits for, by its own line of facts alone: state, wchan and system call. No reading here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from diag.sources.host.process_tree import split_stat
from diag.sources.waits.calls import Call, parse_call

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
_BY_CALL = {
    "wait4": "child", "waitid": "child", "nanosleep": "sleep", "clock_nanosleep": "sleep", "poll": "poll",
    "ppoll": "poll", "select": "poll", "pselect6": "poll", "epoll_wait": "poll", "epoll_pwait": "poll",
    "epoll_pwait2": "poll", "connect": "connect", "accept": "tcp_accept", "accept4": "tcp_accept",
    "recvfrom": "receive", "recvmsg": "receive", "sendto": "send", "sendmsg": "send", "flock": "file_lock",
    "futex": "futex", "io_uring_enter": "io_uring", "rt_sigtimedwait": "signal", "pause": "signal", "vfork": "vfork",
    "semop": "semaphore", "semtimedop": "semaphore",
    **dict.fromkeys(("read", "pread64", "readv"), "read"), **dict.fromkeys(("write", "pwrite64", "writev"), "write"),
    **dict.fromkeys(
        ("open", "openat", "openat2", "stat", "statx", "newfstatat", "statfs", "mkdir", "mkdirat", "unlink", "unlinkat",
         "rename", "renameat2", "getdents", "getdents64", "fsync", "fdatasync", "sync", "syncfs", "fallocate", "close",
         "fstat", "sync_file_range", "mount", "execve"), "file_io"),
}  # fmt: skip
_PATH_ARGUMENT = {
    "open": 0, "stat": 0, "statfs": 0, "mkdir": 0, "unlink": 0, "rename": 0, "execve": 0,
    "openat": 1, "openat2": 1, "statx": 1, "newfstatat": 1, "mkdirat": 1, "unlinkat": 1, "renameat2": 1,
}  # fmt: skip
_FD_ARGUMENT = frozenset(
    ("read", "pread64", "readv", "write", "pwrite64", "writev", "recvfrom", "recvmsg", "sendto", "sendmsg", "connect",
     "accept", "accept4", "flock", "fcntl", "fsync", "fdatasync", "getdents", "getdents64", "fallocate", "close",
     "fstat", "syncfs", "sync_file_range", "ioctl", "io_uring_enter", "epoll_wait", "epoll_pwait", "epoll_pwait2")
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
    """A thread's raw lines of /proc; None for what is no thread's."""
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
    if state in ("T", "t"):
        return Blocked("stopped")
    if flags & _EXITING:
        return Blocked("exiting")
    if wchan and wchan.startswith(("get_signal", "__refrigerator")):  # the call that it was in stays readable
        return Blocked("frozen")
    if state == "R" or (call is not None and call.name == "running"):
        return Blocked("running")
    if call is None:
        if wchan is None:
            return Blocked("unreadable", reason="neither its wait channel nor its system call may be read")
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
    kind = _BY_CALL.get(call.name) or seen
    if kind in ("read", "write") and seen in ("pipe_read", "pipe_write"):
        kind = seen  # of a FIFO too, whose descriptor shows a path as a file's does
    elif kind == "file_io" and call.name not in _PATH_ARGUMENT and not inside:
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
    if (at := _PATH_ARGUMENT.get(call.name)) is not None:
        return Blocked(kind, fd=call.fd() if at else -100, address=call.word(at))  # -100: AT_FDCWD
    return Blocked(kind, fd=call.fd() if call.name in _FD_ARGUMENT else -1)


def _poll(call: Call) -> Blocked:
    if call.name in ("epoll_wait", "epoll_pwait", "epoll_pwait2"):
        return Blocked("poll", fd=call.fd(), timeout_ms=-1 if call.name[-1] == "2" else call.signed(3))
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
