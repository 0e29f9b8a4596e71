"""What NCCL reported: of the job as a whole, and each process of it with the rank it is.

Processes are keyed by the host and pid that NCCL writes: in a log of many nodes pids repeat. Which rank one is
follows from the line, the pid, or its number in the communicator of the world.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from diag.model.observations import (
    NcclCommunicator,
    NcclEnvironment,
    NcclFact,
    NcclLine,
    NcclPlainLines,
    NcclRasListening,
    NcclVersion,
    RankFound,
    VerbsDriverMissing,
)
from diag.state.ncclprocess import KEEP, UNTIMED, NcclProcess
from diag.state.reducer import Reducer, takes

_MOST_OPEN = 100_000  # communicators under way at once, of all ranks of a node; more is no log of NCCL
_MOST_PROCESSES = 1 << 17
_MOST_LINES = 256  # that stand as evidence, with their times
_MOST_DRIVERS = 16
_KEPT_ATTEMPTS = 2  # before the present one: what their NCCL reported may be why they ended
# NCCL 2.28.9, captured on 2 x H200, 2026-11-20 (2.18: "Connected all rings" alone):
#   gpu-node-0:626:626 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 0
_CONNECTED = "Connected all "

# host, pid, and a rank where it tells two of the same host and pid apart (-1: no)
_Key = tuple[str, int, int]


@dataclass(slots=True)
class _Placement:
    """Who is who, as of `stamp`."""

    stamp: int
    living: list[NcclProcess]
    world: int
    ranks: dict[int, NcclProcess]
    rest: list[NcclProcess]
    whole: bool  # no communicator has a member that is not seen


@dataclass(slots=True)
class NcclState(Reducer):
    """Owns what NCCL's own log lines (NCCL_DEBUG=INFO) tell of the job as a whole."""

    version: str = ""  # the last that was reported: "2.28.9"
    ras_address: str = ""  # where RAS listens, as NCCL writes it
    lines: int = 0  # how many were read
    # (pid, communicator) -> time of its Init START
    _open: dict[tuple[int, str], float] = field(default_factory=dict)

    @takes(NcclLine)
    def _line(self, at: float, fact: NcclLine) -> None:
        self.lines += 1

    @takes(NcclPlainLines)
    def _plain_lines(self, at: float, fact: NcclPlainLines) -> None:
        self.lines += fact.count

    @takes(NcclVersion)
    def _version(self, at: float, fact: NcclVersion) -> None:
        self.version = fact.version

    @takes(NcclRasListening)
    def _ras_listens(self, at: float, fact: NcclRasListening) -> None:
        self.ras_address = fact.address

    @takes(NcclCommunicator)
    def _communicator(self, at: float, fact: NcclCommunicator) -> None:
        if fact.stage == "start":
            if len(self._open) < _MOST_OPEN:
                self._open[fact.line.pid, fact.comm] = at
        elif fact.stage != "topology":
            self._open.pop((fact.line.pid, fact.comm), None)

    def being_made(self, pid: int) -> float | None:
        """Since when a communicator of this process is being made; None when none is."""
        return min((at for (owner, _), at in self._open.items() if owner == pid), default=None)


