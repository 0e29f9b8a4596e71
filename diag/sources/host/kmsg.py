"""Kernel messages (`dmesg`, /dev/kmsg) that matter to training: kills and refusals for memory, faults of
GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from diag.model import Record
from diag.model.observations import KernelLine, Observation, Unparsed
from diag.sources.host import kmsg_gpu, kmsg_memory

SOURCE = "kmsg"

_LONGEST = 1000


def parse(record: Record) -> Iterator[Observation]:
    """Payload: {"lines": [str, ...], "host_pids": bool?}; the kernel's log has the host's pids, diag may be
    in a container."""
    payload = record.payload
    lines = payload.get("lines") if isinstance(payload, dict) else None
    if not isinstance(lines, list):
        yield Unparsed(record.rank, SOURCE, "no list of lines", repr(payload)[:200])
        return
    memory = kmsg_memory.Reader()
    host_pids = payload.get("host_pids") is True
    for line in lines:
        if isinstance(line, str):
            yield KernelLine(None, line[:_LONGEST], host_pids)
            yield from kmsg_gpu.read_line(line[:_LONGEST], host_pids=host_pids)
            yield from memory.read_line(line[:_LONGEST])
