"""The job's checkpoint saves: when they were, what of them is on disk, and what memory they take.

A save begins and ends with the phase ckpt_save, and by the lines of the log; the folder tells how far it is.
"""

from __future__ import annotations

from diag.model.observations import (
    CgroupMemory,
    CheckpointsSeen,
    HostMemory,
    NodeDigest,
    RunStarted,
    SaveFinished,
    SavesBehind,
    SaveStarted,
)
from diag.state.phases import Phases
from diag.state.progress import Progress
from diag.state.reducer import AttemptBegan, PhaseChanged, RankStarted, Reducer, Taken, takes
from diag.state.run import Run
from diag.state.save_memory import SaveMemory
from diag.state.saves import SaveLog, switched_on


class Saves(Reducer):
    """Owns what is known of saves."""

    def __init__(self, run: Run, phases: Phases, progress: Progress) -> None:
        self._run, self._phases, self._progress = run, phases, progress
        self.log = SaveLog()  # the saves so far
        self.memory = SaveMemory(progress, self.log)  # what they took of each limit, and what the next will
        self.folders: dict[str, CheckpointsSeen] = {}  # what lies in each save folder
        self.moved_at: float | None = None  # when files of a checkpoint last came or grew during a save

    # -- when ---------------------------------------------------------------------------------------------

    @takes(PhaseChanged)
    def _phase_changed(self, at: float, event: PhaseChanged) -> None:
        iteration = self._progress.iteration
        if event.phase == "ckpt_save":
            told_by = "log" if self._phases.marked == "ckpt_save" else "stacks"
            self.log.began(at, iteration, self._progress.iteration_at or event.since or at, told_by)
        elif event.before == "ckpt_save":
            self.log.ended(at, iteration, at, cut_off=event.phase in ("ended", "rendezvous"))

    @takes(SaveStarted)
    def _started(self, at: float, fact: SaveStarted) -> None:
        self._phases.mark(at, "ckpt_save", fact.text)
        # Only the path is new: the phase has begun the save.
        self.log.began(at, self._progress.iteration, at, "log", fact.path)
        self.log.asynchronous |= fact.asynchronous

    @takes(SaveFinished)
    def _finished(self, at: float, fact: SaveFinished) -> None:
        iteration, now = self._progress.iteration, self._phases.now
        # Of an asynchronous one safetensors are written at once, the rest later.
        part = self.log.asynchronous and "`safetensors`" in fact.text
        after = self._progress.iteration_at or self._phases.since or at
        self.log.ended(at, iteration, after, fact.path, written=not part)
        self._phases.mark(at, "steady" if iteration is not None else now)

    @takes(SavesBehind)
    def _behind(self, at: float, fact: SavesBehind) -> None:
        self.log.asynchronous = True

    @takes(RunStarted, RankStarted)
    def _command(self, at: float, fact: RunStarted | RankStarted) -> None:
        self.log.asynchronous |= switched_on(self._run.argv, "async-save")
        self.log.asynchronous |= switched_on(self._run.rank_argv, "async-save")

    # -- on disk ------------------------------------------------------------------------------------------

    @takes(CheckpointsSeen)
    def _checkpoints(self, at: float, fact: CheckpointsSeen) -> None:
        """Growth counts as progress while a save is under way: on a network file system only the folder tells
        of it."""
        if fact.role != "save":
            return
        before = self.folders.get(fact.root)
        self.folders[fact.root] = fact
        newest = max(fact.folders, key=lambda folder: folder.changed_at, default=None)
        grew = newest is not None and self.log.grew(at, newest.size_bytes)
        if self._phases.now == "ckpt_save" and (
            grew or (before is not None and before.folders != fact.folders)
        ):
            self.moved_at = at

    @takes(NodeDigest)
    def _digest(self, at: float, fact: NodeDigest) -> None:
        if fact.save_moved_at is not None and fact.save_moved_at > (self.moved_at or 0.0):
            self.moved_at = fact.save_moved_at

    # -- memory -------------------------------------------------------------------------------------------

    @takes(CgroupMemory, HostMemory)
    def _memory(self, at: float, fact: CgroupMemory | HostMemory) -> None:
        self.memory.add(at, fact)

    @takes(Taken)
    def _taken(self, at: float, event: Taken) -> None:
        self.memory.saved(self.log)

    @takes(AttemptBegan)
    def _attempt_began(self, at: float, event: AttemptBegan) -> None:
        self.memory.start_over()