@dataclass(slots=True)
class NcclProcesses(Reducer):
    """Owns all processes whose NCCL printed something, and what libibverbs itself printed."""

    by_pid: dict[_Key, NcclProcess] = field(default_factory=dict)
    # by rank, where a line tells it
    drivers_missing: dict[int | None, list[VerbsDriverMissing]] = field(default_factory=dict)
    # pid -> rank, as the job's own processes have them
    _rank_pids: dict[int, int] = field(default_factory=dict)
    _pids: dict[int, int] = field(default_factory=dict)  # rank -> pid
    # rank -> host and pid of its earlier processes
    _before: dict[int, deque[tuple[str, int]]] = field(default_factory=dict)
    _of_rank: dict[int, NcclProcess] = field(default_factory=dict)  # as lines show, the last one
    _stamp: int = 0
    _facts: int = 0
    _known: _Placement | None = None

    # -- reading ------------------------------------------------------------------------------------------

    def living(self) -> list[NcclProcess]:
        """Those of the present attempt: without the ones whose GPU another process took over later (a
        requeued job)."""
        return self._placement().living

    @property
    def told(self) -> tuple[int, int]:
        """Another value once anything but plain lines was read."""
        return self._stamp, self._facts

    def placed(self) -> dict[int, NcclProcess]:
        """Processes by their rank in the job; of two, the later one."""
        return self._placement().ranks

    def unplaced(self) -> list[NcclProcess]:
        """Those whose rank is not known."""
        return self._placement().rest

    def everywhere(self) -> list[tuple[int | None, NcclProcess]]:
        """All of them, by rank; behind those the ones whose rank is not known."""
        return [*sorted(self.placed().items()), *((None, process) for process in self.unplaced())]

    def world_size(self) -> int:
        """Of the widest communicator that NCCL reported."""
        return self._placement().world

    def hosts(self) -> set[str]:
        return {process.node for process in self.living()}

    def on_one_node(self) -> bool:
        """All members of all communicators are seen, and on one node, whatever NCCL says of nodes: with P2P
        and shared memory switched off it counts each rank of a machine as one (2.28.9, captured)."""
        addresses = {process.bootstrap.address for process in self.living() if process.bootstrap is not None}
        return len(self.hosts()) == 1 and len(addresses) <= 1 and self._placement().whole

    def _placement(self) -> _Placement:
        if self._known is None or self._known.stamp != self._stamp:
            self._known = self._place()
        return self._known

    def _place(self) -> _Placement:
        living = _living(list(self.by_pid.values()))
        world = max((comm.size for process in living for comm in process.communicators.values()), default=0)
        one_host = len({process.host for process in living}) == 1
        numbered = _numbers(living, world)
        ranks: dict[int, NcclProcess] = {}
        for process in living:
            by_pid = self._rank_pids.get(process.pid) if one_host else None
            given = (rank for rank in (process.rank, by_pid, numbered.get(id(process))) if rank is not None)
            for rank in islice(given, 1):
                ranks[rank] = process
        known = {id(process) for process in ranks.values()}
        rest = [process for process in living if id(process) not in known]
        return _Placement(self._stamp, living, world, ranks, rest, _are_whole(living))

    # -- observing ---------------------------------------------------------------------------------------

    @takes(NcclFact)
    def _fact(self, at: float, fact: NcclFact) -> None:
        self._facts += 1
        keep = KEEP.get(type(fact))
        process = self._process(fact.line)
        if keep is not None and process is not None:
            keep(process, at, fact)
            if isinstance(fact, (NcclCommunicator, NcclEnvironment)):
                self._stamp += 1
            if type(fact) not in UNTIMED and len(process.told) < _MOST_LINES:
                process.told.setdefault(fact.line, at)

    def _process(self, line: NcclLine) -> NcclProcess | None:
        rank = -1 if line.rank is None else line.rank
        if not line.host:  # `NCCL version ...` has no head below 2.24 or at level VERSION
            return self._of_rank.get(rank)
        process = self.by_pid.get((line.host, line.pid, -1))
        if process is not None and rank >= 0 and process.rank not in (None, rank):
            process = self.by_pid.get((line.host, line.pid, rank))  # nodes of one name, and pids that repeat
            if process is None:
                process = self._made(line, rank)
        elif process is None:
            process = self._made(line, -1)
        if process is not None and rank >= 0:
            if process.rank is None:
                process.rank = rank
                self._stamp += 1
            self._of_rank[rank] = process
        return process

    def _made(self, line: NcclLine, rank: int) -> NcclProcess | None:
        if len(self.by_pid) >= _MOST_PROCESSES:
            return None
        self._stamp += 1
        process = self.by_pid[line.host, line.pid, rank] = NcclProcess(line.host, line.pid)
        return process

    @takes(NcclLine)
    def _line(self, at: float, fact: NcclLine) -> None:
        process = self._process(fact)
        if process is None:
            return
        if fact.level == "WARN":
            process.warnings.append((at, fact))
            process.warnings_total += 1
        elif fact.level == "INFO":
            process.talks = True
            if fact.text.startswith(_CONNECTED):
                process.connected = True
                process.retries.clear()

    @takes(RankFound)
    def _rank_found(self, at: float, fact: RankFound) -> None:
        place = fact.placement
        before = self._pids.get(place.rank)
        if before == place.pid:
            return  # reported again: each digest of another node names its ranks
        if before is not None and self._rank_pids.get(before) == place.rank:
            del self._rank_pids[before]
        if before is not None:
            self._replaced(place.rank, place.host, before)
        self._pids[place.rank] = place.pid
        self._rank_pids[place.pid] = place.rank
        self._stamp += 1

    def _replaced(self, rank: int, host: str, pid: int) -> None:
        """An elastic launcher starts ranks anew for as long as the job lives: of attempts long past nothing
        is kept."""
        earlier = self._before.setdefault(rank, deque())
        earlier.append((host, pid))
        if len(earlier) <= _KEPT_ATTEMPTS:
            return
        host, pid = earlier.popleft()
        if pid in self._rank_pids:
            return  # the kernel gave the number out again
        short = host.partition(".")[0]  # as NCCL writes it; other nodes' processes may have the same pid
        for key in [key for key in self.by_pid if key[1] == pid and key[0].partition(".")[0] == short]:
            gone = self.by_pid.pop(key)
            self._of_rank = {rank: process for rank, process in self._of_rank.items() if process is not gone}

    @takes(VerbsDriverMissing)
    def _driver(self, at: float, fact: VerbsDriverMissing) -> None:
        known = self.drivers_missing.setdefault(fact.rank, [])
        if len(known) < _MOST_DRIVERS:
            known.append(fact)


