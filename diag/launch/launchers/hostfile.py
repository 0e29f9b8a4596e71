"""DeepSpeed's hostfile: which hosts there are and how many ranks each gets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Hostfile", "parse_hostfile", "read_hostfile"]

# deepspeed 0.14.5 to 0.19.8, launcher/runner.py, _parse_hostfile:
#   worker-0 slots=16
_LINE = re.compile(r"(\S{1,253})\s{1,20}slots=(\d{1,6})")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Hostfile:
    """`bad` is the first line for which DeepSpeed would give up: no host with slots, or a host that stands
    there already."""

    path: str
    slots: dict[str, int]
    bad: str = ""


def parse_hostfile(text: str, path: str = "") -> Hostfile:
    """
    >>> parse_hostfile("# two\\nworker-0 slots=8\\nworker-1 slots=8\\nworker-2\\n")
    Hostfile(path='', slots={'worker-0': 8, 'worker-1': 8}, bad='worker-2')
    """
    slots: dict[str, int] = {}
    bad = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        found = _LINE.match(line[:400])
        if found is None or found[1] in slots:
            bad = bad or line[:200]
        else:
            slots[found[1]] = int(found[2])
    return Hostfile(path, slots, bad)


def read_hostfile(path: Path) -> Hostfile | None:
    """None where there is no such file; DeepSpeed then takes this machine alone."""
    try:
        with path.open(errors="replace") as file:
            return parse_hostfile(file.read(_MOST_BYTES), str(path))
    except OSError:
        return None
