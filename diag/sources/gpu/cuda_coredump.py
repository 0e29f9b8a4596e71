"""Which kernels ran on a GPU, from a core dump of it that the CUDA driver wrote
(CUDA_ENABLE_USER_TRIGGERED_COREDUMP, or on an exception), beside other evidence.

diag never has one written: the dump ends the rank, whatever the flags (docs/reference/evidence.md).
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diag.model import Payload, Record
from diag.model.observations import GpuKernel, GpuKernels, Observation, Unparsed
from diag.sources.collectives.fr_trace import integer, mapping, sequence, word
from diag.sources.gpu import cuda_core

SOURCE = "cuda_coredump"


def load_file(path: Path) -> Payload:
    """{"kernels": see cuda_core.kernels}, or {"failed": why}."""
    try:
        return {"kernels": cuda_core.kernels(path)}
    except cuda_core.NoCoreDump as error:
        return {"failed": str(error)}
    except OSError as error:
        return {"failed": f"{error.strerror}"}


def parse(record: Record) -> Iterator[Observation]:
    payload = record.payload
    try:
        yield GpuKernels(
            record.rank, tuple(_kernel(mapping(row)) for row in sequence(payload["kernels"])[:1000])
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        yield Unparsed(
            record.rank, SOURCE, f"not a payload of this source: {error!r}"[:200], reprlib.repr(payload)[:200]
        )


def _kernel(row: dict[Any, Any]) -> GpuKernel:
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
