"""The ranks of the job: who they are, which processes they were before, and what all of them do together.

A process is one rank at a time. Where it turns out to be another than it was taken for, what was read under the
wrong number is dropped: no number has samples of two processes.

What is known of one rank is its `RankState`; here observations find their rank.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView

from diag.model import Placement
from diag.model.observations import (
    CallHistory,
    CgroupMemory,
    CgroupPids,
    ChildEnded,
    EnvironmentSeen,
    FlightRecorder,
    GpuSample,
    LimitsSeen,
    LogLine,
    NativeFramesRead,
    NcclPlainLines,
    NodeDigest,
    Observation,
    PlainLines,
    ProcessTree,
    QuietLine,
    RankDigest,
    RankExited,
    RankFound,
    RankShared,
    RankWithdrawn,
    RdmaAccess,
    RecorderAsked,
    RunStarted,
    SharedMemory,
    StackSample,
    StoreWaited,
    WorkerFailureReported,
)
from diag.model.observations.waits import WaitsRead
from diag.state.calls_apart import CallsApart, first_apart
from diag.state.cluster import Cluster
from diag.state.printed import Printed
from diag.state.rank import RankState
from diag.state.rank_view import STRONG, RankView
from diag.state.reducer import (
    AttemptBegan,
    MainStackRead,
    RankDropped,
    RankStarted,
    RankStopped,
    Reducer,
    StepMade,
    Tell,
    takes,
)
from diag.state.stack_activity import Activity
from diag.state.trainer import beginning

TRAINING_ACTIVITIES = (Activity.COLLECTIVE, Activity.BACKWARD, Activity.DATA, Activity.GPU_SYNC)
# Readings of which a rank keeps the newest, and under which name.
_NEWEST: dict[type[Observation], str] = {
    LimitsSeen: "limits", CgroupMemory: "cgroup", SharedMemory: "shm", CgroupPids: "pids",
}  # fmt: skip
_NO_DEVICE = ("", "-1")  # CUDA's list of devices ends at the first number that is none
_MOST_FAILURES = 64  # of earlier attempts
_STALE_SECONDS = 1.0  # lines come a moment later than the stack of what follows them


class Ranks(Reducer, Mapping[int, RankView]):
    """Owns the ranks: a mapping from number to state, the ended ones included."""

    def __init__(self, cluster: Cluster, tell: Tell) -> None:
        self._cluster, self._tell = cluster, tell
        self._known: dict[int, RankState] = {}
        self._processes: dict[tuple[int, int, str], int] = {}  # their numbers, by `_process`
        self._numbers: list[int] = []  # of them, in order
        self._past: list[RankState] = []  # of earlier attempts (elastic restarts)
        # that of the process group; until one is known the largest that the command, a rank or a node reported
        self.world_size = 0
        self.training: set[int] = set()  # living ranks whose stacks show a part of a training step
        self.saving: set[int] = set()  # and those whose stacks show a save
        self._printed = Printed()
        self._trainer: tuple[str, ...] = ()  # how a thread begins that trains in place of a main thread
        # When a living rank last moved for sure, and in any way, as digests show; None: to be looked up.
        self._moves: tuple[float, float] | None = (0.0, 0.0)
        self._apart: tuple[object, CallsApart | None] = ((), None)  # by when each rank's calls were read

    # -- reading ------------------------------------------------------------------------------------------

    def __getitem__(self, number: int) -> RankView:
        return self._known[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    # A mapping's own views look every rank up by its number: of very many ranks that takes twice as long.

    def keys(self) -> KeysView[int]:
        return self._known.keys()

    def values(self) -> ValuesView[RankView]:
        return self._known.values()

    def items(self) -> ItemsView[int, RankView]:
        return self._known.items()

    def _of(self, fact: Observation) -> RankState | None:
        """The rank that an observation is about."""
        return self._known.get(fact.rank) if fact.rank is not None else None

    @property
    def past(self) -> Sequence[RankView]:
        """Of earlier attempts."""
        return self._past

    def known(self, numbers: Iterable[int]) -> list[RankView]:
        """Those of these numbers that were seen."""
        return [self._known[number] for number in numbers if number in self._known]

    def alive(self) -> list[RankView]:
        if len(self._numbers) != len(self._known):
            self._numbers = sorted(self._known)
        return [rank for number in self._numbers if (rank := self._known[number]).exit is None]

    def calls_apart(self) -> CallsApart | None:
        """Where the calls of the living ranks were first not the same."""
        read = {rank.rank: rank.calls for rank in self.alive() if rank.calls is not None}
        key = tuple((rank, one.pid, one.emitted) for rank, one in read.items())
        if self._apart[0] != key:
            self._apart = key, first_apart(read)
        return self._apart[1]

    def rank_of_pid(self, pid: int) -> int | None:
        """By the rank's own process, or a child of it."""
        for rank in self._known.values():
            if rank.placement.pid == pid or (
                rank.tree and any(child.pid == pid for child in rank.tree.children)
            ):
                return rank.rank
        return None

    def last_moves(self) -> tuple[float, float]:
        """When a living rank last moved for sure, and in any way, as the nodes report. Asking all ranks at each
        check costs more than all digests of a large job."""
        if self._moves is None:
            alive = [rank for rank in self._known.values() if rank.alive]
            strong = max((rank.last_moved(STRONG) for rank in alive), default=0.0)
            self._moves = strong, max((rank.last_moved() for rank in alive), default=0.0)
        return self._moves

    # -- processes ----------------------------------------------------------------------------------------

    @takes(RunStarted, NodeDigest)
    def _world(self, at: float, fact: RunStarted | NodeDigest) -> None:
        self.world_size = max(self.world_size, fact.world_size)
        if isinstance(fact, RunStarted):
            self._printed.started(fact)

    @takes(RankFound)
    def _found(self, at: float, fact: RankFound) -> None:
        place = fact.placement
        before = self._processes.get(_process(place))  # the number that it was known by
        old = self._known.get(place.rank)
        known = self._known[before] if before is not None else None
        # It has left its group for one of another size: the job goes on with fewer, or more.
        anew = known is not None and fact.group > known.group > 0 and place.world_size != self.world_size
        if old is not None and _is_same(old.placement, place) and not anew:
            old.placement, old.distributed = place, fact.distributed
            old.group, old.joined_by = fact.group, fact.thread
        else:
            if anew or (old is not None and before is None and (old.distributed or not old.alive)):
                if old is not None and not anew:
                    self._past.append(old)  # elastic restart: a new process has this rank
                self._begin_attempt(at, place.world_size if fact.group else 0)
            for one in [number for number in {before, place.rank} if number in self._known]:
                self._drop(at, one)
            self._start(at, fact)
            if old is not None and place.pid in old.shared:
                self._known[place.rank].shared = old.shared  # it was there beside that one
        # A group's word is the group's size. Until there is one, each launcher knows of a part at least.
        self.world_size = place.world_size if fact.group else max(self.world_size, place.world_size)

    def _start(self, at: float, fact: RankFound) -> None:
        self._moves, self._numbers = None, []
        event = RankStarted(fact)
        rank = RankState(
            fact.placement,
            fact.distributed,
            fact.group,
            fact.thread,
            found_at=0.0 if event.in_log else at,
            moved={"stack": at},
        )
        self._known[rank.rank] = rank
        if (process := _process(fact.placement))[1]:
            self._processes[process] = rank.rank
        self._note_activity(rank)
        self._tell(at, event)

    def _begin_attempt(self, at: float, world_size: int) -> None:
        """`world_size`: of the new group; 0 where a launcher starts the same ranks again."""
        for rank in list(self._known.values()) if world_size else ():
            if rank.rank >= world_size:
                if not rank.alive:
                    self._past.append(rank)
                self._drop(at, rank.rank)
        self._forget_past()
        self._tell(at, AttemptBegan())

    @takes(RankWithdrawn)
    def _withdrawn(self, at: float, fact: RankWithdrawn) -> None:
        rank = self._of(fact)
        if rank is not None and rank.placement.pid == fact.pid:
            self._drop(at, rank.rank)

    @takes(RankShared)
    def _shared(self, at: float, fact: RankShared) -> None:
        rank = self._of(fact)
        if rank is not None and rank.placement.pid in fact.pids:
            rank.shared = fact.pids

    def _drop(self, at: float, number: int) -> None:
        process = _process(self._known.pop(number).placement)
        if self._processes.get(process) == number:
            del self._processes[process]
        self._moves, self._numbers = None, []
        self.training.discard(number)
        self.saving.discard(number)
        self._tell(at, RankDropped(number))

    def _forget_past(self) -> None:
        """Jobs are restarted for weeks. Of all attempts but the last those that failed by themselves matter,
        and of many such the first, with whom the job's failure began, and the latest."""
        last = len(self._known)
        if len(self._past) <= 2 * (last + _MOST_FAILURES):
            return
        failed = [rank for rank in self._past[:-last] if rank.failed and not rank.was_ended]
        failed.sort(key=lambda rank: rank.exited_at or 0.0)
        half = _MOST_FAILURES // 2
        self._past = [*failed[:half], *failed[half:][-half:], *self._past[-last:]]

    @takes(RankExited)
    def _exited(self, at: float, fact: RankExited) -> None:
        rank = self._of(fact)
        if rank is not None and rank.placement.pid == fact.pid:
            self._moves = None
            rank.see_exit(at, fact)
            self._note_activity(rank)

    @takes(ChildEnded)
    def _child_ended(self, at: float, fact: ChildEnded) -> None:
        if (rank := self._of(fact)) is not None:
            rank.see_child_end(at, fact)

    @takes(WorkerFailureReported)
    def _failure(self, at: float, fact: WorkerFailureReported) -> None:
        number = self.rank_of_pid(fact.pid) if fact.pid else fact.rank
        rank = self._known.get(number if number is not None else -1)
        if rank is not None and not rank.status_known:
            code, signal = (fact.exit_code, None) if fact.exit_code >= 0 else (None, -fact.exit_code)
            self._exited(at, RankExited(rank.rank, rank.placement.pid, code, signal, "torchelastic"))

    @takes(ProcessTree)
    def _tree(self, at: float, fact: ProcessTree) -> None:
        rank = self._of(fact)
        if rank is not None and rank.placement.pid == fact.main.pid:
            rank.see_tree(at, fact)
            self._printed.reading(at, rank)
            if rank.stopped or rank.traced:
                self._tell(at, RankStopped())

    @takes(StackSample)
    def _stack(self, at: float, fact: StackSample) -> None:
        rank = self._of(fact)
        if rank is not None and fact.pid != rank.placement.pid:
            if fact.parent_pid == rank.placement.pid or not rank.placement.start_ticks:
                rank.see_child_stack(at, fact)  # any other was read of the number's earlier process
        elif rank is not None:
            rank.see_stack(at, fact, self._trainer)
            if rank.thread and rank.judged is not None:
                self._trainer = beginning(rank.judged)
            self._note_activity(rank)
            self._tell(at, MainStackRead(rank.rank, rank.judged, rank.reading))

    def _note_activity(self, rank: RankState) -> None:
        """Who trains and who saves, kept up with each stack: looking at all ranks anew each time is quadratic
        in them."""
        reading = rank.reading if rank.alive else None
        trains = reading is not None and reading.activity in TRAINING_ACTIVITIES
        saves = reading is not None and Activity.CHECKPOINT in (reading.activity, reading.context)
        for ranks, is_one in ((self.training, trains), (self.saving, saves)):
            (ranks.add if is_one else ranks.discard)(rank.rank)

    @takes(StepMade)
    def _step_made(self, at: float, event: StepMade) -> None:
        """Who was found in a save well before the step has left it, and its next stack may be seconds away."""
        if self.saving:
            self.saving = {rank for rank in self.saving if self[rank].stack_at > at - _STALE_SECONDS}

    @takes(RankDigest)
    def _digest(self, at: float, fact: RankDigest) -> None:
        rank, nodes = self._of(fact), self._cluster.nodes
        node = nodes.get(fact.run_id)
        if rank is None or node is None:
            return
        other = nodes.get(rank.node) if rank.node and rank.node != fact.run_id else None
        if other is not None and other.heard_at > node.first_at and not other.gone:
            return  # two hubs report one rank: the launch is wrong, and the first keeps it
        rank.adopt(fact, self._cluster.frames, node.digest.every_seconds)
        if self._moves is not None:
            self._moves = max(self._moves[0], rank.last_moved(STRONG)), max(self._moves[1], rank.last_moved())
        self._note_activity(rank)

    # -- what is read of a rank ---------------------------------------------------------------------------

    @takes(LogLine, QuietLine)
    def _line(self, at: float, fact: LogLine) -> None:
        rank = self._of(fact)
        self._printed.line(at, fact, rank)
        if rank is not None and not fact.bar:
            rank.tail.append(fact.text)

    @takes(NcclPlainLines, PlainLines)
    def _plain_lines(self, at: float, fact: NcclPlainLines | PlainLines) -> None:
        rank = self._of(fact)
        if isinstance(fact, PlainLines):
            self._printed.lines(at, fact, rank)
        if rank is not None:
            rank.tail.extend(fact.last)

    @takes(FlightRecorder, RecorderAsked)
    def _recorder(self, at: float, fact: FlightRecorder | RecorderAsked) -> None:
        rank = self._of(fact)
        if rank is not None:
            rank.see_question(at)
            if isinstance(fact, FlightRecorder) and fact.pid in (0, rank.placement.pid):
                rank.see_recorder(at, fact)

    @takes(CallHistory)
    def _calls(self, at: float, fact: CallHistory) -> None:
        rank = self._of(fact)
        if rank is not None and fact.pid in (0, rank.placement.pid):
            rank.calls = fact

    @takes(RdmaAccess, WaitsRead, EnvironmentSeen, StoreWaited, NativeFramesRead)
    def _of_its_process(
        self, at: float, fact: RdmaAccess | WaitsRead | EnvironmentSeen | StoreWaited | NativeFramesRead
    ) -> None:
        rank = self._of(fact)
        if rank is None or rank.placement.pid != fact.pid:
            return
        if isinstance(fact, RdmaAccess):
            rank.rdma = fact
        elif isinstance(fact, NativeFramesRead):
            rank.native, rank.native_at = fact.frames, at
        elif isinstance(fact, StoreWaited):
            rank.unmet = None if fact.over else fact
        elif isinstance(fact, WaitsRead):
            rank.see_waits(at, fact)
        else:
            rank.variables = dict(fact.variables)

    @takes(*_NEWEST)
    def _newest(self, at: float, fact: LimitsSeen | CgroupMemory | SharedMemory | CgroupPids) -> None:
        """A reading of the whole machine is one of each rank."""
        rank = self._of(fact)
        for one in self._known.values() if fact.rank is None else () if rank is None else (rank,):
            setattr(one, _NEWEST[type(fact)], fact)

    @takes(GpuSample)
    def _gpu(self, at: float, fact: GpuSample) -> None:
        users = [fact.rank] if fact.rank is not None else [self.rank_of_pid(pid) for pid in fact.pids]
        for user in users:
            if user is not None and user in self._known:
                self._known[user].gpu_index = fact.index
        seen = any(rank.gpu_index is not None for rank in self._known.values())
        for rank in self._known.values():
            hidden = rank.variables.get("CUDA_VISIBLE_DEVICES") in _NO_DEVICE
            rank.on_gpu = rank.gpu_index is not None or (not seen and not hidden)


def _process(place: Placement) -> tuple[int, int, str]:
    """Which process it is, whatever its number; one without start_ticks (of a log, a capture) is not known."""
    return place.pid, place.start_ticks, place.host


def _is_same(one: Placement, other: Placement) -> bool:
    return (one.pid, one.start_ticks) == (other.pid, other.start_ticks)
