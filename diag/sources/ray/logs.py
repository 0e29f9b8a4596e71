"""What Ray writes into its session's files: the last status of the cluster (monitor.log, on the head node), and why workers
ended (raylet.out, gcs_server.out). Read by growth, the newest part of each at first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from diag.sources.host.job_files import Files

_STATUS = "======== Autoscaler status:"
_NEXT = "autoscaler.py:"  # in the line behind a status, which shows that this is whole
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

    def read(self, files: Files) -> None:
        try:
            size = files.stat(self.path).st_size
            if self._offset < 0 or self._offset > size:
                self._offset = max(0, size - _FIRST_BYTES)
            data = files.read(self.path, _FIRST_BYTES, self._offset)
        except OSError:
            return
        self._offset += len(data)
        *whole, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
        self.lines += [line[:1000] for line in whole if _ENDS.search(line)]
        del self.lines[:-_MOST_LINES]


def last_status(path: str, files: Files) -> str:
    """The newest whole status of the cluster, as `ray status` prints it; empty where there is none."""
    try:
        size = files.stat(path).st_size
        text = files.read(path, _STATUS_BYTES, max(0, size - _STATUS_BYTES)).decode(errors="replace")
    except OSError:
        return ""
    blocks = text.split(_STATUS)[1:]
    whole = [block for block in blocks if "Pending Demands:" in block and _NEXT in block]
    return whole[-1].partition(_NEXT)[0].rpartition("\n")[0].strip() if whole else ""


def demands_in(status: str) -> Iterator[str]:
    """The lines below "Pending Demands:"; none for "(no resource demands)"."""
    for line in status.partition("Pending Demands:")[2].splitlines():
        if line.strip().startswith("{"):
            yield line.strip()
