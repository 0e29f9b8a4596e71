"""Waits for a job to appear in the process namespace, and takes it: `diag watch` where no pid was given."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from diag.agent.process_namespace import JobSeen, Key, Namespace, NamespaceScan
from diag.agent.rank_finder import Found, RankFinder
from diag.launch.launchers.secrets import redacted
from diag.sources.host.process_tree import Processes, Tree, ancestors, loads_torch, sees_machine
from diag.text.errors import DiagError
from diag.text.units import format_count, format_ranks

_LONGEST_WORDS = 140
_TWO_JOBS_SECONDS = 5.0  # ranks of a job that ends and of the next may be there together for a moment


@dataclass(slots=True)
class _Named:
    """Processes of one job that the namespace names, anew at each scan."""

    pids: Callable[[], Iterable[int]]
    roots: tuple[int, ...] = ()

    def scan(self, full: bool = False) -> tuple[int, ...]:
        return tuple(self.pids())


@dataclass(frozen=True, slots=True)
class Chosen:
    """`root` is the process whose end is the job's; None: it ends with its last rank. `lone`: it has no ranks
    but itself."""

    pid: int
    root: int | None
    argv: list[str]
    ranks: tuple[int, ...]
    processes: Processes
    lone: Found | None = None
    members: frozenset[int] = frozenset()  # processes that are known to be its own

    @property
    def words(self) -> str:
        """Its command without the program's folder, as much of it as a line has room for."""
        words = " ".join([self.argv[0].rpartition("/")[2], *self.argv[1:]])
        return words if len(words) <= _LONGEST_WORDS else f"{words[: _LONGEST_WORDS - 4]} ..."


@dataclass(frozen=True, slots=True)
class SeenJobs:
    """What trains here by one look: `jobs` have ranks; `others` are launchers that have started none (they wait for
    other nodes) and single processes with torch; `foreign` are launchers that may not be read, and whose they are;
    `hidden` counts all processes that may not be read."""

    jobs: tuple[Chosen, ...] = ()
    others: tuple[Chosen, ...] = ()
    foreign: tuple[tuple[int, int | None], ...] = ()
    hidden: int = 0

    def holding(self, pids: Collection[int]) -> tuple[Chosen, ...]:
        """Those of `jobs` that have one of these processes."""
        return tuple(job for job in self.jobs if not job.members.isdisjoint(pids))


@dataclass(slots=True)
class _Candidate:
    since: float
    pids: tuple[int, ...] = ()
    finder: RankFinder = field(init=False)
    ranks: dict[int, Found] = field(default_factory=dict)


