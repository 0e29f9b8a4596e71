"""Which kernels ran on a GPU, from a core dump of it that the CUDA driver wrote
(CUDA_ENABLE_USER_TRIGGERED_COREDUMP, or on an exception), beside other evidence.

diag never has one written: the dump ends the rank, whatever the flags (docs/reference/evidence.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diag.model import Payload, Record
from diag.model.observations import GpuKernel, GpuKernels, Observation
from diag.sources.gpu import cuda_core
from diag.sources.payload import guarded, integer, mapping, sequence, word

SOURCE = "cuda_coredump"


def load_file(path: Path) -> Payload:
    """{"kernels": see cuda_core.kernels}, or {"failed": why}."""
    try:
        return {"kernels": cuda_core.kernels(path)}
    except cuda_core.NoCoreDump as error:
        return {"failed": str(error)}
    except OSError as error:
        return {"failed": f"{error.strerror}"}


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    rows = sequence(record.payload["kernels"])[:1000]
    yield GpuKernels(record.rank, tuple(_kernel(mapping(row)) for row in rows))


def _kernel(row: Mapping[Any, Any]) -> GpuKernel:
    sizes = [tuple(integer(number) for number in sequence(row[name])[:3]) for name in ("grid", "block")]
    return GpuKernel(
        kernel_name(word(row["name"])), sizes[0], sizes[1], integer(row["blocks"]), integer(row["device"])
    )


_LENGTH = re.compile(r"(\d{1,4})")


def kernel_name(mangled: str) -> str:
    """The function's name without its types (Itanium C++ ABI); what is not mangled stays.

    >>> kernel_name("_Z19user_endless_kernelPViPy"), kernel_name("triton_poi_fused_add_0")
    ('user_endless_kernel', 'triton_poi_fused_add_0')
    >>> kernel_name("_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi")
    'at::native::vectorized_elementwise_kernel'
    """
    if not mangled.startswith("_Z"):
        return mangled
    nested = mangled.startswith("_ZN")
    place = 3 if nested else 2
    parts: list[str] = []
    while (found := _LENGTH.match(mangled, place)) is not None and (nested or not parts):
        place = found.end() + int(found[1])
        parts.append(mangled[found.end() : place])
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__")) or mangled
