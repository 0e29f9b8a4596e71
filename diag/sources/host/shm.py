"""How large /dev/shm is and how much of it is free, as the rank sees it (a container often gets 64 MB)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from diag.model import Payload, Record
from diag.model.observations import Observation, SharedMemory, Unparsed
from diag.sources.payload import wholes
from diag.text.errors import SourceUnavailable

SOURCE = "shm"
_NUMBERS = ("frsize", "blocks", "bavail", "files", "favail")  # of statvfs(3), less its f_


def read(pid: int, root: Path = Path("/proc"), own: Path = Path("/dev/shm")) -> Payload:
    """statvfs of the rank's /dev/shm, else (not allowed to look, or the rank is gone) of our own.

    Raises SourceUnavailable.
    """
    seen = root / str(pid) / "root/dev/shm"
    try:
        return _statvfs(seen, "rank")
    except FileNotFoundError as error:
        if (root / str(pid) / "root/dev").is_dir():  # we can look, and there is none
            raise SourceUnavailable(
                f"process {pid} has no /dev/shm",
                "mount a tmpfs at /dev/shm: DataLoader workers and NCCL need it",
            ) from error
    except OSError:
        pass
    try:
        return _statvfs(own, "own")
    except OSError as error:
        raise SourceUnavailable(
            f"cannot read /dev/shm of process {pid} ({error.strerror})",
            "run diag as the same user in the same container, or give it CAP_SYS_PTRACE",
        ) from error


def _statvfs(path: Path, view: str) -> Payload:
    answer = os.statvfs(path)
    return {"view": view, **{name: getattr(answer, f"f_{name}") for name in _NUMBERS}}


def parse(record: Record) -> Iterator[Observation]:
    """One SharedMemory."""
    if (numbers := wholes(record.payload, "frsize", "blocks", "bavail")) is None:
        yield Unparsed(record.rank, SOURCE, "no statvfs numbers", str(record.payload)[:200])
        return
    frsize, blocks, available = numbers
    yield SharedMemory(record.rank, size_bytes=frsize * blocks, available_bytes=frsize * available)
