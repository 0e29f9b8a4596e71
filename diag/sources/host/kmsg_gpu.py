"""Kernel messages of NVIDIA's driver: Xid (a GPU), SXid (an NVSwitch), and a GPU that fell off the bus
without either."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.model.observations import Observation, SxidReported, XidReported

# driver 580.159.04, H200, 2026-11-20, after a device-side assert:
#   [  482.229132] NVRM: Xid (PCI:0000:00:07): 43, pid=1562, name=python3, channel 0x0000000a
# leptonai/gpud PR 46, 2024:
#   NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): ...
# drivers before 2012, and gpud's tests: NVRM: Xid (0000:03:00): 14, Channel 00000001 doitsujin/dxvk issue
# 1027 (driver 418): NVRM: Xid (PCI:0000:01:00): 31, Ch 0000005a, intr 10000000. MMU Fault: ENGINE ...
# NVIDIA/open-gpu-kernel-modules issue 1150 (590.48): NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990,
# name=python3, Ch 00000001 ...
# gpud PR 1160 (Blackwell): NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 ...)
# With MIG the address has more behind it: NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 119, ...
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,32})[^)]{0,40}\): (\d{1,4})(?=\D|$)(?:, pid='?(\d{1,10}))?"
)

# gpud's tests and NVIDIA's fabric manager guide (DU-09883-001):
#   [111111111.111] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
#   [131453.740743] nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
# Each is followed by lines of the same number with `Severity 0 Engine instance 46 ...` and `Data {0x...}`:
# not taken.
_SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]{4,32})\): (\d{1,6}), (Fatal|Non-fatal)(?:, Link (\d{1,4}))?")

# NVIDIA/NVSentinel issue 155 (570.158.01), three lines; the first has the address:
#   [ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
#                  NVRM: (PCI ID: 10de:26b5) installed in this system has
#                  NVRM: fallen off the bus and is not responding to commands.
# gpud: NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.
# Bumblebee issue 554: NVRM: GPU at 0000:01:00.0 has fallen off the bus.
# It comes with Xid 79 or in place of it: taken as one.
_FALLEN = re.compile(r"NVRM: GPU (?:at )?(?:PCI:)?([0-9a-fA-F:.]{4,32}?):? (?:GPU )?has fallen off the bus")
_FALLEN_LAST = re.compile(r"NVRM: +fallen off the bus and is not responding")


def read_line(line: str, *, host_pids: bool = False) -> Iterator[Observation]:
    if match := _XID.search(line):
        pid = int(match[3]) if match[3] else None
        yield XidReported(None, match[1], int(match[2]), pid, line.strip()[:300], host_pids=host_pids)
        return
    if match := _SXID.search(line):
        link = int(match[4]) if match[4] else None
        yield SxidReported(None, match[1], int(match[2]), match[3] == "Fatal", link, line.strip()[:300])
        return
    if match := _FALLEN.search(line):
        yield XidReported(None, match[1], 79, None, line.strip()[:300])
    elif _FALLEN_LAST.search(line):
        yield XidReported(None, "", 79, None, line.strip()[:300])  # the address was in a line of its own