class JobSearch:
    """Call `look` about once a second until it gives the job."""

    def __init__(
        self,
        host: str,
        lone_seconds: float,
        namespace: Namespace | None = None,
        clock: Callable[[], float] = time.monotonic,
        shared: bool | None = None,
    ) -> None:
        self._host = host
        self._lone_seconds = lone_seconds
        self._namespace = namespace or Namespace()
        self._clock = clock
        self._shared = sees_machine(self._namespace.proc) is False if shared is None else shared
        self._candidates: dict[frozenset[Key], _Candidate] = {}
        self._two_since: float | None = None
        self._lone: tuple[int, int, float] | None = None  # pid, start, since when
        self._last: NamespaceScan | None = None

    def look(self) -> Chosen | None:
        """Raises DiagError where several jobs run."""
        scan = self._last = self._namespace.scan()
        ready = [
            (job, candidate) for job in scan.jobs if self._is_ready(job, candidate := self._candidate(job))
        ]
        if len(ready) > 1:
            ready = [one for one in ready if not one[0].only_tasks or self._trains(one[1])] or ready
        if len(ready) > 1:
            self._two_since = self._two_since or self._clock()
            if self._clock() - self._two_since >= _TWO_JOBS_SECONDS:
                raise self._several([candidate for _, candidate in ready], scan)
            return None
        self._two_since = None
        if ready:
            return self._chosen(*ready[0], scan)
        return self._without_ranks(scan) if not scan.jobs else None

    def seen(self) -> SeenJobs:
        """All that trains now: one look, which chooses nothing. Tasks of srun and mpirun count where they load torch."""
        space, scan = self._namespace, self._namespace.scan()
        jobs = [
            self._chosen(job, candidate, scan)
            for job in scan.jobs
            if self._is_ready(job, candidate := self._candidate(job))
        ]
        ranks = {pid for job in scan.jobs for pid in job.pids}
        above = {one for pid in ranks for one in ancestors(pid, scan.processes)}
        launchers = [pid for pid in space.launchers(scan) if pid not in ranks | above]
        known = ranks | {*launchers, *(job.root for job in jobs if job.root is not None)}
        alone = [
            pid
            for pid in space.alone(scan)
            if pid not in above and not known & {pid, *ancestors(pid, scan.processes)}
        ]
        return SeenJobs(
            tuple(jobs),
            tuple(self._without_rank(pid) for pid in (*launchers, *alone)),
            tuple((pid, space.owner(pid)) for pid in space.hidden_launchers(scan)),
            len(scan.hidden),
        )

    def _without_rank(self, pid: int) -> Chosen:
        argv = redacted(self._namespace.argv(pid)) or [f"pid {pid}"]
        return Chosen(pid, pid, argv, (), Tree(pid, self._namespace.proc), members=frozenset({pid}))

    def state(self) -> tuple[str, str]:
        """What is seen while nothing was found, and what to do where that is why."""
        scan = self._last
        if scan is None or not scan.seen:
            return "no processes but diag's own are visible", (
                "share the job's processes: `shareProcessNamespace: true` in the pod's spec, `pid: \"service:NAME\"` in compose"
                if self._shared
                else "start the job, or name it: diag watch --pid PID"
            )
        seen = format_count(len(scan.seen), "process", "processes")
        if not scan.hidden:
            return (
                f"no rank yet; {seen} seen, all readable",
                "",
            )
        if not self._shared:  # on a machine there are always others
            return (
                f"no rank yet; {seen} seen, {len(scan.hidden)} of other users unreadable",
                "if the job is another user's, run diag as that user; or name it: diag watch --pid PID",
            )
        owners = sorted({uid for pid in scan.hidden if (uid := self._namespace.owner(pid)) is not None})
        whose = f" (of uid {', '.join(map(str, owners[:5]))})" if owners else ""
        return (
            f"no rank yet; {seen} seen, {len(scan.hidden)} unreadable{whose}: "
            "diag needs the same user or SYS_PTRACE"
        ), _remedy(owners)

    # -- judging ------------------------------------------------------------------------------------------

    def _candidate(self, job: JobSeen) -> _Candidate:
        known = next((self._candidates.pop(keys) for keys in list(self._candidates) if keys & job.keys), None)
        if known is None:
            known = new = _Candidate(self._clock())
            new.finder = RankFinder(_Named(lambda: new.pids), self._host, self._namespace.proc)
        self._candidates[job.keys] = known
        known.pids = job.pids
        for found in known.finder.scan():
            known.ranks[found.placement.rank] = found
        known.ranks = {rank: found for rank, found in known.ranks.items() if found.placement.pid in job.pids}
        return known

    def _is_ready(self, job: JobSeen, candidate: _Candidate) -> bool:
        """srun and mpirun number whatever they start: monitors too. One is a trainer when it loads torch, or
        stays alone."""
        if not candidate.ranks:
            return False
        return (
            not job.only_tasks
            or self._trains(candidate)
            or self._clock() - candidate.since >= self._lone_seconds
        )

    def _trains(self, candidate: _Candidate) -> bool:
        return any(
            loads_torch(found.placement.pid, self._namespace.proc) for found in candidate.ranks.values()
        )

    def _chosen(self, job: JobSeen, candidate: _Candidate, scan: NamespaceScan) -> Chosen:
        ranks = {rank: found.placement for rank, found in sorted(candidate.ranks.items())}
        pids = tuple(place.pid for place in ranks.values())
        whole = all(place.world_size == 1 for place in ranks.values())
        root = self._namespace.root_of(pids, scan, whole=whole)
        processes: Processes = Tree(root, self._namespace.proc) if root is not None else self._of(job.keys)
        pid = root or pids[0]
        argv = redacted(self._namespace.argv(pid)) or [f"pid {pid}"]
        members = frozenset(job.pids) | ({root} if root is not None else set())
        return Chosen(pid, root, argv, tuple(ranks), processes, members=members)

    def _of(self, keys: frozenset[Key]) -> _Named:
        """Of a job without a process that all of it hangs below."""

        def pids() -> Iterator[int]:
            for job in self._namespace.scan().jobs:
                if job.keys & keys:
                    yield from job.pids

        return _Named(pids)

    def _without_ranks(self, scan: NamespaceScan) -> Chosen | None:
        """A launcher that waits for other nodes; or `python train.py` on one GPU, in a namespace of
        containers alone: on a machine any Python program might be it."""
        launchers = self._namespace.launchers(scan)
        alone = launchers or (self._namespace.alone(scan) if self._shared else ())
        if len(alone) != 1:
            return None
        pid, ticks = alone[0], scan.processes[alone[0]].ticks
        if self._lone is None or self._lone[:2] != (pid, ticks):
            self._lone = (pid, ticks, self._clock())
        if self._clock() - self._lone[2] < self._lone_seconds:
            return None
        if launchers:
            root = self._namespace.root_of((pid,), scan, whole=True) or pid
            return Chosen(
                root, root, redacted(self._namespace.argv(root)), (), Tree(root, self._namespace.proc)
            )
        processes = Tree(pid, self._namespace.proc)
        found = RankFinder(processes, self._host, self._namespace.proc).sole_process()
        argv = redacted(self._namespace.argv(pid))
        return None if found is None else Chosen(pid, pid, argv, (0,), processes, found)

    def _several(self, candidates: list[_Candidate], scan: NamespaceScan) -> DiagError:
        jobs = []
        for candidate in candidates:
            ranks = {rank: found.placement.pid for rank, found in sorted(candidate.ranks.items())}
            pid = self._namespace.root_of(tuple(ranks.values()), scan) or next(iter(ranks.values()))
            words = " ".join(redacted(self._namespace.argv(pid)))[:100]
            jobs.append((pid, f"pid {pid} ({words}): {format_ranks(list(ranks))}"))
        return DiagError(
            f"{len(jobs)} jobs run here, and none was chosen: " + "; ".join(text for _, text in jobs),
            hint=" or ".join(f"diag watch --pid {pid}" for pid, _ in jobs),
            exit_code=2,
        )


def _remedy(owners: list[int]) -> str:
    """`owners` of the processes that may not be read."""
    ours, others = os.getuid(), [uid for uid in owners if uid != os.getuid()]
    if others and ours != 0:
        return (
            f"in the container of diag `securityContext: {{runAsUser: {others[0]}, capabilities: {{add: [SYS_PTRACE]}}}}` "
            f"(Kubernetes), `--user {others[0]} --cap-add SYS_PTRACE` (docker, podman)"
        )
    return (
        "in the container of diag `securityContext: {capabilities: {add: [SYS_PTRACE]}}` (Kubernetes), "
        "`--cap-add SYS_PTRACE` (docker, podman)"
    )
