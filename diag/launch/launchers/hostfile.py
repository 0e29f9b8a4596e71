"""Hostfiles, of DeepSpeed and of MPI: which hosts there are and how many ranks each gets."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

MOST_NODES = 65536  # as many as Slurm takes; a longer list is a mistake
# each with its port, or with its slots, as its source has it
Hosts = tuple[tuple[str, "int | None"], ...]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
# Open MPI 4.1: `node slots=4 max_slots=8`, also `slots = 4`; MPICH 4 and Intel MPI: `node:4`; "#" starts a
# comment
_SLOTS = re.compile(r"\bslots\s{0,9}=\s{0,9}(\d{1,6})")

# deepspeed 0.14.5 to 0.19.8, launcher/runner.py, _parse_hostfile:
#   worker-0 slots=16
_LINE = re.compile(r"(\S{1,253})\s{1,20}slots=(\d{1,6})")


@dataclass(frozen=True, slots=True)
class Hostfile:
    """`bad` is the first line for which DeepSpeed would give up: no host with slots, or a host that is
    listed already."""

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


def is_host(text: str) -> bool:
    """A name, or an address, also of IPv6 with its zone. No option: ssh and the like are handed these."""
    if ":" not in text:
        return _NAME.fullmatch(text) is not None
    try:
        return len(text) < 64 and bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def mpi_hosts(text: str) -> Hosts:
    """The hosts of an MPI hostfile with their slots; a host on several lines has one slot for
    each."""
    slots: dict[str, int | None] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].strip()[:400]
        host, _, behind = words.partition(" ")
        name, colon, number = host.rpartition(":")
        count = _SLOTS.search(behind)
        size = int(count[1]) if count else None
        if colon and number.isdecimal() and ":" not in name:
            host, size = name, int(number[:6])
        host = host.rpartition("@")[2]  # Open MPI takes user@host
        if not is_host(host):
            continue
        if host in slots:
            size = (slots[host] or 1) + (size or 1)
        if len(slots) < MOST_NODES:
            slots[host] = size
    return tuple(slots.items())
