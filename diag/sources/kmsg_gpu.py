"""Kernel messages of NVIDIA's driver: Xid."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.observations import Observation, XidReported

__all__ = ["read_line"]

# driver 580.159.04, H200, 2026-11-20, after a device-side assert:
#   [  482.229132] NVRM: Xid (PCI:0000:00:07): 43, pid=1562, name=python3, channel 0x0000000a
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,32})\): (\d{1,4})(?:, pid='?(\d{1,10}))?")


def read_line(line: str) -> Iterator[Observation]:
    match = _XID.search(line)
    if match:
        yield XidReported(None, match[1], int(match[2]), int(match[3]) if match[3] else None, line.strip()[:300])
