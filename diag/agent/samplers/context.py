"""What the samplers of a node get to know of their job, from the engine of the hub."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from diag.agent.samplers.sampler import Reporter, Sampler
from diag.engine.engine import Engine
from diag.model import Placement
from diag.settings import Settings
from diag.sources.collectives import store
from diag.sources.host.process_tree import Processes, Tree
from diag.state.rank_view import RankView
from diag.state.view import JobView

_STACK_SECONDS = 30.0  # a calm rank's stack is read seldom
_INNERMOST = 4


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """What the sampler must know of the job, anew for each look."""

    argv: tuple[str, ...] = ()
    pid: int = 0  # CMD's own
    rank_pid: int | None = None
    uid: int | None = None
    saving: bool = False
    logged: tuple[str, ...] = ()  # the paths that the log named
    attached: bool = False  # diag did not start it, and it may be another user's


@dataclass(frozen=True, slots=True)
class Connecting:
    """A rank of this node: `calls` says whether its last stack is in the call that connects."""

    rank: int
    pid: int
    node: int
    calls: bool


@dataclass(slots=True)
class NodeContext:
    """`engine` is read under `lock`. The job's own facts are set before the samplers start."""

    reporter: Reporter
    engine: Engine
    lock: threading.RLock
    settings: Settings
    run_dir: str = ""
    kernel_words: Sequence[str] = ()
    ras_address: str | None = None
    erred: Callable[[str, str], None] = lambda source, reason: None  # counts what gave nothing
    argv: tuple[str, ...] = ()  # CMD
    pid: int = 0
    launched: bool = True  # what is below that process is the job
    attached: bool = False  # diag did not start it

    def processes(self) -> Processes | None:
        """Of the job; None where its launchers cannot be distinguished from other processes of the machine."""
        return Tree(self.pid) if self.launched else None

    def some_rank(self) -> int | None:
        """The pid of a living rank."""
        with self.lock:
            return next((rank.placement.pid for rank in self.engine.job.alive_ranks()), None)

    def connecting(self) -> list[Connecting] | None:
        """The ranks of this node; None once the job has made steps."""
        with self.lock:
            job = self.engine.job
            if job.iteration is not None:
                return None
            return [
                Connecting(
                    rank.rank,
                    rank.placement.pid,
                    rank.placement.node_rank,
                    _calls_store(rank, self.engine.now),
                )
                for rank in job.alive_ranks()
                if not rank.node
            ]

    def has_ranks(self) -> bool:
        """Whether any runs on this node."""
        with self.lock:
            return any(rank.distributed and not rank.node for rank in self.engine.job.alive_ranks())

    def outliving(self) -> int | None:
        """The command's pid, while none of the ranks that ran below it does."""
        if not self.launched or self.attached:
            return None
        with self.lock:
            ranks = self.engine.job.ranks.values()
            ended = any(rank.distributed for rank in ranks) and not any(rank.alive for rank in ranks)
            return self.pid if ended else None

    def checkpoints(self) -> WatchedJob:
        with self.lock:
            job = self.engine.job
            log = job.saves.log
            rank = next((rank.placement.pid for rank in job.alive_ranks()), None)
            named = tuple(dict.fromkeys(save.path for save in log.saves if save.path))[-4:]
            saving = job.phase == "ckpt_save" or log.unwritten is not None
            pid = job.run.pid or self.pid  # at the first reading the engine may not know it yet
            return WatchedJob(
                job.run.argv or self.argv, pid, rank, _owner(rank or pid), saving, named, self.attached
            )


def _calls_store(rank: RankView, now: float) -> bool:
    """By its last stack, where that is of the last seconds."""
    main = rank.judged if now - rank.stack_at <= _STACK_SECONDS else None
    return main is not None and any(
        store.connects(frame.function, frame.file) for frame in main.frames[-_INNERMOST:]
    )


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - as short as it is
    except OSError:
        return None


class NodeSampler(Sampler):
    """One of a node, which the hub has."""

    read_for_dumps: ClassVar[bool] = False  # what it reads changes slowly, and is read anew for each dump

    @classmethod
    def of(cls, node: NodeContext) -> NodeSampler:
        raise NotImplementedError

    def rank_found(self, place: Placement, variables: dict[str, str]) -> None:
        """A rank of this node, with what of its environment matters."""

    def tend(self, closer: bool, job: JobView) -> None:
        """About once a second on the hub's thread, the engine's lock held: the job is suspected, or not. Never
        waits."""

    def finish(self) -> None:
        """CMD has ended, and all that it printed is in. `stop` was called before."""

    def close(self) -> None:
        """diag ends."""
