"""What Ray writes into its session's files: the last status of the cluster (monitor.log, on the head node), and why workers
ended (raylet.out, gcs_server.out). Read by growth, the newest part of each at first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_STATUS = "======== Autoscaler status:"
_STATUS_BYTES = 16 * 1024  # holds some ten of them; one is written every 5 s
_FIRST_BYTES = 1 << 20  # of a log that was there before
_MOST_LINES = 200
# What parse reads the ends of workers from.
_ENDS = re.compile(
    r"KillLocalActor RPC|Killing leased worker because|Actor is failed on worker|exits, type=|Selected to kill: "
)


@dataclass(slots=True)
class Growing:
    """The lines of one file about the ends of workers, as it grows."""

    path: str
    lines: list[str] = field(default_factory=list)
    _offset: int = -1
    _rest: str = ""

    def read(self) -> None:
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if self._offset < 0 or self._offset > size:
                    self._offset = max(0, size - _FIRST_BYTES)
                file.seek(self._offset)
                data = file.read(_FIRST_BYTES)
        except OSError:
            return
        self._offset += len(data)
        *whole, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
        self.lines += [line[:1000] for line in whole if _ENDS.search(line)]
        del self.lines[:-_MOST_LINES]


def last_status(path: str) -> str:
    """The newest whole status of the cluster, as `ray status` prints it; empty where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _STATUS_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    blocks = [block.partition("autoscaler.py:")[0].rpartition("\n")[0] for block in text.split(_STATUS)[1:-1]]
    last = text.split(_STATUS)[-1] if _STATUS in text else ""
    if "Pending Demands:" in last and "autoscaler.py:" in last:  # followed by another line, so whole
        blocks.append(last.partition("autoscaler.py:")[0].rpartition("\n")[0])
    return blocks[-1].strip() if blocks else ""


def demands_in(status: str) -> Iterator[str]:
    """The lines below "Pending Demands:"; none for "(no resource demands)"."""
    for line in status.partition("Pending Demands:")[2].splitlines():
        if line.strip().startswith("{"):
            yield line.strip()
