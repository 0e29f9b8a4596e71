"""Faults just before a training step, by wrapping megatron-core's forward-backward functions."""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from ..after_import import after_import
from . import in_collectives, in_gpu, in_locks, in_phases
from .runtime import Runtime
from .spec import FaultError

_SCHEDULES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_without_interleaving",
    "forward_backward_pipelining_with_interleaving",
)


class BeforeStep(Protocol):
    def before_step(self) -> None: ...


def hook(runtime: Runtime, each: BeforeStep | None = None) -> None:
    """`each` is told of every step."""
    after_import(
        "megatron.core.pipeline_parallel.schedules", lambda module: _wrap_schedules(module, runtime, each)
    )


def _wrap_schedules(module: ModuleType, runtime: Runtime, each: BeforeStep | None) -> None:
    for name in _SCHEDULES:
        setattr(module, name, _wrapped(getattr(module, name), runtime, each))


def _wrapped(genuine: Callable[..., Any], runtime: Runtime, each: BeforeStep | None) -> Callable[..., Any]:
    strikes = {**STRIKES, **in_collectives.STRIKES, **in_gpu.STRIKES, **in_locks.STRIKES, **in_phases.STRIKES}
    strike = strikes.get(
        runtime.fault.name
    )  # None: only the steps are counted, for a fault that strikes elsewhere
    each = _SlowRank(runtime) if runtime.fault.name == "slow-rank" else each

    @functools.wraps(genuine)
    def forward_backward(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("forward_only"):
            return genuine(*args, **kwargs)
        runtime.microbatches = int(kwargs["num_microbatches"])
        if each is not None:
            each.before_step()
        elif strike is not None and runtime.step == runtime.fault.step:
            runtime.schedule = functools.partial(genuine, *args, **kwargs)
            strike(runtime)
        result = genuine(*args, **kwargs)
        runtime.step += 1
        return result

    return forward_backward


def _lock_deadlock(runtime: Runtime) -> None:
    metrics, queue, both_hold = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def flush() -> None:
        with queue:
            both_hold.wait()
            with metrics:
                return

    threading.Thread(target=flush, name="metrics-flush", daemon=True).start()
    with metrics:
        both_hold.wait()
        runtime.announce()
        with queue:
            return


def _gil_held(runtime: Runtime) -> None:
    runtime.announce()
    libc = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL during the call
    libc.sleep(int(runtime.fault.option("seconds")) or (1 << 31) - 1)


def _skip_collective(runtime: Runtime) -> None:
    runtime.announce()
    runtime.wait_for_release()


def _sigstop(runtime: Runtime) -> None:
    runtime.announce()
    os.kill(os.getpid(), signal.SIGSTOP)


def _rank_killed(runtime: Runtime) -> None:
    runtime.announce()
    os.kill(os.getpid(), signal.SIGKILL)


def _rank_crash(runtime: Runtime) -> None:
    runtime.announce()
    raise RuntimeError(f"fault rank-crash: raised on purpose in rank {runtime.rank} at step {runtime.step}")


def _exception_then_teardown(runtime: Runtime) -> None:
    runtime.announce()
    atexit.register(_upload_last_metrics, runtime)
    raise RuntimeError(
        f"fault exception-then-teardown: raised on purpose in rank {runtime.rank} at step {runtime.step}"
    )


def _upload_last_metrics(runtime: Runtime) -> None:
    # An atexit function that waits for a server is what experiment trackers register.
    runtime.wait_for_release()


class _SlowRank:
    """Makes this rank `factor` times as slow as it was at its quickest: the first steps carry one-time costs."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.factor = runtime, runtime.fault.option("factor")
        self.quickest, self.started = float("inf"), 0.0
        self.announced = False

    def before_step(self) -> None:
        if self.started:
            self.quickest = min(self.quickest, time.monotonic() - self.started)
            if self.runtime.step >= self.runtime.fault.step:
                if not self.announced:
                    self.runtime.announce(f"step_seconds={self.quickest:.3f} factor={self.factor:g}")
                    self.announced = True
                time.sleep(self.quickest * max(0.0, self.factor - 1))
        self.started = time.monotonic()  # after the sleep, which would else be taken for the step's own time


def _pids_limit(runtime: Runtime) -> None:
    group = runtime.pids_cgroup
    assert group is not None
    limit = int((group / "pids.current").read_text()) + int(runtime.fault.option("spare"))
    (group / "pids.max").write_text(str(limit))
    runtime.announce(f"cgroup={group} limit={limit}")
    while True:  # as a save that forks its writers, or an epoch its workers: ends in "Resource temporarily unavailable"
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            time.sleep(3600)


_LEAKED: list[int] = []


def _fd_exhaust(runtime: Runtime) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = int(runtime.fault.option("limit"))
    if soft == resource.RLIM_INFINITY or soft > limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        while True:
            _LEAKED.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:  # EMFILE; whoever opens the next file meets it
        runtime.announce(f"limit={limit} errno={error.errno}")


def _preprocess(runtime: Runtime) -> None:
    import torch.distributed

    if runtime.rank == runtime.fault.rank:
        runtime.announce()
        _tokenize_all(runtime.fault.option("seconds"))
    torch.distributed.barrier()


def _tokenize(row: dict[str, str]) -> dict[str, list[int]]:
    """Byte pairs, merged until none is left to merge: honest work for a CPU."""
    ids = list(row["text"].encode())
    for merged in range(256, 320):
        counts: dict[tuple[int, int], int] = {}
        for pair in itertools.pairwise(ids):
            counts[pair] = counts.get(pair, 0) + 1
        best = max(counts, key=counts.__getitem__, default=None)
        if best is None or counts[best] < 2:
            break
        out, i = [], 0
        while i < len(ids):
            both = i + 1 < len(ids) and (ids[i], ids[i + 1]) == best
            out.append(merged if both else ids[i])
            i += 2 if both else 1
        ids = out
    return {"input_ids": ids}


def _tokenize_all(seconds: float) -> None:
    """The genuine `datasets.Dataset.map` where the job has datasets, the like of it where it has not."""
    rows = [
        {"text": f"the quick bird number {i} crosses the small river and follows the warm road " * 4}
        for i in range(2000)
    ]
    until = time.monotonic() + seconds
    datasets: Any = sys.modules.get("datasets")
    while time.monotonic() < until:
        if datasets is not None:
            datasets.Dataset.from_list(rows[:500]).map(_tokenize, load_from_cache_file=False)
            continue
        started = time.monotonic()
        for done, row in enumerate(rows, 1):
            _tokenize(row)
            if done % 20 == 0:
                rate = done / (time.monotonic() - started)
                os.write(
                    2,
                    f"\rMap: {done * 100 // len(rows):3d}%| {done}/{len(rows)} [{rate:.2f} examples/s]".encode(),
                )
            if time.monotonic() >= until:
                break
        os.write(2, b"\n")


def find_compiler() -> str:
    for name in ("gcc", "cc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return path
    raise FaultError(
        "fault long-compile: there is no C compiler (gcc, cc, clang)\n\nhint: apt-get install gcc"
    )


def _long_compile(runtime: Runtime) -> None:
    compiler = find_compiler()
    until = time.monotonic() + runtime.fault.option("seconds")
    with tempfile.TemporaryDirectory(prefix="diag-fault-") as folder:
        source = Path(folder) / "kernel.c"
        source.write_text(_kernels(1500))
        runtime.announce(f"compiler={compiler}")
        while (left := until - time.monotonic()) > 0:
            command = [compiler, "-O3", "-shared", "-fPIC", "-o", str(source.with_suffix(".so")), str(source)]
            with subprocess.Popen(command, start_new_session=True) as process:
                try:
                    process.wait(left)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)  # gcc and its cc1


def _kernels(count: int) -> str:
    return "".join(
        f"void k{i}(float *restrict a, const float *restrict b, int n) {{\n"
        f"  for (int i = 0; i < n; i++) for (int j = 0; j < {i % 7 + 2}; j++)\n"
        f"    a[i] += b[i * {i % 5 + 1} + j] * {i}.5f + a[j] / (b[j] + {i % 3 + 1}.f);\n}}\n"
        for i in range(count)
    )


STRIKES: dict[str, Callable[[Runtime], None]] = {
    "lock-deadlock": _lock_deadlock,
    "gil-held": _gil_held,
    "skip-collective": _skip_collective,
    "sigstop": _sigstop,
    "rank-killed": _rank_killed,
    "rank-crash": _rank_crash,
    "exception-then-teardown": _exception_then_teardown,
    "fd-exhaust": _fd_exhaust,
    "pids-limit": _pids_limit,
    "preprocess-on-rank-0": _preprocess,
    "long-compile": _long_compile,
}
