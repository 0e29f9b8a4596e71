"""What is known of the job now: its ranks, its phase, what moved last. Told observations; judges nothing.

Detectors and outputs read it; only `observe` writes it. Everything follows from the observations and their
told times, so live and replay hold the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from diag.model import NotChecked
from diag.model.observations import (
    BarMoved,
    EpochStarted,
    FlightRecorder,
    FramesSeen,
    Interrupted,
    Iteration,
    JobVerdict,
    LogLine,
    MetricsLogged,
    NcclCommunicator,
    NcclFact,
    NcclLine,
    NcclPlainLines,
    NcclRasListening,
    NcclVersion,
    NodeDigest,
    NodeProbed,
    Observation,
    PhaseMarked,
    PlainLines,
    ProcessTree,
    RankDigest,
    RankExited,
    RankFound,
    RecorderAsked,
    RunEnded,
    RunStarted,
    SaveFinished,
    SaveStarted,
    SourceFailed,
    SourceWorks,
    StackSample,
    StepsPlanned,
    Unparsed,
    VerdictLost,
    WorkerFailureReported,
    WorkerNamed,
)
from diag.state.brokenoff import broken_off
from diag.state.cluster import Cluster, adopt, furthest
from diag.state.machine import MACHINE_HANDLERS, Machine
from diag.state.nccl import NcclState
from diag.state.ncclprocesses import NcclProcesses
from diag.state.printed import Printed
from diag.state.rank import STRONG, TAIL_LINES, RankState
from diag.state.residence import Residence
from diag.state.saves import switched_on
from diag.state.stack_activity import Activity

__all__ = ["JobState"]


class JobState(Machine):
    """The job as observed so far."""

    def __init__(self) -> None:
        super().__init__()
        self.argv: tuple[str, ...] = ()
        self.rank_argv: tuple[
            str, ...
        ] = ()  # of the first rank seen: what a script around the launcher hides
        self.host = ""
        self.pid = 0
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.returncode: int | None = None
        self.past_ranks: list[RankState] = []  # of earlier attempts (elastic restarts)
        self.attempts: deque[tuple[float, int | None]] = deque(
            maxlen=64
        )  # when each before this one ended, its last iteration
        self.world_size = 0
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.log_lines = 0
        self.printed = Printed()
        self.nccl = NcclState()
        self.nccl_processes = NcclProcesses()
        self.residence = Residence()
        self.cluster = Cluster()
        self.interrupted_at: float | None = None
        self._training: set[int] = set()  # living ranks whose stacks show a part of a training step
        self._saving: set[int] = set()  # and those whose stacks show a save
        self._named_worker: int | None = None
        self._numbers: list[int] = []  # of the ranks, in order
        self.worker_failures: deque[tuple[float, WorkerFailureReported]] = deque(maxlen=_MOST_FAILURES)
        self.failed_sources: dict[tuple[str, int | None], SourceFailed] = {}
        self.unparsed: deque[Unparsed] = deque(maxlen=50)
        self.unparsed_total = 0
        self.breaks_off = False  # the record that this was told from ends before the run does

    # -- reading ------------------------------------------------------------------------------------------

    @property
    def words(self) -> tuple[str, ...]:
        """The command and what became of it in a rank: where flags are looked for. The last of two counts."""
        return (*self.argv, *self.rank_argv)

    @property
    def ranks_seen(self) -> int:
        return len(self.ranks)

    @property
    def broken(self) -> bool:
        """Ended or ending for another reason than success: nothing can get better any more. A restart heals
        it."""
        return (
            self.interrupted_at is not None
            or self.returncode not in (None, 0)
            or any(rank.failed for rank in self.ranks.values())
        )

    def alive_ranks(self) -> list[RankState]:
        if len(self._numbers) != len(self.ranks):  # none is ever taken away
            self._numbers = sorted(self.ranks)
        return [rank for number in self._numbers if (rank := self.ranks[number]).exit is None]

    def last_progress(self) -> float:
        """When the job or any of its ranks last moved on any channel; the run's start when nothing ever did."""
        if self.cluster.nodes:
            times = [self.told_moves()[1]]
        else:
            times = [rank.last_moved() for rank in self.ranks.values() if rank.alive]
        times.append(self.log_moved_at or 0.0)
        times.append(self.save_moved_at or 0.0)
        times.append(self.started_at or 0.0)
        return max(times)

    def told_moves(self) -> tuple[float, float]:
        """When a living rank last moved for sure, and in any way, as the nodes tell."""
        known = self.cluster
        if known.strong_moved is None or known.moved is None:
            alive = [rank for rank in self.ranks.values() if rank.alive]
            known.strong_moved = max((rank.last_moved(STRONG) for rank in alive), default=0.0)
            known.moved = max((rank.last_moved() for rank in alive), default=0.0)
        return known.strong_moved, known.moved

    def iteration_then(self, at: float) -> int | None:
        """The last of the attempt that ran at that moment, as far as it came."""
        return next((iteration for ended, iteration in self.attempts if at <= ended), self.iteration)

    def not_checked(self) -> list[NotChecked]:
        """One line per source that could not look, ranks with the same reason together."""
        grouped: dict[tuple[str, str, str], list[int]] = {}
        for failed in self.failed_sources.values():
            ranks = grouped.setdefault((failed.source, failed.reason, failed.remedy), [])
            if failed.rank is not None:
                ranks.append(failed.rank)
        lines = []
        for (source, reason, remedy), ranks in sorted(grouped.items()):
            what = (
                source
                if not ranks
                else f"{source} of rank{'s' if len(ranks) > 1 else ''} " + ",".join(map(str, sorted(ranks)))
            )
            lines.append(NotChecked(what, reason, remedy))
        if self.breaks_off:
            lines.append(broken_off(self.ranks.values()))
        if self.unparsed_total:
            last = self.unparsed[-1]
            lines.append(
                NotChecked(
                    f"{self.unparsed_total} readings",
                    f"not understood; the last of {last.source}: {last.reason}",
                    "send the run directory with a bug report",
                )
            )
        return lines

    # -- being told ---------------------------------------------------------------------------------------

    def observe(self, at: float, fact: Observation) -> None:
        self.nccl_processes.observe(at, fact)
        handler = _HANDLERS.get(type(fact))
        if handler is None:
            return
        phase = self.phase
        handler(self, at, fact)
        if type(fact) in _MOVES:
            self._learn(at, fact, phase)
            self.save_memory.saved(self.save_log)
        if self.iteration_at == at and type(fact) in _STEPS:
            self.gpu_faults.survived(at)
        if self.iteration_at == at and self._saving and type(fact) in _STEPS:
            # A step was made: who was found in a save well before it has left it, and its next stack may be
            # seconds away.
            self._saving = {rank for rank in self._saving if self.ranks[rank].stack_at > at - _STALE_SECONDS}

    def _learn(self, at: float, fact: Observation, phase: str) -> None:
        rank = self.ranks.get(fact.rank) if fact.rank is not None else None
        moved = self.log_moved_at == at or (rank is not None and rank.alive and rank.last_moved() == at)
        stopped = rank is not None and rank.stopped
        # In a save bytes are the work: the stack of who writes them stands in one call all the while.
        stirred = (
            self.log_moved_at != at
            and rank is not None
            and rank.last_moved(STRONG) != at
            and phase != "ckpt_save"
        )
        self.silences.told(
            at, moved=moved, stopped=stopped, phase=phase, iteration=self.iteration, stirred=stirred
        )

    def _run_started(self, at: float, fact: RunStarted) -> None:
        self.argv, self.host, self.pid = fact.argv, fact.host, fact.pid
        self.world_size = max(self.world_size, fact.world_size)
        self.save_log.asynchronous |= switched_on(fact.argv, "async-save")
        self.started_at = at
        self.phase_at = at

    def _run_ended(self, at: float, fact: RunEnded) -> None:
        self.returncode, self.ended_at = fact.returncode, at
        self._set_phase(at, "ended")

    def _rank_found(self, at: float, fact: RankFound) -> None:
        place = fact.placement
        old = self.ranks.get(place.rank)
        if old is not None and (old.placement.pid, old.placement.start_ticks) == (
            place.pid,
            place.start_ticks,
        ):
            old.placement = place
            return
        if old is not None:  # elastic restart: a new process has this rank
            self.past_ranks.append(old)
            self._forget_past_ranks()
            self._start_over(at)
        in_log = place.launcher == "log"  # told at the log's end of a rank that was there from its beginning
        if self.started_at is None and not in_log:
            self.started_at = at
        if not self.rank_argv:
            self.rank_argv = tuple(fact.command.split())
            self.save_log.asynchronous |= switched_on(self.rank_argv, "async-save")
        self.cluster.forget_moves()
        self.ranks[place.rank] = RankState(
            place, fact.distributed, found_at=0.0 if in_log else at, moved={"stack": at}
        )
        self._note_activity(self.ranks[place.rank])
        self.world_size = max(self.world_size, place.world_size)
        if self.phase == "launch" and not in_log:
            self._set_phase(at, "rendezvous" if fact.distributed and place.world_size > 1 else "model_load")

    def _start_over(self, at: float) -> None:
        """A new attempt: its steps are counted from the checkpoint on, and its start is a start."""
        if self.iteration is not None:
            self.attempts.append((at, self.iteration))
        self.iteration = self.iteration_at = self.epoch = None
        self._bar = None
        self.steps.start_over()
        self.residence.start_over()
        self.silences.start_over()
        self.gpu_faults.start_over()
        self.save_memory.start_over()
        self._mark(at, "rendezvous")

    def _forget_past_ranks(self) -> None:
        """Jobs are restarted for weeks. Of all attempts but the last those that failed by themselves matter,
        and of many such the first, by whom the job's first failure is told, and the latest."""
        last = len(self.ranks)
        if len(self.past_ranks) <= 2 * (last + _MOST_FAILURES):
            return
        failed = [rank for rank in self.past_ranks[:-last] if rank.failed and not rank.was_ended]
        failed.sort(key=lambda rank: rank.exited_at or 0.0)
        half = _MOST_FAILURES // 2
        self.past_ranks = [*failed[:half], *failed[half:][-half:], *self.past_ranks[-last:]]

    def _rank_exited(self, at: float, fact: RankExited) -> None:
        rank = self.ranks.get(fact.rank) if fact.rank is not None else None
        if rank is None or rank.placement.pid != fact.pid:
            return
        self.cluster.forget_moves()
        if rank.exit is None:
            rank.exited_at = at if fact.ended is None else min(at, fact.ended)
            if not rank.tail:
                rank.tail.extend(fact.last)
        if rank.exit is None or (rank.exit.exit_code is None and rank.exit.signal is None):
            rank.exit = fact
        self._note_activity(rank)

    def _worker_failure(self, at: float, fact: WorkerFailureReported) -> None:
        self.worker_failures.append((at, fact))
        number = self.rank_of_pid(fact.pid) if fact.pid else fact.rank
        rank = self.ranks.get(number if number is not None else -1)
        if rank is not None and (
            rank.exit is None or (rank.exit.exit_code is None and rank.exit.signal is None)
        ):
            code = fact.exit_code
            exited = RankExited(
                rank.rank,
                rank.placement.pid,
                code if code >= 0 else None,
                -code if code < 0 else None,
                "torchelastic",
            )
            self._rank_exited(at, exited)

    def _worker_named(self, at: float, fact: WorkerNamed) -> None:
        self._named_worker = fact.rank

    def _interrupted(self, at: float, fact: Interrupted) -> None:
        self.interrupted_at = self.interrupted_at or at

    def _process_tree(self, at: float, fact: ProcessTree) -> None:
        rank = self._told_of(fact)
        if rank is not None and rank.placement.pid == fact.main.pid:
            rank.see_tree(at, fact)
            self.printed.reading(at, rank)
            if rank.stopped:
                self.steps.disturbed()

    def _stack(self, at: float, fact: StackSample) -> None:
        rank = self._told_of(fact)
        if rank is None:
            return
        if fact.pid == rank.placement.pid:
            rank.see_stack(at, fact)
            self._note_activity(rank)
            self._phase_from_stacks(at)
            steps = self.phase == "steady" or self.phase == self.marked_phase == "training"
            if steps and rank.reading is not None and fact.main is not None:
                self.residence.see(at, rank.rank, fact.main, rank.reading)
        else:
            rank.see_child_stack(at, fact)

    def _recorder(self, at: float, fact: FlightRecorder | RecorderAsked) -> None:
        rank = self._told_of(fact)
        if rank is not None:
            rank.see_question(at)
            if isinstance(fact, FlightRecorder):
                rank.recorder = fact

    def _note_activity(self, rank: RankState) -> None:
        """Who trains and who saves, kept up with each stack: looking at all ranks anew each time is quadratic
        in them."""
        reading = rank.reading if rank.alive else None
        trains = reading is not None and reading.activity in _TRAINING_ACTIVITIES
        saves = reading is not None and Activity.CHECKPOINT in (reading.activity, reading.context)
        for ranks, is_one in ((self._training, trains), (self._saving, saves)):
            if is_one:
                ranks.add(rank.rank)
            else:
                ranks.discard(rank.rank)

    def _phase_from_stacks(self, at: float) -> None:
        """ms-swift 4.x prints nothing when a save starts: only the stacks tell."""
        if self.phase == "rendezvous" and self._training:
            self._set_phase(
                at, "training"
            )  # a log that we do not understand, or joined late: no phase is marked
        saving = bool(self._saving)
        if saving and self.phase in ("steady", "first_step", "training", "eval"):
            self._set_phase(at, "ckpt_save")
        elif not saving and self.phase == "ckpt_save" and self.marked_phase != "ckpt_save":
            self._set_phase(at, self.marked_phase if self.marked_phase != "launch" else "training")

    # -- other nodes --------------------------------------------------------------------------------------

    def _node_digest(self, at: float, fact: NodeDigest) -> None:
        """A node's hub speaks: the job is where the furthest of them says it is."""
        self.cluster.see(at, fact)
        current = (
            self.cluster.current()
            if len(self.cluster.nodes) < _FEW_NODES or fact.returncode is not None
            else []
        )
        self.world_size = max(self.world_size, fact.world_size)
        if fact.started_at is not None:
            self.started_at = min(self.started_at or fact.started_at, fact.started_at)
        for name in ("log_moved_at", "save_moved_at"):
            told = getattr(fact, name)
            if told is not None and told > (getattr(self, name) or 0.0):
                setattr(self, name, told)
        if fact.step_seconds is not None:
            self.told_step_seconds = fact.step_seconds
        self.silences.adopt(fact.phase, fact.silence_seconds, fact.phase_seconds)
        if fact.interrupted:
            self.interrupted_at = self.interrupted_at or at
        lead = furthest(current) or (fact if (fact.iteration or 0) >= (self.iteration or 0) else None)
        ended = [node.digest.returncode for node in current]
        if ended and None not in ended and len(ended) >= self.cluster.expected() and self.returncode is None:
            self._run_ended(at, RunEnded(None, next((code for code in ended if code), 0)))
        elif lead is not None and lead.phase != "ended":
            self.marked_phase = lead.marked_phase
            self._set_phase(at, lead.phase)
            self.phase_line = lead.phase_line

    def _rank_digest(self, at: float, fact: RankDigest) -> None:
        rank = self._told_of(fact)
        node = self.cluster.nodes.get(fact.run_id)
        if rank is not None and node is not None:
            if (
                rank.node
                and rank.node != fact.run_id
                and (other := self.cluster.nodes.get(rank.node)) is not None
                and other.heard_at > node.first_at
                and not other.gone
            ):
                return  # two hubs tell of one rank: the launch is wrong, and the first keeps it
            adopt(rank, fact, self.cluster.frames, node.digest.every_seconds)
            self.cluster.see_moves(rank)
            self._note_activity(rank)

    def _frames_seen(self, at: float, fact: FramesSeen) -> None:
        self.cluster.see_frames(at, fact)

    def _node_probed(self, at: float, fact: NodeProbed) -> None:
        self.cluster.see_probe(at, fact)

    def _verdict(self, at: float, fact: JobVerdict | VerdictLost) -> None:
        if isinstance(fact, JobVerdict):
            self.cluster.see_verdict(at, fact)
            self.borrow(at, fact.phase, fact.iteration, fact.total_iterations)
        else:
            self.cluster.lose_verdict(fact.reason)

    def _log_line(self, at: float, fact: LogLine) -> None:
        self.log_lines += 1
        rank = self._told_of(fact)
        self.printed.line(at, fact, rank)
        if not fact.bar:
            self.gpu_faults.read_line(fact)
            self.tail.append(fact.text)
            if rank is not None:
                rank.tail.append(fact.text)

    def _plain_lines(self, at: float, fact: NcclPlainLines) -> None:
        self.log_lines += fact.count
        self.nccl.lines += fact.count
        self.tail.extend(fact.last)
        rank = self.ranks.get(fact.rank) if fact.rank is not None else None
        if rank is not None:
            rank.tail.extend(fact.last)

    def _unread_lines(self, at: float, fact: PlainLines) -> None:
        self.log_lines += fact.count
        self.tail.extend(fact.last)

    def _nccl(self, at: float, fact: NcclLine | NcclFact) -> None:
        self.nccl.observe(at, fact)

    def _source_failed(self, at: float, fact: SourceFailed) -> None:
        self.failed_sources[(fact.source, fact.rank)] = fact

    def _source_works(self, at: float, fact: SourceWorks) -> None:
        self.failed_sources.pop((fact.source, fact.rank), None)

    def _unparsed(self, at: float, fact: Unparsed) -> None:
        self.unparsed.append(fact)
        self.unparsed_total += 1


