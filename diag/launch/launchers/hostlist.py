"""Slurm's compressed lists of hosts, expanded. Pure; what a hostile list would unfold to is counted before it
is made."""

from __future__ import annotations

import itertools
import re

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
    parts: list[list[range | str]] = []  # of each part its ranges; a plain word is one of length 1
    widths: list[list[int]] = []
    total = 1
    for word, numbers in _PART.findall(entry):
        if word:
            parts.append([word])
            widths.append([0])
        if not numbers:
            continue
        ranges, wide = _ranges(numbers)
        total *= sum(len(one) for one in ranges)
        if total > room:
            raise BadHostlist(f"more than {MOST_HOSTS} hosts")
        parts.append([*ranges])
        widths.append(wide)
    if "[]" in entry:
        raise BadHostlist("an empty range")
    if room < 1:
        raise BadHostlist(f"more than {MOST_HOSTS} hosts")
    choices = [
        [piece for one, width in zip(part, wide, strict=True) for piece in _words(one, width)]
        for part, wide in zip(parts, widths, strict=True)
    ]
    hosts = ["".join(words) for words in itertools.product(*choices)]
    for host in hosts:
        if not _NAME.fullmatch(host):
            raise BadHostlist("no name of a host")
    return hosts


def _ranges(numbers: str) -> tuple[list[range], list[int]]:
    ranges, widths = [], []
    for text in numbers.split(","):
        found = _RANGE.fullmatch(text)
        if found is None:
            raise BadHostlist("an empty range" if not text else "a range that is none")
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            raise BadHostlist("a range that runs backwards")
        ranges.append(range(low, high + 1))
        widths.append(len(found[1]))  # the lower number's own digits: 8-011 is 8 to 11, 08-11 is 08 to 11
    return ranges, widths


def _words(one: range | str, width: int) -> list[str]:
    return [one] if isinstance(one, str) else [f"{number:0{width}d}" for number in one]
