"""The launchers of the job that are in a rendezvous: torchrun's agents, by their command lines and their stacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from diag.launch.launchers import launches
from diag.launch.launchers.command import Rendezvous, read_command
from diag.model.observations import Agent
from diag.sources.collectives import store
from diag.sources.host.process_tree import PROC, is_python, read_argv, read_environ
from diag.sources.stacks.remote_stack import RemoteStacks

_STACK_SECONDS = 0.5
_MOST_LAUNCHERS = 16  # with shells and wrappers around them one a node is the rule
_INNERMOST = 4  # frames: nothing of Python is below the call that connects but its own argument checks


@dataclass(frozen=True, slots=True)
class Launcher:
    """`frames`: function and file of its main thread, outermost first; none where it may not be read."""

    pid: int
    meeting: Rendezvous
    least_nodes: int
    frames: tuple[tuple[str, str], ...]

    @property
    def place(self) -> store.Place | None:
        return store.place_of_meeting(self.meeting)

    @property
    def connects(self) -> bool:
        return any(store.connects(name, file) for name, file in self.frames[-_INNERMOST:])

    def as_agent(self, proc: Path = PROC) -> Agent:
        found = self.meeting
        where = f"{found.address}:{found.port}" if found.address else ""
        waits = any(store.meets(name, file) for name, file in self.frames) and self._is_connected(proc)
        hosts = store.hosts_connected(self.pid, found.port, proc) if where and waits else ()
        return Agent(self.pid, self.least_nodes, where, found.run_id, waits, hosts)

    def _is_connected(self, proc: Path) -> bool:
        """One that gets no connection to the store waits for that, and not yet for other agents."""
        if not self.connects:
            return True
        found = store.connections(self.pid, self.meeting.port, proc)
        return found is not None and found.established


class Launchers:
    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._stacks = RemoteStacks(proc)

    def among(self, pids: Iterable[int]) -> list[Launcher]:
        """Those that run now, with their stacks."""
        known = [*self._known(pids)][:_MOST_LAUNCHERS]
        self._stacks.keep_only({pid for pid, _, _ in known})
        return [Launcher(pid, meeting, least, self._frames(pid)) for pid, meeting, least in known]

    def close(self) -> None:
        self._stacks.close()

    def _known(self, pids: Iterable[int]) -> Iterator[tuple[int, Rendezvous, int]]:
        for pid in pids:
            argv = read_argv(pid, self._proc) if is_python(pid, self._proc) else []
            if not argv or not launches(argv):
                continue
            command = read_command(argv, read_environ(pid, self._proc) or {}, read_text=lambda path: None)
            least = command.options.get("--nnodes", "").partition(":")[0]
            yield pid, command.meeting, int(least) if least.isdecimal() else command.meeting.nodes

    def _frames(self, pid: int) -> tuple[tuple[str, str], ...]:
        dumped = self._stacks.dump(pid, _STACK_SECONDS)
        if "failed" in dumped:
            return ()
        frames: list[int] = next(
            (thread["frames"] for thread in dumped["threads"] if thread["id"] == pid), []
        )
        return tuple((name, file) for name, file in (dumped["codes"][code] for code in frames[0::2]))
