"""What NCCL's own log lines (NCCL_DEBUG=INFO) tell of the job now: its version, where RAS listens, communicators being made."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from diag.observations import NcclLine

__all__ = ["NcclState"]

# NCCL 2.28.9, captured on 2 x H200, 2026-11-20:
#   gpu-node-0:566:566 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
_VERSION = re.compile(r"NCCL version (\d{1,4}\.\d{1,4}\.\d{1,6})")
#   gpu-node-0:566:566 [0] NCCL INFO RAS client listening socket at 127.0.0.1<28028>
_RAS = re.compile(r"RAS client listening socket at (\S{1,80}<\d{1,5}>)$")
#   gpu-node-0:566:566 [0] NCCL INFO ncclCommInitRankConfig comm 0x400879c0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId
#   0x67f05fb031510889 - Init START
_INIT = re.compile(r"^\S{1,60} comm (0x[0-9a-f]{1,16}) rank \d.* - Init (START|COMPLETE)$")
#   gpu-node-0:566:566 [0] NCCL INFO comm 0x400879c0 rank 0 nranks 2 cudaDev 0 busId 60 - Destroy COMPLETE
_DESTROYED = re.compile(r"^comm (0x[0-9a-f]{1,16}) rank \d.* - (?:Destroy|Abort) COMPLETE$")

_MOST_OPEN = 100_000  # communicators under way at once, of all ranks of a node; more is no log of NCCL


@dataclass(slots=True)
class NcclState:
    """`version` is the last that was told ("2.28.9"), `ras_address` as NCCL writes it, `lines` how many were read."""

    version: str = ""
    ras_address: str = ""
    lines: int = 0
    _open: dict[tuple[int, str], float] = field(default_factory=dict)  # (pid, communicator) -> told time of its Init START

    def observe(self, at: float, fact: NcclLine) -> None:
        self.lines += 1
        text = fact.text
        if text.startswith("NCCL version"):
            found = _VERSION.match(text)
            self.version = found[1] if found else self.version
        elif text.startswith("RAS "):
            found = _RAS.match(text)
            self.ras_address = found[1] if found else self.ras_address
        elif text.endswith(("- Init START", "- Init COMPLETE")):
            found = _INIT.match(text)
            if found is not None and found[2] == "COMPLETE":
                self._open.pop((fact.pid, found[1]), None)
            elif found is not None and len(self._open) < _MOST_OPEN:
                self._open[fact.pid, found[1]] = at
        elif text.endswith(" COMPLETE"):
            found = _DESTROYED.match(text)
            if found is not None:
                self._open.pop((fact.pid, found[1]), None)

    def being_made(self, pid: int) -> float | None:
        """Since when a communicator of this process is being made; None when none is."""
        return min((at for (owner, _), at in self._open.items() if owner == pid), default=None)
