"""How the processes of one reading are related, by the raw lines of /proc: forked copies of one another, or alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from diag.sources.host.process_tree import split_stat
from diag.sources.waits.decode import Blocked, read_thread

# Of signal(7): what a timer, a file or a child that ends sends without anybody's doing.
_ALARMS = (14, 26, 27, 29)  # SIGALRM, SIGVTALRM, SIGPROF, SIGIO
_CHILD_ENDS = 17  # SIGCHLD
_REAL_TIME = range(34, 65)
_OWN = 50  # diag's hook has every process of the job write its stacks on it (inject/_diag_hook.py): nobody else sends it
_START_CODE, _START_STACK = 23, 25  # fields 26 and 28 of stat: chosen at random when a program begins


class Relatives:
    def __init__(self, processes: dict[str, Any], machine: str) -> None:
        self._processes = processes
        self._machine = machine

    def is_alone(self, pid: int) -> bool:
        """Nothing but a signal from another process may wake its only thread from a lock that is its process's own.
        What shares its memory is a process that it was just forked from without a copy (vfork)."""
        row = self._row(pid)
        threads = list((row.get("threads") or {}).values())
        if len(threads) != 1 or row.get("threads_left_out"):
            return False
        before = (
            threads[0].get("before") or {}
        )  # else it may have begun another thread since they were listed
        if not before.get("syscall") or before["syscall"] != threads[0].get("syscall"):
            return False
        parent = self._row(self._parent(pid))
        for thread in (parent.get("threads") or {}).values():
            blocked = self.blocked(thread)
            if blocked is None or blocked.kind == "vfork":
                return False
        try:
            caught = int(row.get("caught", ""), 16)
        except ValueError:
            return False  # not known, as in records of earlier versions
        children = any(self._parent(int(other)) == pid for other in self._processes)
        woken_by = {*_ALARMS, *_REAL_TIME, *([_CHILD_ENDS] if children else [])} - {_OWN}
        return not any(caught >> (number - 1) & 1 for number in woken_by)

    def is_fork(self, pid: int) -> bool:
        """A copy of its parent, which has begun no program of its own since."""
        theirs, ours = self._layout(self._parent(pid)), self._layout(pid)
        return ours is not None and ours == theirs

    def was_given(self, pid: int, holding: Collection[int]) -> bool:
        """Whether it has a descriptor only because it was forked from a process that has it."""
        while self.is_fork(pid):
            pid = self._parent(pid)
            if pid in holding:
                return True
        return False

    def blocked(self, thread: dict[str, Any]) -> Blocked | None:
        seen = read_thread(thread, self._machine)
        return seen.blocked if seen is not None else None

    def _row(self, pid: int) -> dict[str, Any]:
        return self._processes.get(str(pid)) or {}

    def _fields(self, pid: int) -> list[str]:
        main = (self._row(pid).get("threads") or {}).get(str(pid)) or {}
        try:
            return split_stat(main["stat"])[2]
        except (KeyError, ValueError, IndexError):
            return []

    def _parent(self, pid: int) -> int:
        fields = self._fields(pid)
        return int(fields[1]) if len(fields) > 1 else 0

    def _layout(self, pid: int) -> tuple[str, str] | None:
        """None where it may not be read."""
        fields = self._fields(pid)
        if len(fields) <= _START_STACK or fields[_START_STACK] == "0":
            return None
        return fields[_START_CODE], fields[_START_STACK]
