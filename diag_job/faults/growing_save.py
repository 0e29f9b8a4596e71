"""The fault growing-save: each save stages real memory by a seeded plan, in a real memory cgroup that has
room for it, or not.

The limit is set behind the first save, when it is known what the job and Megatron's own part of a save need.
What was done is written to growing-save.jsonl in the fault's folder, not to the job's output: a diagnosis
that reads the answer proves nothing.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import re
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from ..after_import import after_import
from .at_start import limit_memory
from .growing_plan import Plan, limit_of, plan_of
from .runtime import Runtime
from .spec import FaultError

_SLICES = 40  # of one staging
_OWN = 24 << 20  # what a save of the small job needs besides, measured: forked writers, buffers
_MOST_CACHE = 512 << 20


class GrowingSave:
    """One rank's part in it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.plan: Plan = plan_of(int(runtime.fault.option("seed")), fits=bool(runtime.fault.option("fits")))
        self.unit = int(runtime.fault.option("megabytes")) << 20
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self.saves = 0
        self._saved_at: list[int] = []  # the steps that were complete at each save
        self._staged: list[mmap.mmap] = []
        self._kept: list[mmap.mmap] = []
        self._limit: int | None = None
        if runtime.memory_cgroup is None:
            raise FaultError(
                "fault growing-save: this user may not make a memory cgroup\n\nhint: run it as root"
            )

    def hook(self) -> None:
        after_import("megatron.core.dist_checkpointing.strategies.filesystem_async", self._wrap)

    # -- in each step -------------------------------------------------------------------------------------

    def before_step(self) -> None:
        leak = int(self.plan.leak * self.unit / self.ranks)
        if leak:
            self._kept.append(_taken(leak))
        if self.runtime.rank != 0:
            return
        if self.saves == 1 and self._limit is None and self.runtime.step == self._saved_at[0] + 1:
            self._set_limit()
        self._tell("step", step=self.runtime.step, needed=_needed(self._group))

    @property
    def _group(self) -> Path:
        assert self.runtime.memory_cgroup is not None
        return self.runtime.memory_cgroup

    def _set_limit(self) -> None:
        needed = _needed(self._group)
        spare = int(self.runtime.fault.option("spare")) << 20
        self._limit = spare + limit_of(self.plan, needed, self.unit, _OWN, self._saved_at[0])
        used = _number(self._group, "memory.usage_in_bytes", "memory.current")
        limit_memory(self.runtime, self._limit - used)
        self._tell("limit", limit=self._limit, needed=needed)
        if self.plan.cache:
            _fill_cache(
                self.runtime.folder / "cache.bin", min(_MOST_CACHE, int(0.95 * (self._limit - needed)))
            )

    # -- in each save -------------------------------------------------------------------------------------

    def _wrap(self, module: ModuleType) -> None:
        writer: Any = module.FileSystemWriterAsync
        # Of processes up to megatron-core 0.16, of threads in 0.18.
        name = "write_preloaded_data_" + (
            "multiproc" if hasattr(writer, "write_preloaded_data_multiproc") else "multithread"
        )
        preload, write = writer.preload_tensors, getattr(writer, name)

        @functools.wraps(preload)
        def preload_tensors(*args: Any, **kwargs: Any) -> Any:
            self._stage()
            return preload(*args, **kwargs)

        @functools.wraps(write)
        def write_preloaded_data(*args: Any, **kwargs: Any) -> Any:
            try:
                return write(*args, **kwargs)
            finally:
                self._release()

        writer.preload_tensors = staticmethod(preload_tensors)
        setattr(writer, name, staticmethod(write_preloaded_data))

    def _stage(self) -> None:
        if self._staged:
            return
        self._saved_at.append(self.runtime.step)
        self.saves += 1
        save = self.plan.saves[min(self.saves, len(self.plan.saves)) - 1]
        size = int(save.staged * self.unit / self.ranks)
        if self.runtime.rank == 0:
            self._tell("stage", number=self.saves, staged=size * self.ranks, own=_OWN)
        began = time.monotonic()
        for i in range(_SLICES):
            self._staged.append(_taken(size // _SLICES))
            time.sleep(max(0.0, began + save.seconds * (i + 1) / _SLICES - time.monotonic()))

    def _release(self) -> None:
        if not self._staged:
            return
        if self.runtime.rank == 0:
            self._tell("saved", number=self.saves, needed=_needed(self._group))
        save = self.plan.saves[min(self.saves, len(self.plan.saves)) - 1]
        for block in self._staged:
            block.close()
        self._staged.clear()
        if save.kept:
            self._kept.append(_taken(int(save.kept * self.unit / self.ranks)))

    def _tell(self, event: str, **facts: Any) -> None:
        self.runtime.folder.mkdir(parents=True, exist_ok=True)
        with open(self.runtime.folder / "growing-save.jsonl", "a") as file:
            file.write(json.dumps({"event": event, "at": time.time(), **facts}) + "\n")


def _taken(size: int) -> mmap.mmap:
    """Memory with every page written; given back to the kernel when it is closed."""
    size = max(mmap.PAGESIZE, size // mmap.PAGESIZE * mmap.PAGESIZE)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block[:: mmap.PAGESIZE] = b"\1" * (size // mmap.PAGESIZE)
    return block


def _number(group: Path, *names: str) -> int:
    return int(next(group / name for name in names if (group / name).exists()).read_text())


def _needed(group: Path) -> int:
    """Usage without page cache."""
    stat = {
        name: int(value)
        for name, value in re.findall(r"^(\w+) (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
    }
    prefix = "total_" if "total_active_file" in stat else ""
    cache = stat[f"{prefix}inactive_file"] + stat[f"{prefix}active_file"]
    return _number(group, "memory.usage_in_bytes", "memory.current") - cache


def _fill_cache(path: Path, size: int) -> None:
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(max(0, size) >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
