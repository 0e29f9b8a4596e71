"""Faults inside a DataLoader worker, by wrapping the fetch of torch's worker loop."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..after_import import after_import
from .at_start import limit_memory
from .runtime import Runtime, give_up


def hook(runtime: Runtime) -> None:
    after_import("torch.utils.data._utils.fetch", lambda module: _wrap_fetchers(module, runtime))


def _wrap_fetchers(module: ModuleType, runtime: Runtime) -> None:
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        fetcher: Any = getattr(module, name)
        fetcher.fetch = _wrapped(fetcher.fetch, runtime)


def _wrapped(genuine: Callable[..., Any], runtime: Runtime) -> Callable[..., Any]:
    strike = STRIKES[runtime.fault.name]
    count = 0  # in this process: torch gives batch i to worker i % num_workers

    @functools.wraps(genuine)
    def fetch(self: Any, index: Any) -> Any:
        nonlocal count
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        if worker is None and runtime.fault.name.startswith(("data-worker", "worker-")):
            give_up(
                f"{runtime.fault.name}: this job loads its data without workers\n\nhint: give it DataLoader workers"
            )
        batch = count if worker is None else count * worker.num_workers + worker.id
        count += 1
        # runtime.step is what it was when the workers were forked, at the start of their epoch.
        step = runtime.step + batch // runtime.microbatches
        if step >= runtime.fault.step and runtime.first_time():
            runtime.step = step
            strike(runtime, self)
        return genuine(self, index)

    return fetch


class _StalledDataset:
    """A dataset whose storage does not answer the first read; the fetch that reads it is torch's own."""

    def __init__(self, fetcher: Any, path: os.PathLike[str]) -> None:
        self.fetcher, self.dataset, self.path = fetcher, fetcher.dataset, path

    def __getitem__(self, index: Any) -> Any:
        _read_shard(self.path)
        self.fetcher.dataset = self.dataset
        return self.dataset[index]


def _read_shard(path: os.PathLike[str]) -> bytes:
    # Opening a FIFO waits in the kernel for a writer, as a read from a dead mount waits for its server.
    with open(path, "rb") as shard:
        return shard.read()


def _data_hang(runtime: Runtime, fetcher: Any) -> None:
    path = runtime.fifo()
    runtime.announce(f"fifo={path}")
    if hasattr(fetcher, "dataset_iter"):
        _read_shard(path)  # an iterable dataset: its iterator exists already
    else:
        fetcher.dataset = _StalledDataset(fetcher, path)


def _data_worker_killed(runtime: Runtime, fetcher: Any) -> None:
    runtime.announce()
    os.kill(os.getpid(), signal.SIGKILL)


def _shm_full(runtime: Runtime, fetcher: Any) -> None:
    # What another process of the node would have left there.
    with open("/dev/shm/left-by-another-job", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:  # ENOSPC is what it is for
                continue
    shm = os.statvfs("/dev/shm")
    runtime.announce(f"shm_bytes={shm.f_blocks * shm.f_frsize}")


def _worker_oom(runtime: Runtime, fetcher: Any) -> None:
    runtime.announce(limit_memory(runtime, int(runtime.fault.option("megabytes")) << 20))
    decoded = []
    while True:  # a cache of decoded samples without a bound; ends in the kernel's SIGKILL
        decoded.append(b"x" * (4 << 20))
        time.sleep(0.02)


def _data_lock(runtime: Runtime, fetcher: Any) -> None:
    runtime.announce()
    cache = threading.Lock()  # not an RLock: taking it twice in one thread is the classic mistake
    with cache:
        _read_through_cache(cache)


def _read_through_cache(cache: threading.Lock) -> None:
    with cache:
        return


def _data_worker_stopped(runtime: Runtime, fetcher: Any) -> None:
    runtime.announce()
    os.kill(os.getpid(), signal.SIGSTOP)


STRIKES: dict[str, Callable[[Runtime, Any], None]] = {
    "data-hang": _data_hang,
    "data-worker-killed": _data_worker_killed,
    "shm-full": _shm_full,
    "worker-oom": _worker_oom,
    "data-lock": _data_lock,
    "data-worker-stopped": _data_worker_stopped,
}
