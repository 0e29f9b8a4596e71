"""What an example leaves open, and CMD still has: `...` among its words, paths such as /path/to/model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.line import Line, line

_DOTS = ("...", "\u2026")
_EXAMPLE = re.compile(r"(?:.*/)?(?:x{2,}|path/to|your[-_]\w+)(?:/.*)?", re.IGNORECASE)


def check_left_open(facts: LaunchFacts) -> Iterator[Line]:
    launch = facts.launch
    if launch is None:
        return
    dots = next((word for word in launch.words if word in _DOTS), None)
    if dots is not None:
        yield line("container.dots", word=dots, program=launch.line[0].rpartition("/")[2])
    named = [word for word in launch.words if "/" in word and _EXAMPLE.fullmatch(word)]
    missing = [word for word in named if not _is_there(facts, word)]
    if missing:
        yield line("container.example-path", named=", ".join(dict.fromkeys(missing)))


def _is_there(facts: LaunchFacts, path: str) -> bool:
    """Of a container only what is mounted can be missing: the rest is the image's."""
    if facts.container is not None:
        here = facts.container.path_here(path)
        return here is None or (facts.command.folder / here).exists()
    return (facts.command.folder / Path(path).expanduser()).exists()
