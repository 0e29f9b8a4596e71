"""Faults for the bundled job, by hook: DIAG_FAULT="NAME[:rank=R,step=S,...]" in the environment, nothing
else.

`arm()` runs before torch is imported, from sitecustomize or from `python -m diag_job`. It asks to be called
back when torch or Megatron import the one module that the fault needs; without DIAG_FAULT it does nothing.

DIAG_FAULT_DIR is where FIFOs and markers go. Who waits is let go by a file DIAG_FAULT_RELEASE (or `release`
in that folder); a data-hang by whoever writes to `data-hang-rankR.fifo` there. `python -m diag_job.faults
--release DIR` does both. A job that diag started again (DIAG_ATTEMPT) gets no fault but with DIAG_FAULT_AGAIN=1.
"""

from __future__ import annotations

import os
import sys

from .runtime import Runtime, fault_folder, give_up, release
from .spec import KINDS, Fault, FaultError, Kind, parse

__all__ = ["KINDS", "Fault", "FaultError", "Kind", "arm", "check", "parse", "release"]


def check(fault: Fault, ranks: int | None = None) -> None:
    """Raise FaultError if this machine, or a job of so many ranks, cannot have the fault."""
    if ranks is not None and fault.rank >= ranks:
        raise FaultError(
            f"fault {fault.name}: there is no rank {fault.rank}\n\nhint: the job has {ranks} ranks, from 0"
        )
    if fault.name in ("shm-full", "disk-full"):
        from .at_start import check_private_mount

        check_private_mount(fault.name)
    elif fault.name == "long-compile":
        from .at_step import find_compiler

        find_compiler()
    else:
        from . import in_gpu

        if fault.name in in_gpu.NAMES:
            in_gpu.check_gpu(fault.name)


def arm() -> None:
    """Read DIAG_FAULT and set the hooks for it. Exits with 2 if it cannot be had."""
    text = os.environ.get("DIAG_FAULT")
    if os.environ.get("DIAG_ATTEMPT", "1") != "1" and os.environ.get("DIAG_FAULT_AGAIN") != "1":
        return  # `diag run --on hang=restart` started this again
    # Twice: sitecustomize and `python -m diag_job` may both be there, under two module names.
    if not text or getattr(sys, "_diag_fault_armed", False):
        return
    sys._diag_fault_armed = True  # type: ignore[attr-defined]
    if any("multiprocessing" in word for word in sys.orig_argv):
        return  # a spawned helper of a rank (it has the rank's environment), not a rank
    try:
        fault = parse(text)
        if "RANK" not in os.environ:
            check(fault)  # the command or the launcher: say it before any rank is started
            return
        rank = int(os.environ["RANK"])
        check(fault, int(os.environ.get("WORLD_SIZE", "1")))
        _set_hooks(Runtime(fault, fault_folder(), rank))
    except FaultError as error:
        give_up(str(error))


def _set_hooks(runtime: Runtime) -> None:
    from . import at_save, at_start, at_step, growing_save, in_collectives, in_gpu, in_phases, in_worker

    name = runtime.fault.name
    if name in ("host-oom", "worker-oom", "parent-oom", "growing-save"):
        at_start.join_memory_cgroup(runtime)
    elif name == "pids-limit":
        at_start.join_pids_cgroup(runtime)
    elif name == "rlimit-as" and runtime.is_culprit:
        at_start.limit_addresses(runtime)
    elif name == "nccl-hosts":
        in_gpu.name_hosts(runtime)
        return
    everywhere = name in ("preprocess-on-rank-0", *in_collectives.ON_EVERY_RANK, *in_phases.ON_EVERY_RANK)
    if name == "growing-save":
        growing = growing_save.GrowingSave(runtime)
        growing.hook()
        at_step.hook(runtime, growing)
        return
    if runtime.is_culprit or everywhere:
        at_step.hook(runtime)  # also counts the steps for the others
        if name in in_phases.IN_OPTIMIZER:
            in_phases.hook_optimizer(runtime)
    if not runtime.is_culprit:
        return
    if name == "rendezvous":
        at_start.hook_rendezvous(runtime)
    elif name == "absent":
        in_phases.hook_groups(runtime)
    elif name in in_worker.STRIKES:
        if name == "shm-full":
            at_start.mount_private_shm(runtime)
        in_worker.hook(runtime)
    elif name in at_save.NAMES:
        at_save.hook(runtime)
