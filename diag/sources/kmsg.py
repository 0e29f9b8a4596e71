"""Kernel messages (`dmesg`, /dev/kmsg) that matter to training: for now the Xid reports of NVIDIA's driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.model import Record
from diag.observations import Observation, Unparsed, XidReported

__all__ = ["SOURCE", "parse"]

SOURCE = "kmsg"

# driver 580.159.04, H200, 2026-11-20, after a device-side assert:
#   [  482.229132] NVRM: Xid (PCI:0000:00:07): 43, pid=1562, name=python3, channel 0x0000000a
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,32})\): (\d{1,4})(?:, pid='?(\d{1,10}))?")
_LONGEST = 1000


def parse(record: Record) -> Iterator[Observation]:
    """Payload: {"lines": [str, ...]}."""
    payload = record.payload
    lines = payload.get("lines") if isinstance(payload, dict) else None
    if not isinstance(lines, list):
        yield Unparsed(record.rank, SOURCE, "no list of lines", repr(payload)[:200])
        return
    for line in lines:
        match = _XID.search(line[:_LONGEST]) if isinstance(line, str) else None
        if match:
            yield XidReported(None, match[1], int(match[2]), int(match[3]) if match[3] else None, line.strip()[:300])
