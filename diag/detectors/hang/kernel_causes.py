"""Why a rank waits, from what the kernel shows of its threads. Names of functions play no part in it."""

from __future__ import annotations

from diag.state.wait_chain import Chain

# Why the last wait cannot end by itself.
_DEAD_ENDS = {
    "owner_ended": "lock_owner_ended",
    "only_self": "pipe_without_other_end",
    "frozen": "frozen",
    "stopped": "process_stopped",
}
# What the first thread waits for, where somebody else is to end that.
_BY_FIRST = {
    "join": "thread_does_not_end",
    "mutex": "lock_held",
    "gil": "gil_held_by_thread",
    "child": "child_does_not_end",
    "file_lock": "file_lock_held",
    **dict.fromkeys(("pipe_read", "unix_receive", "tcp_receive"), "process_is_silent"),
    **dict.fromkeys(("pipe_write", "unix_send", "tcp_send"), "process_does_not_read"),
}
# What it waits for, where nobody of this machine is to end that.
_BY_LAST = {
    **dict.fromkeys(("tcp_receive", "receive"), "peer_is_silent"),
    **dict.fromkeys(("tcp_connect", "connect"), "peer_does_not_answer"),
    **dict.fromkeys(("tcp_send", "send"), "peer_does_not_read"),
    "tcp_accept": "nobody_connects",
    "fifo_open": "fifo_without_other_end",
    "terminal": "waits_for_input",
    "file_io": "file_system_does_not_answer",
    "sleep": "sleeps",
}
KERNEL_CAUSES = frozenset(
    ("threads_wait_for_each_other", *_DEAD_ENDS.values(), *_BY_FIRST.values(), *_BY_LAST.values())
)


def kernel_cause(chain: Chain) -> str:
    """A cause of the catalogue; empty where the kernel does not say more than the stack."""
    first, last = chain.steps[0], chain.last
    if chain.end == "dead_end":
        return _DEAD_ENDS.get(last.wait.dead_end, "")
    if chain.end == "cycle":
        one_process = len({step.process.pid for step in chain.steps}) == 1
        return "threads_wait_for_each_other" if one_process else ""
    if len(chain.steps) > 1 and first.wait.kind != "vfork":
        return _BY_FIRST.get(first.wait.kind, "")
    if first.wait.others and first.wait.kind in _BY_FIRST and chain.end != "itself":
        return _BY_FIRST[first.wait.kind]  # who it is, is known; what that one does may not be read
    if last.wait.kind == "file_io" and last.wait.mount_answers:
        return ""  # slow, or one file of it
    return _BY_LAST.get(last.wait.kind, "")
