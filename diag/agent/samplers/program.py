"""Reads the program's own text at the lines at which the ranks of a suspected job are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import psutil

from diag.agent.samplers.context import NodeContext, NodeSampler
from diag.model import Payload, Record
from diag.model.observations import Frame
from diag.sources.host import starters
from diag.sources.host.job_files import JobFiles
from diag.sources.stacks import program, stops
from diag.state.own_code import own_frames
from diag.state.rank_view import RankView
from diag.state.view import JobView

_CALM_SECONDS = 3600.0  # what is wanted wakes it
_MOST_FRAMES = 12  # of the thread that trains
_MOST_THREADS = 16
_MOST_OUTER = 3  # of another thread: which lock it holds is seen further out
_MOST_LINES = 4096  # in a run
_AGAIN_SECONDS = 20.0
_MOST_PROCESSES = 64  # looked through for one that stops a rank


class _Wanted(NamedTuple):
    rank: int
    pid: int
    frame: Frame


class ProgramSampler(NodeSampler):
    """Each line once: what a process runs does not change."""

    name, what, sources = "program", "program", (program.SOURCE,)

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node.reporter, _CALM_SECONDS)
        self._node = node
        self._reads = node.settings.read_program
        self._stopped: dict[int, int] = {}  # pids of stopped ranks, and their numbers
        self._looked_for: set[int] = set()
        self._started: dict[
            int, int
        ] = {}  # ranks, and their pids, that somebody has started, where others are missing
        self._started_at, self._asks_starter = 0.0, False
        self._lock = threading.Lock()
        self._todo: list[_Wanted] = []
        self._known: set[tuple[int, Frame]] = set()

    @classmethod
    def of(cls, node: NodeContext) -> ProgramSampler:
        return cls(node)

    def tend(self, closer: bool, job: JobView) -> None:
        if not closer or not self._reads or len(self._known) > _MOST_LINES:
            return
        stopped = {
            rank.placement.pid: rank.rank for rank in job.alive_ranks() if rank.stopped and not rank.node
        }
        if stopped.keys() - self._looked_for:
            self._looked_for |= stopped.keys()
            with self._lock:
                self._stopped |= stopped
            self.wake()
        alive = [rank for rank in job.alive_ranks() if not rank.node]
        missing = len(job.ranks) < job.world_size and any(
            _is_missing_here(rank, len(alive)) for rank in alive
        )
        pids = {rank.rank: rank.placement.pid for rank in alive} if missing else {}
        if pids and (pids != self._started or time.monotonic() - self._started_at >= _AGAIN_SECONDS):
            self._started, self._started_at = pids, time.monotonic()  # it may start another one yet
            self._asks_starter = True
            self.wake()
        wanted = [one for one in _wanted(job) if (one.pid, one.frame) not in self._known]
        if wanted:
            self._known.update((one.pid, one.frame) for one in wanted)
            with self._lock:
                self._todo += wanted
            self.wake()

    def period(self, cpu: float, wall: float) -> float:
        return wall + _CALM_SECONDS

    def sample(self) -> None:
        with self._lock:
            todo, self._todo = self._todo, []
            stopped, self._stopped = self._stopped, {}
        if self._asks_starter:
            self._asks_starter = False
            started = self._started
            if (found := starters.read(started)) is not None:
                rank = min(started)
                known = {name: found[name] for name in ("ranks", "ended_faults", "alone")}
                payload: Payload = {
                    "pid": found["pid"],
                    "command": found["command"],
                    "files": {},
                    "started": known,
                }
                self.reporter.put(Record(program.SOURCE, payload, rank, self.reporter.host))
        for record in _stoppers(self._node, stopped) if stopped else ():
            self.reporter.put(record)
        while todo:
            # a line at a time under one name: a recorder calls a method otherwise than a stack does
            batch = {(one.pid, one.frame.file, one.frame.line): one for one in reversed(todo)}
            todo = [one for one in todo if batch[one.pid, one.frame.file, one.frame.line].frame != one.frame]
            for pid in dict.fromkeys(one.pid for one in batch.values()):
                of_it = [one for one in batch.values() if one.pid == pid]
                payload = _read(pid, [one.frame for one in of_it])
                if payload is not None:
                    self.reporter.put(Record(program.SOURCE, payload, of_it[0].rank, self.reporter.host))


def _is_missing_here(rank: RankView, seen: int) -> bool:
    """Fewer ranks of its machine are here than there should be."""
    place = rank.placement
    return seen < (place.local_world_size or place.world_size)


def _wanted(job: JobView) -> Iterator[_Wanted]:
    """Of this node's ranks, and of the others' by the files here: all run one program. And where their calls were first not
    the same, though nobody may be there any more."""
    ranks = job.alive_ranks()
    here = next((rank for rank in ranks if not rank.node), None)
    seen: set[str] = set()  # stacks; a thousand ranks are at a few places
    for rank in ranks if here is not None else ():
        if not rank.node:
            yield from _lines_of(rank)
        elif here is not None and rank.judged is not None and rank.stack_signature not in seen:
            seen.add(rank.stack_signature)
            pid = here.placement.pid
            yield from (_Wanted(here.rank, pid, frame) for frame in _path(rank.judged.frames))
    if here is not None and (apart := job.ranks.calls_apart()) is not None:
        yield from (_Wanted(here.rank, here.placement.pid, frame) for frame in dict.fromkeys(apart.frames))


def _lines_of(rank: RankView) -> Iterator[_Wanted]:
    """The path of the thread that trains, and where its other threads and children are."""
    judged = rank.judged
    pid = rank.placement.pid
    if judged is not None:
        yield from (_Wanted(rank.rank, pid, frame) for frame in _path(judged.frames))
    samples = [(pid, rank.stack)] if rank.stack is not None else []
    samples += [(child, sample) for child, (_, sample) in rank.child_stacks.items()]
    for number, sample in samples:
        for thread in sample.threads[:_MOST_THREADS]:
            yield from (
                _Wanted(rank.rank, number, frame) for frame in own_frames(thread.frames)[-_MOST_OUTER:]
            )


def _path(frames: Iterable[Frame]) -> list[Frame]:
    """Each place once: where a recursion, or a signal handler that interrupts itself, began counts too."""
    return list(dict.fromkeys(own_frames(frames)))[-_MOST_FRAMES:]


def _read(pid: int, frames: Iterable[Frame]) -> Payload | None:
    """None where the process is gone, or no longer its own."""
    wanted: dict[str, dict[int, str]] = {}
    for frame in frames:
        wanted.setdefault(frame.file, {})[frame.line] = frame.function
    try:
        started = psutil.Process(pid).create_time()
        with JobFiles(pid) as files:
            return {
                "pid": pid,
                "files": {path: program.read(files, path, lines, started) for path, lines in wanted.items()},
            }
    except (OSError, psutil.Error):
        return None


def _stoppers(node: NodeContext, stopped: Mapping[int, int]) -> Iterator[Record]:
    """Of each script one process: those of the job, and what has started them; where diag did not start the job, what is
    above the rank."""
    pid, rank = next(iter(stopped.items()))
    processes = node.processes()
    seen: set[str] = set()
    for one in (*(processes.scan() if processes is not None else ()), *_above(pid))[:_MOST_PROCESSES]:
        try:
            process = psutil.Process(one)
            argv, cwd, started = process.cmdline(), process.cwd(), process.create_time()
            script = stops.script_of(argv)
            if not script or script in seen:
                continue
            seen.add(script)
            with JobFiles(one) as files:
                payload = stops.read(files, argv, cwd, started)
        except (OSError, psutil.Error):
            continue
        if payload is not None:
            yield Record(program.SOURCE, {"pid": one, **payload}, rank, node.reporter.host)


def _above(pid: int) -> list[int]:
    try:
        return [one.pid for one in psutil.Process(pid).parents()]
    except psutil.Error:
        return []
