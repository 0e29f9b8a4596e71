"""Faults in saving a checkpoint, by hooks in megatron-core's file writer."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from ..after_import import after_import
from .at_start import limit_memory, mount_private
from .runtime import Runtime, give_up

NAMES = ("save-stall", "slow-save", "host-oom", "parent-oom", "rlimit-as", "disk-full", "save-killed")
_IN_MEMORY = ("host-oom", "parent-oom", "rlimit-as")

# "0.3 MB per half second": slow enough to be worried about, and bytes move between any two looks.
_CHUNK, _PAUSE_S = 300_000, 0.5


def hook(runtime: Runtime) -> None:
    hooks = _hook_memory if runtime.fault.name in _IN_MEMORY else _hook_files
    after_import(
        "megatron.core.dist_checkpointing.strategies.filesystem_async", lambda module: hooks(module, runtime)
    )


def _due(runtime: Runtime) -> bool:
    return runtime.step > runtime.fault.step and runtime.first_time()


def _hook_files(module: ModuleType, runtime: Runtime) -> None:
    """Take the place of `open` in that module alone, so that what calls it is Megatron's own write."""
    strike = {"save-stall": _stall, "disk-full": _fill_disk, "save-killed": _die}.get(
        runtime.fault.name, _write_slowly
    )

    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        # Each rank has up to two files, written by two children: one of them is enough.
        if "w" in mode and str(file).endswith("_0.distcp") and _due(runtime):
            strike(runtime, os.fspath(file))
        return open(file, mode, *args, **kwargs)

    module.open = open_  # type: ignore[attr-defined]


def _stall(runtime: Runtime, path: str) -> None:
    runtime.announce(f"file={path}")
    runtime.wait_for_release()


def _write_slowly(runtime: Runtime, path: str) -> None:
    runtime.announce(f"file={path}")
    until = time.monotonic() + runtime.fault.option("seconds")
    slow = path + ".slow"  # beside the real file, and gone when that is written
    with open(slow, "wb", buffering=0) as file:
        while time.monotonic() < until:
            file.write(os.urandom(_CHUNK))
            os.fsync(file.fileno())
            time.sleep(_PAUSE_S)
    os.unlink(slow)


def _fill_disk(runtime: Runtime, path: str) -> None:
    """A disk of `megabytes` in the checkpoint's place, seen by this writer alone: the kernel itself says
    ENOSPC."""
    try:
        mount_private(str(Path(path).parent), runtime.fault.option("megabytes"))
    except (
        OSError
    ) as error:  # megatron-core 0.18 writes in the rank itself, and no user namespace is given to threads
        give_up(
            f"fault disk-full: no disk of its own for {path} ({error})\n\nhint: run it as root, or with megatron-core 0.16"
        )
    runtime.announce(f"file={path}")


def _die(runtime: Runtime, path: str) -> None:
    """The rank is gone in the middle of the save, with half of a file written. Its writer follows."""
    with open(path, "wb") as file:
        file.write(os.urandom(_CHUNK))
    runtime.announce(f"file={path}")
    os.kill(runtime.main_pid, signal.SIGKILL)
    os._exit(1)


def _hook_memory(module: ModuleType, runtime: Runtime) -> None:
    """Let the copy of the tensors to host memory, which comes before the first byte is written, be too much."""
    writer: Any = module.FileSystemWriterAsync
    genuine = writer.preload_tensors

    @functools.wraps(genuine)
    def preload_tensors(*args: Any, **kwargs: Any) -> Any:
        if _due(runtime):
            import torch

            if runtime.fault.name == "rlimit-as":
                runtime.announce(f"rlimit_as={int(runtime.fault.option('gigabytes')) << 30}")
                wanted = []
                while True:  # ends in torch's own "can't allocate memory"; no byte of it is touched
                    wanted.append(torch.empty(1 << 30, dtype=torch.uint8))
            headroom = int(runtime.fault.option("megabytes")) << 20
            runtime.announce(limit_memory(runtime, headroom))
            staged = []
            while True:  # ends in the kernel's SIGKILL, or in torch's own "can't allocate memory"
                staged.append(torch.ones(1 << 20))
                time.sleep(0.02)
        return genuine(*args, **kwargs)

    writer.preload_tensors = staticmethod(preload_tensors)
