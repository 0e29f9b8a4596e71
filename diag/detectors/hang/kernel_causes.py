"""Why a rank waits, from what the kernel shows of its threads: the cause, and what to do about it. Names of functions
play no part in it."""

from __future__ import annotations

from dataclasses import dataclass

from diag.state.wait_chain import Chain, Step

_COMMAND = 80


@dataclass(frozen=True, slots=True)
class KernelCause:
    """`do`: {peer}, {pid}, {command}, {path}, {mount}, {thread}, {fd} are those of the last step of the chain."""

    cause: str
    do: str


_DEAD_ENDS = {
    "owner_ended": KernelCause(
        "lock_owner_ended",
        "The lock that {ranks} [waits|wait] for was taken by a thread that has ended since: nobody can release it. Release "
        "it on every path out of that thread (`with lock:`), or do not fork or end threads that hold it.",
    ),
    "only_self": KernelCause(
        "pipe_without_other_end",
        "{Ranks} [waits|wait] at a pipe or socket (fd {fd}) whose other end no other process holds, and no thread of its own is "
        "left to use it: who should have answered has ended, or was never started. Close the unused end after a fork, and "
        "see why the other side is gone.",
    ),
    "frozen": KernelCause(
        "frozen",
        "Process {pid} is frozen with its cgroup: `docker unpause`, or write 0 to cgroup.freeze (v1: THAWED to "
        "freezer.state) of its cgroup; find who froze it (a checkpoint of the container, a batch system that suspends jobs).",
    ),
    "stopped": KernelCause(
        "process_stopped",
        "Process {pid} is stopped by a signal (state T): `kill -CONT {pid}` lets it go on; find who sent SIGSTOP.",
    ),
}
_CYCLE = KernelCause(
    "threads_wait_for_each_other",
    "Threads of {ranks} wait for locks that the next of them holds: take the locks in one order, or do not hold one while "
    "taking the other.",
)
# What the main thread waits for, where somebody else is to end that.
_BY_FIRST = {
    "join": KernelCause(
        "thread_does_not_end",
        "{Ranks} [waits|wait] for thread {thread} to end: see what that one waits for (above), and give the join a timeout.",
    ),
    "mutex": KernelCause(
        "lock_held",
        "{Ranks} [waits|wait] for a lock that thread {thread} holds: see what that one does (above), and do not hold the "
        "lock meanwhile.",
    ),
    "gil": KernelCause(
        "gil_held_by_thread",
        "Thread {thread} of {ranks} holds Python's interpreter lock and does not run Python (above what it does): its C code "
        "must release the lock around calls that may block. Until then no thread of the process runs.",
    ),
    "child": KernelCause(
        "child_does_not_end",
        "{Ranks} [waits|wait] for process {pid} (`{command}`): see what that one waits for (above), and start it with a "
        "timeout (subprocess.run(timeout=...)).",
    ),
    "file_lock": KernelCause(
        "file_lock_held",
        "{Ranks} [waits|wait] for a lock on a file that process {pid} (`{command}`) holds: end that one, or see why it does "
        "not get on.",
    ),
    **dict.fromkeys(
        ("pipe_read", "unix_receive", "tcp_receive"),
        KernelCause(
            "process_is_silent",
            "{Ranks} [waits|wait] for an answer of process {pid} (`{command}`): see what that one does (above).",
        ),
    ),
    **dict.fromkeys(
        ("pipe_write", "unix_send", "tcp_send"),
        KernelCause(
            "process_does_not_read",
            "{Ranks} [writes|write] to process {pid} (`{command}`), which does not read: see what that one does (above). "
            "A program whose output nobody reads stops when the pipe is full.",
        ),
    ),
}
# What it waits for, where nobody of this machine is to end that.
_BY_LAST = {
    **dict.fromkeys(
        ("tcp_receive", "receive"),
        KernelCause(
            "peer_is_silent",
            "{Ranks} [waits|wait] for data from {peer}, which has sent none: see whether that service lives and answers, "
            "and give the call a timeout.",
        ),
    ),
    **dict.fromkeys(
        ("tcp_connect", "connect"),
        KernelCause(
            "peer_does_not_answer",
            "{Ranks} [tries|try] to connect to {peer}, which does not answer: see whether that service lives, and whether a "
            "firewall drops the packets between (`nc -vz` from this host).",
        ),
    ),
    **dict.fromkeys(
        ("tcp_send", "send"),
        KernelCause(
            "peer_does_not_read",
            "{Ranks} [sends|send] to {peer}, which does not read what it gets: see whether that service lives.",
        ),
    ),
    "tcp_accept": KernelCause(
        "nobody_connects",
        "{Ranks} [waits|wait] for a connection that nobody makes: see whether the other side was started, and with which "
        "address.",
    ),
    "fifo_open": KernelCause(
        "fifo_without_other_end",
        "{Ranks} [opens|open] the FIFO {path}, whose other end no process has opened: start who should, or see why that one "
        "ended.",
    ),
    "terminal": KernelCause(
        "waits_for_input",
        "{Ranks} [waits|wait] for somebody to type into {path}: give the answer as an option or a variable, or redirect "
        "stdin from /dev/null.",
    ),
    "file_io": KernelCause(
        "file_system_does_not_answer",
        "{Ranks} [is|are] held up by the file system of {path}: see whether the server or daemon behind {mount} lives "
        "(`stat -f` in another shell may hang too; server messages in dmesg).",
    ),
    "sleep": KernelCause(
        "sleeps",
        "{Ranks} [sleeps|sleep] at the line shown: a retry loop, or a wait of fixed length? See what it waits for.",
    ),
}


def kernel_cause(chain: Chain) -> KernelCause | None:
    """None where the kernel does not say more than the stack."""
    first, last = chain.steps[0], chain.last
    if chain.end == "dead_end":
        return _DEAD_ENDS.get(last.wait.dead_end)
    if chain.end == "cycle":
        return _CYCLE if len({step.process.pid for step in chain.steps}) == 1 else None
    if len(chain.steps) > 1 and first.wait.kind != "vfork":
        return _BY_FIRST.get(first.wait.kind)
    if first.wait.others and first.wait.kind in _BY_FIRST and chain.end != "itself":
        return _BY_FIRST[first.wait.kind]  # who it is, is known; what that one does may not be read
    if last.wait.kind == "file_io" and last.wait.mount_answers:
        return None  # slow, or one file of it
    return _BY_LAST.get(last.wait.kind)


def placeholders(chain: Chain) -> dict[str, str | int]:
    """The values for the placeholders of an advice."""
    step = chain.steps[1] if len(chain.steps) > 1 and chain.end != "dead_end" else chain.last
    wait = step.wait
    other = chain.steps[0].wait.others[0] if chain.steps[0].wait.others else None
    pid = step.process.pid if len(chain.steps) > 1 or other is None else other.pid
    command = step.process.command if len(chain.steps) > 1 or other is None else other.command
    return {
        "peer": wait.peer or "the other side",
        "pid": pid,
        "command": command[:_COMMAND],
        "path": wait.path or "the file shown",
        "mount": wait.mount or "it",
        "fd": wait.fd,
        "thread": _thread(step),
    }


def _thread(step: Step) -> str:
    return f"{step.thread.name} (tid {step.thread.tid})"
