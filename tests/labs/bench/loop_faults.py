"""What may strike a rank of `gpu_loop`, each as a program of its own would suffer it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["FAULTS", "busy_in_c", "strike", "strikes_all"]

_BUSY_ROUNDS = 100_000  # of PBKDF2: some hundredths of a second
_LONG_SECONDS = 600.0  # longer than anybody looks, and over by itself: nothing endless is left on a GPU
_CLOCK_HERTZ = 2e9


def busy_in_c(rounds: int = _BUSY_ROUNDS) -> None:
    """At 100 % CPU in C, without a frame, without the GIL and without a system call: what `.item()` does while
    the GPU has not come so far."""
    hashlib.pbkdf2_hmac("sha256", b"item", b"item", rounds)


def _wait_for_leader() -> None:
    """As people write it: a branch that one rank takes, and a file that nobody makes."""
    while not Path(tempfile.gettempdir(), f"leader-of-{os.getpid()}").exists():
        time.sleep(1.0)


def _deadlock() -> None:
    """Two threads take two locks in opposite order."""
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def other_way() -> None:
        with second:
            both.wait()
            with first:
                pass

    threading.Thread(target=other_way, daemon=True, name="logger").start()
    with first:
        both.wait()
        with second:
            pass


def _fill_gpu(seconds: float) -> None:
    """Activations of a batch that is too long; with seconds between them a leak."""
    import torch

    held = []
    while True:
        held.append(torch.empty(8 << 30, dtype=torch.uint8, device="cuda"))
        time.sleep(seconds)


def _look_up() -> None:
    """A token that the embedding does not have."""
    import torch

    torch.nn.functional.embedding(torch.tensor([100], device="cuda"), torch.zeros(10, 4, device="cuda"))
    torch.cuda.synchronize()


def _pin_memory() -> None:
    import torch

    torch.empty(1 << 50, dtype=torch.uint8, pin_memory=True)


def _launch_long_kernel(stream: Any = None) -> None:
    import torch

    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(_LONG_SECONDS * _CLOCK_HERTZ))  # type: ignore[no-untyped-call]


def _long_kernel() -> None:
    """A kernel before the step's collectives, on their stream: what follows never gets its turn."""
    import torch

    if torch.cuda.is_available():
        _launch_long_kernel()
    else:
        busy_in_c(1 << 31)


def _stream_thread() -> None:
    """A thread flushes to the host on a stream of its own; the main thread joins it."""
    import torch

    def offload_flush() -> None:
        if torch.cuda.is_available():
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            _launch_long_kernel(stream)
            stream.synchronize()
        else:
            busy_in_c(1 << 31)

    thread = threading.Thread(target=offload_flush, name="offload-flush", daemon=True)
    thread.start()
    thread.join()


def _leave() -> None:
    import torch

    torch.distributed.destroy_process_group()
    sys.exit(0)


def _log_loss_alone() -> None:
    """`if rank == 0: all_reduce(loss)`: one collective more than the others."""
    import torch

    loss = torch.ones(1, device="cuda" if torch.cuda.is_available() else "cpu")
    torch.distributed.all_reduce(loss)


def _opposite_groups(groups: list[Any], device: str) -> None:
    """Two groups of all ranks, taken in opposite order by one; a wait after each call."""
    import torch

    rank = torch.distributed.get_rank()
    for group in groups if rank else reversed(groups):
        value = torch.ones(1 << 20, device=device)
        torch.distributed.all_reduce(value, group=group)
        value[0].item()


def _other_size(device: str) -> None:
    """Sizes differ a little, as of two shards of a model: NCCL may let it pass, gloo does not."""
    import torch

    elements = (3 if torch.distributed.get_rank() else 4) << 20
    torch.distributed.all_reduce(torch.ones(elements, device=device))


def _stop_iteration() -> None:
    """A program that dies of its own error, without a message."""
    raise StopIteration


_ON_ONE: dict[str, Callable[[], None]] = {
    "skip-collective": _wait_for_leader,
    "lock-deadlock": _deadlock,
    "rank-killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "gil-held": lambda: ctypes.PyDLL(None).sleep(100_000),
    "cuda-oom": lambda: _fill_gpu(0.0),
    "cuda-leak": lambda: _fill_gpu(1.0),
    "device-assert": _look_up,
    "pinned-memory": _pin_memory,
    "long-kernel": _long_kernel,
    "stream-thread": _stream_thread,
    "leave": _leave,
    "log-loss-alone": _log_loss_alone,
    "stop-iteration": _stop_iteration,
}
# these strike in the data or in every step, and the loop does it itself
_IN_LOOP = ("data-hang", "slow")
# all ranks meet in these
_ON_ALL = ("opposite-groups", "other-size")
FAULTS = (*_ON_ONE, *_IN_LOOP, *_ON_ALL)


def strikes_all(fault: str | None) -> bool:
    return fault in _ON_ALL


def strike(fault: str, groups: list[Any], device: str) -> None:
    print(
        f"[diag.fault] rank {os.environ['RANK']}: {fault} at step (pid {os.getpid()}) at={time.time():.3f}",
        flush=True,
    )
    if fault == "opposite-groups":
        _opposite_groups(groups, device)
    elif fault == "other-size":
        _other_size(device)
    elif fault in _ON_ONE:
        _ON_ONE[fault]()
