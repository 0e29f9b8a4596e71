"""All that is read once a node, started and ended together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from diag.agent.samplers.checkpoints import CheckpointWatch, WatchedJob
from diag.agent.samplers.estimate import estimate_watched
from diag.agent.samplers.kernel import KernelWatch
from diag.agent.samplers.node import GpuWatch, NetworkWatch
from diag.agent.samplers.store import Connecting, StoreWatch
from diag.engine.engine import Engine
from diag.model import Record
from diag.sources.collectives import store
from diag.sources.host import run as run_source
from diag.sources.host.process_tree import Tree
from diag.state.rank_view import RankView
from diag.text.errors import shortage

__all__ = ["NodeWatches"]

_STACK_SECONDS = 30.0  # a calm rank's stack is read seldom
_INNERMOST = 4


class NodeWatches:
    """`engine` is read under `lock`, to tell the watches where to look; `put` and `sampled` are called from
    their threads."""

    def __init__(  # noqa: PLR0917 - one caller, the hub
        self,
        host: str,
        engine: Engine,
        lock: threading.RLock,
        put: Callable[[Record], None],
        sampled: Callable[[str, float], None],
        seconds: float,
        run_dir: str,
        kernel_words: Sequence[str] = (),
    ) -> None:
        self._host = host
        self._engine = engine
        self._lock = lock
        self._put = put
        self._gpus = GpuWatch(host, put, seconds)
        self._networks = NetworkWatch(host, put, self._some_rank, sampled)
        self._kernel = KernelWatch(host, put, words=kernel_words)
        self._store = StoreWatch(host, put, self._connecting)
        self._checkpoints = CheckpointWatch(host, put, self._checkpoint_view, sampled, run_dir)
        self._argv: tuple[str, ...] = ()
        self._pid = 0

    def start(self, argv: Sequence[str], pid: int, *, launched: bool = True, attached: bool = False) -> None:
        """The job's root process is `pid`, its command `argv`. `launched`: what is below that process is the
        job. `attached`: diag did not start it."""
        self._argv, self._pid = tuple(argv), pid
        self._checkpoints.attached = attached
        self._begin("gpu", self._gpus.start)
        self._begin("interfaces", self._networks.start)
        self._begin("kernel log", self._kernel.start)
        self._begin("store", lambda: self._store.start(Tree(pid) if launched else None))
        self._begin("checkpoints", self._checkpoints.start)
        self._begin("estimate", lambda: estimate_watched(argv, pid, self._put, self._host))

    def first_rank(self, pid: int) -> None:
        """Its own command line tells more than the launcher's."""
        self._begin("estimate", lambda: estimate_watched(None, pid, self._put, self._host))

    def _begin(self, source: str, start: Callable[[], object]) -> None:
        """Where there is no thread or file left for one of them, the others go on."""
        try:
            start()
        except (OSError, RuntimeError) as error:
            if not (lacking := shortage(error)):
                raise
            self._put(
                run_source.failed(
                    source,
                    f"cannot be watched: there are no more {lacking}",
                    "raise the limit",
                    host=self._host,
                )
            )

    def read_soon(self) -> None:
        """For a dump: what changes slowly is due now. Does not wait."""
        self._networks.read_soon()
        self._checkpoints.read_soon()

    def look_closer(self, closer: bool) -> None:
        """The job is suspected, or no longer."""
        self._gpus.look_closer(closer)

    def stop(self) -> None:
        self._gpus.stop()
        self._networks.stop()
        self._kernel.stop()
        self._store.stop()

    def finish(self) -> None:
        """CMD has ended and all that it printed is in: the last look at its checkpoints."""
        self._checkpoints.finish()

    def close(self) -> None:
        """End the helper that asks NVML."""
        self._gpus.close()

    def _some_rank(self) -> int | None:
        with self._lock:
            return next((rank.placement.pid for rank in self._engine.job.alive_ranks()), None)

    def _connecting(self) -> list[Connecting] | None:
        with self._lock:
            job = self._engine.job
            if job.iteration is not None:
                return None
            return [
                Connecting(
                    rank.rank,
                    rank.placement.pid,
                    rank.placement.node_rank,
                    _calls_store(rank, self._engine.now),
                )
                for rank in job.alive_ranks()
                if not rank.node
            ]

    def _checkpoint_view(self) -> WatchedJob:
        with self._lock:
            job = self._engine.job
            log = job.saves.log
            rank = next((rank.placement.pid for rank in job.alive_ranks()), None)
            said = tuple(dict.fromkeys(save.path for save in log.saves if save.path))[-4:]
            saving = job.phase == "ckpt_save" or log.unwritten is not None
            pid = job.run.pid or self._pid  # at the first look the engine may not have been told yet
            return WatchedJob(job.run.argv or self._argv, pid, rank, _owner(rank or pid), saving, said)


def _calls_store(rank: RankView, now: float) -> bool:
    """By its last stack, where that is of the last seconds."""
    main = rank.stack.main if rank.stack is not None and now - rank.stack_at <= _STACK_SECONDS else None
    return main is not None and any(
        store.connects(frame.function, frame.file) for frame in main.frames[-_INNERMOST:]
    )


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - as short as it is
    except OSError:
        return None
