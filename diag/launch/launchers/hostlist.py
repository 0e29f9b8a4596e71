"""Lists of hosts: Slurm's compressed ones, and hostfiles of DeepSpeed and of MPI. Pure; what a hostile list would unfold
to is counted before it is made."""

from __future__ import annotations

import ipaddress
import itertools
import re
from dataclasses import dataclass

MOST_HOSTS = 65536  # as Slurm, src/common/hostlist.c: MAX_RANGE ("Too many hosts in range")
_MOST_TEXT = 1 << 20
_PART = re.compile(r"([^\[\]]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")


class BadHostlist(ValueError):
    """Why this text is no list of hosts."""


def expand_hostlist(text: str) -> tuple[str, ...]:
    """The hosts in their order, one for each time that it is named. Several brackets in a name multiply, the
    last runs fastest.

    >>> expand_hostlist("gpu[008-010,12],login1")
    ('gpu008', 'gpu009', 'gpu010', 'gpu12', 'login1')
    >>> expand_hostlist("r[0-1]n[1-2]-ib")
    ('r0n1-ib', 'r0n2-ib', 'r1n1-ib', 'r1n2-ib')
    """
    if len(text) > _MOST_TEXT:
        raise BadHostlist(f"{len(text)} characters")
    hosts: list[str] = []
    for entry in _entries(text):
        hosts.extend(_expand(entry, MOST_HOSTS - len(hosts)))
    return tuple(hosts)


def _entries(text: str) -> list[str]:
    """What is between commas or blanks outside of brackets, without the empty ones (Slurm takes `a,,b` as
    well)."""
    entries, start, inside = [], 0, False
    for place, sign in enumerate(text):
        if sign in "[]":
            if inside == (sign == "["):
                raise BadHostlist("a bracket is not opened" if sign == "]" else "a bracket in a bracket")
            inside = sign == "["
        elif not inside and (sign == "," or sign.isspace()):
            entries.append(text[start:place])
            start = place + 1
    if inside:
        raise BadHostlist("a bracket is not closed")
    entries.append(text[start:])
    return [entry for entry in entries if entry]


def _expand(entry: str, room: int) -> list[str]:
    parts: list[str | list[tuple[range, int]]] = []
    total = 1
    for word, numbers in _PART.findall(entry):
        if word:
            parts.append(word)
        if numbers:
            ranges = _ranges(numbers)
            parts.append(ranges)
            total *= sum(len(one) for one, _ in ranges)
            if total > room:
                break
    if total > room:  # room is 0 once all places are taken
        raise BadHostlist(f"more than {MOST_HOSTS} hosts")
    if "[]" in entry:
        raise BadHostlist("an empty range")
    choices = [
        [part]
        if isinstance(part, str)
        else [f"{number:0{width}d}" for numbers, width in part for number in numbers]
        for part in parts
    ]
    hosts = ["".join(words) for words in itertools.product(*choices)]
    for host in hosts:
        if not _NAME.fullmatch(host):
            raise BadHostlist("no name of a host")
    return hosts


def _ranges(text: str) -> list[tuple[range, int]]:
    """Each with the digits that its numbers have at least."""
    ranges = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise BadHostlist("an empty range" if not part else "a range that is none")
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            raise BadHostlist("a range that runs backwards")
        # the lower number's own digits: 8-011 is 8 to 11, 08-11 is 08 to 11
        ranges.append((range(low, high + 1), len(found[1])))
    return ranges


# each with its port, or with its slots, as its source has it
Hosts = tuple[tuple[str, "int | None"], ...]
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
        if len(slots) < MOST_HOSTS:
            slots[host] = size
    return tuple(slots.items())
