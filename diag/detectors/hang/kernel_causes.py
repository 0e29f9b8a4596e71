"""Why a rank waits, from what the kernel shows of its threads. Names of functions play no part in it."""

from __future__ import annotations

from diag.model.observations.waits import Wait
from diag.state.wait_chain import Chain, Step

# Why the last wait cannot end by itself.
_DEAD_ENDS = {
    "owner_ended": "lock_owner_ended",
    "only_self": "pipe_without_other_end",
    "alone": "lock_of_a_lone_thread",
    "frozen": "frozen",
    "stopped": "process_stopped",
}
_WITHOUT_OTHERS = {"fifo_open": "fifo_without_other_end", "terminal": "waits_for_input"}
# What the first thread waits for, where somebody else is to end that.
_BY_FIRST = {
    "join": "thread_does_not_end",
    "mutex": "lock_held",
    "gil": "gil_held_by_thread",
    "child": "child_does_not_end",
    "file_lock": "file_lock_held",
    **dict.fromkeys(("pipe_read", "unix_receive", "tcp_receive"), "process_is_silent"),
    "pipe_write": "process_does_not_read",
    **dict.fromkeys(("unix_send", "tcp_send"), "process_takes_nothing"),
}
_RECEIVES = ("tcp_receive", "receive", "poll")
# What it waits for, where nobody of this machine is to end that.
_BY_LAST = {
    **dict.fromkeys(("tcp_receive", "receive"), "peer_is_silent"),
    **dict.fromkeys(("tcp_connect", "connect"), "peer_does_not_answer"),
    **dict.fromkeys(("tcp_send", "send"), "peer_does_not_read"),
    "tcp_accept": "nobody_connects",
    **_WITHOUT_OTHERS,
    "file_io": "file_system_does_not_answer",
    "sleep": "sleeps",
}
_READS = ("pipe_read", "unix_receive")
_WRITES = ("pipe_write", "unix_send")
# Of two processes in a circle, by how many of them read and how many write.
_BY_CIRCLE = {(2, 0): "both_read", (1, 1): "pipes_read_in_turn", (0, 2): "both_write"}
# Of a child to blame, what a stack says in general; the kernel's proof says why.
_OF_A_CHILD = ("dataloader_worker_blocked", "checkpoint_writer_blocked")
# What a silent peer is to blame for; not where that is another rank, or the store at which ranks wait for each other.
_OF_A_PEER = (
    "peer_is_silent", "peer_does_not_read", "process_is_silent", "process_does_not_read", "process_takes_nothing",
)  # fmt: skip


def kernel_cause(chain: Chain) -> str:
    """A cause of the catalogue; empty where the kernel does not say more than the stack."""
    first, last = chain.steps[0], chain.last
    if chain.end == "dead_end":
        return "forked_without_threads" if last.wait.forked else _DEAD_ENDS.get(last.wait.dead_end, "")
    if first.wait.not_accepted:
        return "connection_not_accepted"
    if chain.end == "cycle" and len({step.process.pid for step in chain.steps}) == 1:
        return "threads_wait_for_each_other"
    if is_closed(chain):
        return (
            circle_cause(chain)
            if chain.at == 0 or first.wait.kind != "pipe_write"
            else "reader_waits_for_itself"
        )
    if chain.end == "computes" and first.wait.kind == "child":
        return "child_computes"
    if len(chain.steps) > 1 and first.wait.kind != "vfork":
        return _BY_FIRST.get(first.wait.kind, "")
    if chain.end == "store" and last.wait.kind in _RECEIVES:
        return "waits_at_store"
    if first.wait.others and first.wait.kind in _BY_FIRST and chain.end != "itself":
        return _BY_FIRST[first.wait.kind]  # who it is, is known; what that one does may not be read
    if last.wait.kind == "file_io" and last.wait.mount_answers:
        return ""  # slow, or one file of it
    return _BY_LAST.get(last.wait.kind, "")


def cause_of_dead_end(wait: Wait) -> str:
    """Of one that cannot end by itself, or that nobody is known who could end; empty for any other."""
    return _DEAD_ENDS.get(wait.dead_end) or ("" if wait.others else _WITHOUT_OTHERS.get(wait.kind, ""))


def is_closed(chain: Chain) -> bool:
    """A circle of several processes, where no other thread of theirs, and no other process, could use the pipes at
    which they wait."""
    return len({step.process.pid for step in chain.circle}) > 1 and all(map(_is_bound, chain.circle))


def circle_cause(chain: Chain) -> str:
    """Of processes that wait for each other."""
    circle = chain.circle
    kinds = [step.wait.kind for step in circle] if len(circle) == 2 else []
    reads, writes = (sum(kind in known for kind in kinds) for known in (_READS, _WRITES))
    return _BY_CIRCLE.get((reads, writes), "processes_wait_for_each_other")


def reader_and_writer(chain: Chain) -> tuple[Step, Step] | None:
    """Of two in a circle, one of which reads while the other writes."""
    if circle_cause(chain) != "pipes_read_in_turn":
        return None
    first, second = chain.circle
    return (first, second) if first.wait.kind in _READS else (second, first)


def _is_bound(step: Step) -> bool:
    """To one other, whatever time passes."""
    wait = step.wait
    if len(wait.pids) != 1 or wait.seconds is not None:
        return False
    if wait.kind in ("child", "join", "mutex"):
        return not wait.timed
    return wait.others[0].only_main or wait.kind == "gil"


def explains(cause: str, chain: Chain, by_stacks: str, *, is_open: bool) -> bool:
    """Whether what the kernel says outranks the cause that the stacks gave. `is_open`: that says no more than where a rank
    is."""
    if by_stacks in _OF_A_CHILD:
        return chain.end == "dead_end"
    return is_open and not (cause in _OF_A_PEER and _leads_to_rank(chain))


def _leads_to_rank(chain: Chain) -> bool:
    """By whom the first one waits for: what that one waits for in its turn is another matter."""
    first = chain.steps[0].wait
    if first.kind in _WRITES:
        return False  # whoever has its other end does not read it
    return chain.end == "store" or any(other.rank is not None for other in first.others)
