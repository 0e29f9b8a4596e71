"""CMD's whole tree of processes, found by what the kernel says of each, and ended as a whole: TERM, then KILL.

A child that left its parent, its process group and its session (a daemon's double fork) is still below the carrier:
the carrier is the *subreaper* of all that CMD starts (prctl(2)), so what loses its parent becomes the carrier's own
child. Not below it, and never touched: what CMD asked another service to start (a container engine, ssh, srun).
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_LOOK_SECONDS = 0.05  # ours: between two looks at what is left
# Ours: the kernel ends a killed process within milliseconds, unless it is in a call that cannot be interrupted.
KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """A row of /proc. `start` (clock ticks since boot) tells it from another that gets its pid later."""

    pid: int
    start: int
    parent: int
    group: int
    session: int
    state: str
    name: str

    @property
    def key(self) -> tuple[int, int]:
        return (self.pid, self.start)

    @property
    def lives(self) -> bool:
        return self.state not in "ZX"

    def __str__(self) -> str:
        return f"{self.pid} ({self.name})"


Table = Mapping[int, Process]


def become_subreaper() -> bool:
    """Whether orphans of what this process starts now come to it."""
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):  # a C library without it
        return False


def read_table(proc: str = "/proc") -> dict[int, Process]:
    """All processes that can be seen now. Raises OSError where /proc itself cannot be read."""
    found = {}
    for name in os.listdir(proc):
        if name.isdecimal() and (process := read_process(int(name), proc)) is not None:
            found[process.pid] = process
    return found


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """None where it has gone."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")
    except OSError:
        return None
    fields = rest.split()  # from the third on, of proc(5): the state
    if len(fields) < 20:
        return None
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    state, parent, group, session = fields[0].decode(), *map(int, fields[1:4])
    return Process(pid, int(fields[19]), parent, group, session, state, name)


def below(table: Table, roots: Iterable[int]) -> set[int]:
    """The roots that live, and all their descendants."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    left = [pid for pid in roots if pid in table]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, ())
    return found


def members(
    table: Table, carrier: int, *, spared: Collection[tuple[int, int]], is_marked: Callable[[int], bool]
) -> list[Process]:
    """CMD's tree: all that is below the carrier, and what shares a process group or a session with a part of it that the
    carrier is not in itself. Without `spared` (diag's own processes) and all below them.

    To a carrier that is the first process of its container (pid 1) orphans of others come as well, such as what somebody
    left behind in `kubectl exec`: an adopted child then has to be `is_marked` as CMD's, or be related to a part of the tree.
    """
    me = table.get(carrier)
    if me is None:
        return []
    ours = below(table, [pid for pid, start in spared if pid in table and table[pid].start == start])
    children = [one.pid for one in table.values() if one.parent == carrier and one.pid not in ours]
    if carrier == 1:
        children = [pid for pid in children if is_marked(pid)]
    tree = below(table, children) - ours
    # what was orphaned where the carrier is no subreaper
    own = {pid for pid in table if pid not in tree}  # a group that another leads is that one's
    groups = {table[pid].group for pid in tree} - {me.group, 0} - own
    sessions = {table[pid].session for pid in tree} - {me.session, 0} - own
    kin = [one.pid for one in table.values() if one.group in groups or one.session in sessions]
    tree |= below(table, kin) - ours
    return [table[pid] for pid in sorted(tree - {carrier}) if table[pid].lives]


def send(process: Process, number: int) -> bool | None:
    """Whether it was sent; None where it has gone, or its pid is another's by now. Never to another process: the signal
    goes by a descriptor that was opened before its start was looked at."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    except (OSError, AttributeError):  # before Linux 5.3, or refused by a seccomp profile
        return _send_by_pid(process, number)
    try:
        if not _is_same(process):
            return None
        signal.pidfd_send_signal(fd, number)
        return True
    except ProcessLookupError:
        return None
    except PermissionError:
        return False
    except OSError:  # refused by a seccomp profile
        return _send_by_pid(process, number)
    finally:
        os.close(fd)


def _send_by_pid(process: Process, number: int) -> bool | None:
    try:
        if not _is_same(process):
            return None
        os.kill(process.pid, number)
        return True
    except ProcessLookupError:
        return None
    except PermissionError:
        return False


def _is_same(process: Process) -> bool:
    now = read_process(process.pid)
    return now is not None and now.start == process.start


@dataclass(slots=True)
class Ending:
    """How it went. `left` are processes that still live; `refused` those that may not be signalled, and then nothing was
    sent to any."""

    asked: int = 0  # processes that were sent TERM
    killed: int = 0
    refused: Sequence[Process] = ()
    left: Sequence[Process] = ()
    _asked: set[tuple[int, int]] = field(default_factory=set)
    _killed: set[tuple[int, int]] = field(default_factory=set)

    @property
    def whole(self) -> bool:
        """Nothing of the tree is left."""
        return not self.refused and not self.left


def end_tree(
    look: Callable[[], list[Process]],
    grace: float,
    *,
    say: Callable[[str, Mapping[str, object]], object] = lambda step, facts: None,
    reap: Callable[[], object] = lambda: None,
    kill_seconds: float = KILL_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> Ending:
    """TERM to every process that `look` finds (and CONT, which a stopped one needs to take it), those that are started
    meanwhile too; KILL to what is left after `grace` seconds, until none is. All or nothing: where one of them may not be
    signalled (another user's), none is.

    `reap` is called between two looks. `say` gets each step: term, kill, and what is known of it.
    """
    ending = Ending()
    first = look()
    ending.refused = [one for one in first if send(one, 0) is False]
    if ending.refused:
        return ending
    say("term", {"processes": len(first), "seconds": grace})
    end = clock() + grace
    while left := _signalled(look, signal.SIGTERM, ending._asked):
        if clock() >= end:
            break
        reap()
        pause(_LOOK_SECONDS)
    ending.asked = len(ending._asked)
    if left:
        say("kill", {"processes": len(left), "names": [str(one) for one in left[:8]]})
        end = clock() + kill_seconds
        while left := _signalled(look, signal.SIGKILL, ending._killed):
            if clock() >= end:
                break
            reap()
            pause(_LOOK_SECONDS)
    ending.killed, ending.left = len(ending._killed), left
    reap()
    return ending


def _signalled(
    look: Callable[[], list[Process]], number: int, already: set[tuple[int, int]]
) -> list[Process]:
    """What lives now, each sent this signal once."""
    found = look()
    for one in found:
        if one.key not in already:
            already.add(one.key)
            if send(one, number) and number != signal.SIGKILL:
                send(one, signal.SIGCONT)
    return found


def reap_adopted(but: Collection[int]) -> int:
    """Wait for orphans that came to this process and have ended, so that they do not stay as zombies; how many they were.
    `but`: children that somebody else waits for."""
    count = 0
    for pid in _ended_children():
        if pid in but:
            continue
        try:
            count += os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            pass
    return count


def _ended_children() -> Iterator[int]:
    me = os.getpid()
    try:
        table = read_table()
    except OSError:
        return
    yield from (one.pid for one in table.values() if one.parent == me and one.state == "Z")
