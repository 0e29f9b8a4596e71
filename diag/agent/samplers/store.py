"""Looks, while the job starts, whether its launchers and ranks get a connection to the store at which they
meet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from diag.agent.samplers.context import Connecting, NodeContext, NodeSampler
from diag.agent.samplers.sampler import Reporter
from diag.launch.launchers import launches
from diag.model import Record
from diag.sources.collectives import store
from diag.sources.host.process_tree import PROC, Processes, is_python, read_argv, read_environ
from diag.sources.stacks.remote_stack import RemoteStacks

# Ours: four readings before a connection that does not come is reported.
_EVERY_SECONDS = 5.0
_STACK_SECONDS = 0.5
_MOST_LAUNCHERS = 16  # with shells and wrappers around them one a node is the rule
_INNERMOST = 4  # frames: nothing of Python is below the call that connects but its own argument checks


class StoreSampler(NodeSampler):
    """`view` gives the ranks of this node, or None when the job has made steps: then there is nothing to look
    at. `processes` gives those of the job, or None where they are the whole machine's, of which launchers are
    not sought."""

    name, what, sources = "store", "store", (store.SOURCE,)
    delay_seconds = _EVERY_SECONDS

    def __init__(
        self,
        reporter: Reporter,
        view: Callable[[], Sequence[Connecting] | None],
        processes: Callable[[], Processes | None] = lambda: None,
        proc: Path = PROC,
    ) -> None:
        super().__init__(reporter, _EVERY_SECONDS)
        self._processes = processes
        self._view = view
        self._proc = proc
        self._stacks = RemoteStacks(proc)
        # pid -> rank and place, as last reported
        self._reported: dict[int, tuple[int | None, store.Place]] = {}
        self._tree: Processes | None = None

    @classmethod
    def of(cls, node: NodeContext) -> StoreSampler:
        return cls(node.reporter, node.connecting, node.processes)

    def start(self) -> None:
        self._tree = self._processes()
        super().start()

    def sample(self) -> None:
        with contextlib.suppress(OSError):  # a process that ends meanwhile
            self.look()

    def period(self, cpu: float, wall: float) -> float:
        return wall + _EVERY_SECONDS

    def tidy(self) -> None:
        self._stacks.close()

    def look(self) -> None:
        ranks = self._view()
        waiting: dict[int, tuple[int | None, store.Place]] = {}
        for rank in ranks or ():
            place = (
                store.place_of_rank(read_environ(rank.pid, self._proc) or {}, rank.node)
                if rank.calls
                else None
            )
            if place is not None:
                waiting[rank.pid] = (rank.rank, place)
        if ranks is not None and not ranks:
            waiting.update({pid: (None, place) for pid, place in self._launchers()})
        for pid, (number, place) in (self._reported | waiting).items():
            found = store.connections(pid, place[1], self._proc)
            if found is not None and found.established and pid in self._reported:
                self._report(pid, number, place, pending=False, over=True)
            elif found is not None and not found.established and pid in waiting:
                self._report(pid, number, place, pending=found.pending, over=False)
                continue
            waiting.pop(pid, None)  # who left the call without a connection gave up, or ends
        self._reported = waiting

    def _launchers(self) -> list[tuple[int, store.Place]]:
        """Those that are in the call now."""
        found: list[tuple[int, store.Place]] = []
        pids = (*self._tree.roots, *self._tree.scan()) if self._tree is not None else ()
        launchers = [pid for pid in pids if is_python(pid, self._proc) and launches(self._argv(pid))][
            :_MOST_LAUNCHERS
        ]
        self._stacks.keep_only(set(launchers))
        for pid in launchers:
            place = store.place_of_launcher(self._argv(pid), read_environ(pid, self._proc) or {})
            if place is not None and self._calls(pid):
                found.append((pid, place))
        return found

    def _calls(self, pid: int) -> bool:
        dumped = self._stacks.dump(pid, _STACK_SECONDS)
        if "failed" in dumped:
            return False
        frames: list[int] = next(
            (thread["frames"] for thread in dumped["threads"] if thread["id"] == pid), []
        )
        innermost = [dumped["codes"][code] for code in frames[0::2]][-_INNERMOST:]
        return any(store.connects(name, file) for name, file in innermost)

    def _argv(self, pid: int) -> list[str]:
        return read_argv(pid, self._proc)

    def _report(self, pid: int, rank: int | None, place: store.Place, *, pending: bool, over: bool) -> None:
        self.reporter.put(
            Record(
                store.SOURCE,
                store.payload(pid, place, pending=pending, over=over),
                rank=rank,
                host=self.reporter.host,
            )
        )