def _living(processes: list[NcclProcess]) -> list[NcclProcess]:
    """Without those whose GPU a later process has, in communicators that are all others."""
    owner: dict[tuple[str, str], NcclProcess] = {}
    gone: set[int] = set()
    for process in processes:
        for comm in process.communicators.values():
            key = (process.node, comm.bus_id)
            before = owner.get(key, process)
            if before is not process and _ids(before) and _ids(before).isdisjoint(_ids(process)):
                gone.add(id(before))
            if comm.bus_id:
                owner[key] = process
    if not gone:
        return processes
    # A rank that ended with its attempt and whose GPU no process took (a job that went on smaller) ended with its
    # peers.
    over = set().union(*(_ids(process) for process in processes if id(process) in gone))
    return [one for one in processes if id(one) not in gone and not (_ids(one) and _ids(one) <= over)]


def _ids(process: NcclProcess) -> set[str]:
    return {comm.comm_id for comm in process.communicators.values() if comm.comm_id}


def _numbers(living: list[NcclProcess], world: int) -> dict[int, int]:
    """Process (by identity) -> its number in the communicator of the world; empty where the widest is no
    world: groups of one size, each with its own numbers (tensor parallel groups, one a node)."""
    numbers: dict[int, int] = {}
    claimed: dict[int, str] = {}
    for process in living:
        for comm in process.communicators.values():
            if comm.size != world:
                continue
            first = claimed.setdefault(comm.rank, comm.comm_id) if comm.comm_id else ""
            if first != comm.comm_id and id(process) not in numbers:
                return {}
            numbers.setdefault(id(process), comm.rank)
    return numbers


def _are_whole(living: list[NcclProcess]) -> bool:
    members: dict[tuple[str, int], set[int]] = {}
    for process in living:
        for comm in process.communicators.values():
            if comm.comm_id:
                members.setdefault((comm.comm_id, comm.size), set()).add(comm.rank)
    return bool(members) and all(len(ranks) >= size for (_, size), ranks in members.items())
