"""The sizes that an estimate is held against: GPU memory and host memory of this machine, or those that the
user gives."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from diag.launch.launchers.command import CommandError
from diag.model import Record
from diag.model.observations import CgroupMemory, GpuSample, HostMemory
from diag.sources.gpu import nvml
from diag.sources.host import cgroup
from diag.text.errors import SourceUnavailable

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NVML_SECONDS = 20.0
_CPUS = 32  # or more: PyTorch starts no more compile workers
NO_GPU = "no GPU was found here; pass --gpu-memory with what the job will have"


@dataclass(frozen=True, slots=True)
class Machine:
    """None for what is not known; `gpu_from` and `host_from` are where each size comes from. `is_node`: host
    memory is that of a machine with GPUs, or was given."""

    gpu_bytes: int | None = None
    gpus: int | None = None  # of one node
    host_bytes: int | None = None
    cpus: int = _CPUS
    gpu_from: str = NO_GPU
    host_from: str = ""
    is_node: bool = True
    gpu_name: str = ""  # of those here


def parse_size(text: str) -> int:
    """
    >>> parse_size("141GB") >> 20, parse_size("80GiB") >> 30, parse_size("1.5T") >> 30
    (144384, 80, 1536)
    """
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([kKmMgGtT]?)(?:i?[bB])?\s*", text)
    if not found or float(found[1]) <= 0:
        raise CommandError(f"{text!r} is not a memory size", hint="such as 80GB or 141GiB (both mean GiB)")
    if text.strip().isdecimal() and int(text) < 1 << 20:
        raise CommandError(f"{text!r} has no unit: it would be bytes", hint=f"{text.strip()}GiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def look(gpu: str | None, host: str | None, gpus: int | None) -> Machine:
    """What the options give, and where they give nothing, what is found here."""
    gpu_bytes = parse_size(gpu) if gpu else None
    host_bytes = parse_size(host) if host else None
    gpu_from, host_from = ("--gpu-memory", "--host-memory")
    seen = _gpus_seen() if gpu_bytes is None or host_bytes is None else []
    is_node = bool(seen) or host_bytes is not None
    # those of a machine without GPUs mean nothing for a node with some
    cpus = (os.cpu_count() or _CPUS) if seen else _CPUS
    if gpu_bytes is None:
        gpu_from = f"{len(seen)} x {seen[0].name} here" if seen else NO_GPU
        gpu_bytes = min((sample.memory_total_bytes or 0 for sample in seen), default=None)
        gpus = gpus or len(seen) or None
    if host_bytes is None:
        host_bytes, host_from = _host_seen()
    name = seen[0].name if seen else ""
    return Machine(gpu_bytes, gpus, host_bytes, cpus, gpu_from, host_from, is_node, name)


def _gpus_seen() -> list[GpuSample]:
    reader = nvml.NvmlReader()
    try:
        facts = list(nvml.parse(Record(nvml.SOURCE, reader.latest(_NVML_SECONDS))))
    except SourceUnavailable:
        return []
    finally:
        reader.close()
    return [fact for fact in facts if isinstance(fact, GpuSample) and fact.memory_total_bytes]


def _host_seen() -> tuple[int | None, str]:
    facts = cgroup.own_facts()
    total = next((fact.total_bytes for fact in facts if isinstance(fact, HostMemory)), None)
    limit = next((fact.limit_bytes for fact in facts if isinstance(fact, CgroupMemory)), None)
    if limit is not None and (total is None or limit < total):
        return limit, "limit of the cgroup here"
    return total, "memory of this host" if total is not None else "could not be read"
