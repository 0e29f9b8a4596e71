"""Looks, while the job starts, whether its launchers and ranks get a connection to the store at which they meet; and
while no rank runs, which launchers wait for each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from diag.agent.samplers.agents import Launcher, Launchers
from diag.agent.samplers.context import Connecting, NodeContext, NodeSampler
from diag.agent.samplers.sampler import Reporter
from diag.model import Record
from diag.model.observations import Agent
from diag.sources.collectives import store
from diag.sources.host import run
from diag.sources.host.process_tree import PROC, Processes, read_environ

# Ours: four readings before a connection that does not come is reported.
_EVERY_SECONDS = 5.0


class StoreSampler(NodeSampler):
    """`view` gives the ranks of this node, or None when the job has made steps: then no connection is looked at.
    `has_ranks`: whether any of them runs; while none does, launchers may be waiting for each other. `processes` gives
    those of the job, or None where they are the whole machine's, of which launchers are not sought."""

    name, what, sources = "store", "store", (store.SOURCE,)
    delay_seconds = _EVERY_SECONDS

    def __init__(
        self,
        reporter: Reporter,
        view: Callable[[], Sequence[Connecting] | None],
        processes: Callable[[], Processes | None] = lambda: None,
        proc: Path = PROC,
        has_ranks: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(reporter, _EVERY_SECONDS)
        self._processes = processes
        self._view = view
        self._has_ranks = has_ranks
        self._proc = proc
        self._launchers = Launchers(proc)
        # pid -> rank and place, as last reported
        self._reported: dict[int, tuple[int | None, store.Place]] = {}
        self._agents: tuple[Agent, ...] = ()
        self._tree: Processes | None = None

    @classmethod
    def of(cls, node: NodeContext) -> StoreSampler:
        return cls(node.reporter, node.connecting, node.processes, has_ranks=node.has_ranks)

    def start(self) -> None:
        self._tree = self._processes()
        super().start()

    def sample(self) -> None:
        with contextlib.suppress(OSError):  # a process that ends meanwhile
            self.look()

    def period(self, cpu: float, wall: float) -> float:
        return wall + _EVERY_SECONDS

    def tidy(self) -> None:
        self._launchers.close()

    def look(self) -> None:
        launchers = self._launchers_now()
        self._report_agents(launchers)
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
        if ranks is not None:
            for one in launchers:
                if one.connects and one.place is not None:
                    waiting.setdefault(one.pid, (None, one.place))
        for pid, (number, place) in (self._reported | waiting).items():
            found = store.connections(pid, place[1], self._proc)
            if found is not None and found.established and pid in self._reported:
                self._report(pid, number, place, pending=False, over=True)
            elif found is not None and not found.established and pid in waiting:
                self._report(pid, number, place, pending=found.pending, over=False)
                continue
            waiting.pop(pid, None)  # who left the call without a connection gave up, or ends
        self._reported = waiting

    def _launchers_now(self) -> list[Launcher]:
        if self._tree is None or self._has_ranks():
            return []
        return self._launchers.among((*self._tree.roots, *self._tree.scan()))

    def _report_agents(self, launchers: Sequence[Launcher]) -> None:
        several = [one for one in launchers if one.least_nodes > 1]  # one of one node waits for nobody
        agents = tuple(sorted((one.as_agent(self._proc) for one in several), key=lambda one: one.pid))
        if agents != self._agents:
            self._agents = agents
            self.reporter.put(run.agents_seen(agents, self.reporter.host))

    def _report(self, pid: int, rank: int | None, place: store.Place, *, pending: bool, over: bool) -> None:
        self.reporter.put(
            Record(
                store.SOURCE,
                store.payload(pid, place, pending=pending, over=over),
                rank=rank,
                host=self.reporter.host,
            )
        )