_TRAINING_ACTIVITIES = (Activity.COLLECTIVE, Activity.BACKWARD, Activity.DATA, Activity.GPU_SYNC)

_MOST_FAILURES = 64  # of earlier attempts
_FEW_NODES = (
    128  # of more, the word of the one that speaks is taken instead of asking all again at each digest
)

_STEPS = (Iteration, BarMoved)
_STALE_SECONDS = 1.0  # lines come a moment later than the stack of what follows them

# Observations that can show that something moved: the channels that a silence is told by.
_MOVES = frozenset(
    {
        ProcessTree,
        StackSample,
        PhaseMarked,
        EpochStarted,
        Iteration,
        BarMoved,
        MetricsLogged,
        StepsPlanned,
        SaveStarted,
        SaveFinished,
    }
)


_HANDLERS: dict[type[Observation], Callable[[JobState, float, Any], None]] = {
    **MACHINE_HANDLERS,
    RunStarted: JobState._run_started,
    RunEnded: JobState._run_ended,
    RankFound: JobState._rank_found,
    RankExited: JobState._rank_exited,
    WorkerFailureReported: JobState._worker_failure,
    WorkerNamed: JobState._worker_named,
    Interrupted: JobState._interrupted,
    ProcessTree: JobState._process_tree,
    StackSample: JobState._stack,
    FlightRecorder: JobState._recorder,
    RecorderAsked: JobState._recorder,
    LogLine: JobState._log_line,
    NcclLine: JobState._nccl,
    NcclPlainLines: JobState._plain_lines,
    PlainLines: JobState._unread_lines,
    NcclVersion: JobState._nccl,
    NcclRasListening: JobState._nccl,
    NcclCommunicator: JobState._nccl,
    NodeDigest: JobState._node_digest,
    RankDigest: JobState._rank_digest,
    FramesSeen: JobState._frames_seen,
    NodeProbed: JobState._node_probed,
    JobVerdict: JobState._verdict,
    VerdictLost: JobState._verdict,
    SourceFailed: JobState._source_failed,
    SourceWorks: JobState._source_works,
    Unparsed: JobState._unparsed,
}
