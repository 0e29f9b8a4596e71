"""Faults that need a GPU: its memory full, a kernel that fails, a kernel that never ends, NCCL that believes
in many nodes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from .runtime import Runtime
from .spec import FaultError

NAMES = ("cuda-oom", "device-assert", "stuck-kernel", "nccl-hosts")
_BLOCK_BYTES = 8 << 30
_FOREVER_CYCLES = (1 << 63) - 1  # of the GPU's clock: more than a century


def check_gpu(name: str) -> None:
    """Raise FaultError where no NVIDIA driver is (torch is not imported yet, and must not be)."""
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        raise FaultError(
            f"fault {name}: this machine has no NVIDIA GPU\n\nhint: the other faults run without one"
        )


def name_hosts(runtime: Runtime) -> None:
    """Each rank a node of its own in NCCL's eyes: no NVLink, no shared memory between them (NCCL reads it at
    init)."""
    os.environ["NCCL_HOSTID"] = f"{os.environ.get('NCCL_HOSTID', 'node')}-{runtime.rank}"
    if runtime.is_culprit:
        runtime.announce()


def _cuda_oom(runtime: Runtime) -> None:
    """As activations of a batch that is too long."""
    import torch

    runtime.announce()
    held = []
    while True:
        held.append(torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device="cuda"))


def _device_assert(runtime: Runtime) -> None:
    """A token that the embedding does not have."""
    import torch

    runtime.announce()
    torch.nn.functional.embedding(torch.tensor([100], device="cuda"), torch.zeros(10, 4, device="cuda"))
    torch.cuda.synchronize()


def _stuck_kernel(runtime: Runtime) -> None:
    """On the stream that the step's own kernels are queued on: nothing behind it begins."""
    import torch

    runtime.announce()
    torch.cuda._sleep(_FOREVER_CYCLES)  # type: ignore[no-untyped-call]


STRIKES: dict[str, Callable[[Runtime], None]] = {
    "cuda-oom": _cuda_oom,
    "device-assert": _device_assert,
    "stuck-kernel": _stuck_kernel,
}
