"""What a thread waits for, as a clause that follows its name: "waits for child pid 77 (`git gc`) to end"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from diag.detectors.hang.kernel_causes import is_closed
from diag.model.observations.waits import Party, ThreadWait, Wait
from diag.state.wait_chain import Chain, Step
from diag.text.units import format_bytes, format_ratio, format_seconds

_COMMAND = 60
_STREAMS = {0: "standard input", 1: "standard output", 2: "standard error"}
_MOST_STEPS = 5  # of a chain
_NO_OWNER = " (not known which thread holds it)"


# Causes whose words name the thread that holds the lock, by the program's text.
_HOLDER_KNOWN = ("lock_taken_twice",)


def format_chain(chain: Chain, name: str = "the main thread", cause: str = "") -> str:
    """The whole way as one sentence, without a full stop. `cause`: of the verdict that it is part of.

    "the main thread waits for child pid 77 (`sh upload.sh`) to end, which waits for a byte from 10.0.0.5:443 ..."
    """
    steps = chain.steps
    if len(steps) > 1 and chain.end == "no_owner" and _is_rank(steps[-1], steps[-2].wait):
        steps = steps[:-1]  # where a rank waits is reported with that rank
    clauses = [format_wait(step) for step in steps]
    if chain.behind is not None:
        before = format_chain(chain.behind, name).removesuffix(_NO_OWNER)
        name = f"{before}, probably for {name_of(chain.steps[0], chain.behind.last)}, which"
    text = f"{name} {', which '.join(clauses[:_MOST_STEPS])}"
    if len(clauses) > _MOST_STEPS:
        text += f", and so on over {len(clauses) - _MOST_STEPS} more, the last of which {clauses[-1]}"
    first = chain.steps[chain.at].process.pid
    if len({step.process.pid for step in chain.circle}) > 1:
        text += f", and so pid {first} waits for itself{': a deadlock' if is_closed(chain) else ''}"
    elif chain.end == "cycle":
        one = chain.steps[chain.at]
        whom = name if chain.at == 0 else f"pid {one.process.pid}" if one.main else _named(one.thread)
        text += f", and that one waits for {whom}: a deadlock"
    elif chain.end == "no_owner" and cause in _HOLDER_KNOWN:
        text = text.removesuffix(_NO_OWNER)
    elif chain.end == "store":
        text += ": the job's own store (MASTER_ADDR:MASTER_PORT)"
    return text


def _is_rank(step: Step, awaited: Wait) -> bool:
    return any(
        other.pid == step.process.pid and other.rank is not None and not other.below
        for other in awaited.others
    )


def format_wait(step: Step) -> str:
    wait = step.wait
    return _FORMATS.get(wait.kind, _other)(wait, step)


def thread_of(step: Step) -> str:
    return "the main thread" if step.main else _named(step.thread)


def name_of(step: Step, waiter: Step) -> str:
    """As one who waits for it says: "thread reader (tid 7)", or "child pid 9 (`sh up.sh`)"."""
    if step.process.pid == waiter.process.pid:
        return thread_of(step)
    child = "child " if step.process.parent == waiter.process.pid else ""
    thread = "" if step.main else f"{_named(step.thread)} of "
    return f"{thread}{child}{_party(Party(step.process.pid, 0, step.process.command), waiter)}"


def _named(thread: ThreadWait) -> str:
    return f"thread {thread.name} (tid {thread.tid})"


def _party(other: Party, step: Step) -> str:
    if other.rank is not None:
        return f"{'a child of ' if other.below else ''}rank {other.rank} (pid {other.pid})"
    if other.pid == step.process.pid:
        one = step.process.thread(other.tid) if other.tid else None
        if one is None:
            return "the same process"
        return "the main thread" if other.tid == other.pid else _named(one)
    command = other.command if len(other.command) <= _COMMAND else f"{other.command[: _COMMAND - 1]}…"
    return f"pid {other.pid} (`{command}`)" if command else f"pid {other.pid}"


def _parties(wait: Wait, step: Step) -> str:
    parties = list(dict.fromkeys(_party(other, step) for other in wait.others))
    shown = parties[:3]
    more = len(parties) - len(shown)
    return " or ".join([*shown, *([f"{more} more"] if more else [])])


def _receive(wait: Wait, step: Step) -> str:
    if wait.kind == "unix_receive" and (wait.dead_end or _only_itself(wait, step)):
        return f"waits for data from a socket (fd {wait.fd}) whose other end only this process itself holds"
    text = f"waits for data from {wait.peer or 'a socket'}"
    if wait.not_accepted:
        return f"{text} (fd {wait.fd}){_not_accepted(wait, step)}"
    if wait.others:
        text += f", {_parties(wait, step)}"
    if wait.peer_unread_bytes and wait.fd >= 0:
        text += f" (fd {wait.fd}; {format_bytes(wait.peer_unread_bytes)} sent there lie unread)"
    elif wait.received_bytes == 0:  # of such a connection the kernel's time is that of its beginning
        text += f" (fd {wait.fd}; no byte has come on this connection yet)"
    elif wait.silent_seconds is not None:
        text += f" (fd {wait.fd}; the last byte came {format_seconds(wait.silent_seconds)} ago)"
    elif wait.fd >= 0:
        text += f" (fd {wait.fd})"
    return text


def _send(wait: Wait, step: Step) -> str:
    if wait.not_accepted:
        return f"sends to {wait.peer or 'a socket'} (fd {wait.fd}){_not_accepted(wait, step)}"
    unsent = f"; {format_bytes(wait.unsent_bytes)} not accepted" if wait.unsent_bytes else ""
    return f"sends to {wait.peer or _parties(wait, step) or 'a socket'}, which does not read (fd {wait.fd}{unsent})"


def _connect(wait: Wait, step: Step) -> str:
    again = f" ({wait.retransmits} attempts repeated)" if wait.retransmits else ""
    if wait.not_accepted:
        return f"connects to {wait.peer or 'a socket'}{_not_accepted(wait, step)}"
    return f"connects to {wait.peer or 'a socket'}, which does not answer{again}"


def _not_accepted(wait: Wait, step: Step) -> str:
    """What that process does instead follows."""
    of = f" (one of {wait.not_accepted})" if wait.not_accepted > 1 else ""
    return f", a connection not accepted yet{of} by {_parties(wait, step) or 'who listens there'}"


def _condition(wait: Wait) -> str:
    if wait.dead_end == "alone":
        why = ": it was forked without its parent's" if wait.forked else ""
        return f"waits on a lock or condition that only another of its threads could release, and it has none{why}"
    return f"waits on a lock or condition{_NO_OWNER}"


def _mutex(wait: Wait, step: Step) -> str:
    if wait.dead_end == "alone":
        return _condition(wait)
    if wait.dead_end == "owner_ended":
        return f"waits for a lock that nobody can release: {wait.reason or 'its owner'}, which has ended"
    return f"waits for a lock held by {_parties(wait, step)}" if wait.others else "waits for a lock"


def _semaphore(wait: Wait, step: Step) -> str:
    text = f"waits for a lock between processes ({wait.path or 'unnamed'}"
    if wait.shared is None:
        return f"{text})"
    return f"{text}, in memory that {_parties(replace(wait, others=wait.shared.by), step)} has too)"


def _pipe(text: str, others: str, wait: Wait, step: Step) -> str:
    """`others`: what nobody can do, and what those who hold its other end do."""
    nobody, they = others.split("|")
    if wait.dead_end:
        return f"{_end(text, wait)} that no other process {nobody}"
    if _only_itself(wait, step):
        return f"{_end(text, wait)} whose other end only this process itself holds"
    return _end(text, wait) + (f" that {_parties(wait, step)} {they}" if wait.others else "")


def _end(text: str, wait: Wait) -> str:
    name = f"FIFO {wait.path}" if wait.path.startswith("/") else "pipe"
    return f"{text}{name} ({_STREAMS.get(wait.fd, f'fd {wait.fd}')})"


def _only_itself(wait: Wait, step: Step) -> bool:
    return wait.pids == {step.process.pid}


def _file(wait: Wait, step: Step) -> str:
    named = wait.device.startswith("/") or ":" in wait.device
    what = f"{wait.file_system} of {wait.device}" if named else wait.file_system
    where = f" on {wait.mount}" + (f" ({what})" if what else "") if wait.mount else ""
    answers = {True: ", which answers", False: ", which does not answer"}
    return f"is in {wait.call or 'a page fault'} of {wait.path or 'a file'}{where}" + (
        answers[wait.mount_answers] if wait.mount_answers is not None else ""
    )


def _held(text: str, wait: Wait, step: Step) -> str:
    return f"{text}, held by {_parties(wait, step)}" if wait.others else text


def format_locked(step: Step, holder: Step | None) -> str:
    """Of one that sleeps: "it has runs.db open, on which pid 7 (`python page.py`) holds a lock, which sleeps"."""
    does = f", which {format_wait(holder)}" if holder is not None else ""
    return f"it has {step.wait.path} open, on which {_parties(step.wait, step)} holds a lock{does}"


def _sleep(wait: Wait, step: Step) -> str:
    return "sleeps" + (
        f" ({format_seconds(max(0.0, wait.seconds))} left)" if wait.seconds is not None else ""
    )


def _poll(wait: Wait, step: Step) -> str:
    limit = f", for at most {format_seconds(wait.seconds)}" if wait.seconds is not None else ""
    if wait.watched and all(one.dead_end == "only_self" for one in wait.watched):
        return f"waits for nothing but its own wake-up ({wait.call} of fd {wait.fd}){limit}"
    if not wait.watched:
        return f"waits for events{limit}"
    peers = [one.peer or one.path or one.kind.replace("_", " ") for one in wait.watched[:3]]
    more = f" and {len(wait.watched) - 3} more" if len(wait.watched) > 3 else ""
    count = f"any of {len(wait.watched)} descriptors" if len(wait.watched) > 1 else "one descriptor"
    return f"waits for {count} ({', '.join(peers)}{more}){limit}"


def _running(wait: Wait, step: Step) -> str:
    busy = step.thread.cpu_ratio
    facts = [
        *([f"{format_ratio(busy)} of a core"] if busy is not None else []),
        *filter(None, (wait.reason,)),
    ]
    return "computes" + (f" ({'; '.join(facts)})" if facts else "")


def _other(wait: Wait, step: Step) -> str:
    if wait.call and wait.path:
        return f"is in {wait.call} of {wait.path.removeprefix('anon_inode:').strip('[]')} (fd {wait.fd})"
    where = " ".join(filter(None, (wait.call, f"({step.thread.wchan})" if step.thread.wchan else "")))
    return f"is in the kernel: {where}" if where else "waits"


_FORMATS: dict[str, Callable[[Wait, Step], str]] = {
    "tcp_receive": _receive,
    "unix_receive": _receive,
    "receive": _receive,
    "tcp_send": _send,
    "unix_send": _send,
    "send": _send,
    "tcp_connect": _connect,
    "unix_connect": _connect,
    "connect": _connect,
    "tcp_accept": lambda wait, step: (
        f"waits for somebody to connect to {wait.local}" if wait.local else "waits for a connection"
    ),
    "child": lambda wait, step: (
        f"waits for {'child ' + _parties(wait, step) if wait.others else 'a child process'} to end"
    ),
    "join": lambda wait, step: f"waits for {_parties(wait, step) or 'a thread'} to end",
    "mutex": _mutex,
    "gil": lambda wait, step: _held("waits for Python's interpreter lock", wait, step),
    "semaphore": _semaphore,
    "condition": lambda wait, step: _condition(wait),
    "pipe_read": lambda wait, step: _pipe("reads from a ", "can write to|may write to", wait, step),
    "pipe_write": lambda wait, step: _pipe("writes to a full ", "can read|does not read", wait, step),
    "fifo_open": lambda wait, step: (
        f"opens {f'FIFO {wait.path}' if wait.path else 'a FIFO'}; no process has opened its other end"
    ),
    "terminal": lambda wait, step: f"reads from {f'terminal {wait.path}' if wait.path else 'a terminal'}",
    "file_io": _file,
    "page_fault": _file,
    "file_lock": lambda wait, step: _held(f"waits for a lock on {wait.path or 'a file'}", wait, step),
    "sleep": _sleep,
    "poll": _poll,
    "running": _running,
    "stopped": lambda wait, step: "is stopped by a signal (state T)",
    "traced": lambda wait, step: "is held by a tracer (state t)",
    "frozen": lambda wait, step: "is frozen with its cgroup",
    "memory": lambda wait, step: "is held back because its cgroup is over memory.high",
    "vfork": lambda wait, step: (
        f"waits for {_parties(wait, step) or 'a child'}, which it has just forked, to run its program"
    ),
    "signal": lambda wait, step: "waits for a signal",
    "io_uring": lambda wait, step: "waits for io_uring",
    "exiting": lambda wait, step: "is exiting",
    "ended": lambda wait, step: "has ended",
    "unreadable": lambda wait, step: "waits for something that may not be read",
}
