"""Run directories that a person does not want any more, and those that make room. A link is never followed, and what is
no run directory, or may still be written, stays."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from diag.launch.past.folders import PAST, RUN_ID
from diag.launch.rundir import is_over
from diag.text.errors import DiagError

_AGE = re.compile(r"(\d{1,6})\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True)
class Removal:
    """`why_not` is empty where it can be removed."""

    path: Path
    size_bytes: int = 0
    why_not: str = ""


def age_seconds(text: str) -> float:
    """Raises ValueError.

    >>> age_seconds("7d"), age_seconds("90m")
    (604800.0, 5400.0)
    """
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not an age such as 7d, 12h or 90m")
    return float(found[1]) * _SECONDS[found[2]]


def removal(path: Path) -> Removal:
    """Whether that is a run directory of this user whose job has ended, and how large it is."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link
    try:
        found = path.lstat()
    except OSError as error:
        return Removal(path, why_not=error.strerror or str(error))
    if stat.S_ISLNK(found.st_mode):
        return Removal(path, why_not="it is a link")
    if not stat.S_ISDIR(found.st_mode):
        return Removal(path, why_not="it is no directory")
    if not RUN_ID.fullmatch(path.name) or not (path / "run.json").exists():
        return Removal(path, why_not="it is not a run directory")
    if found.st_uid != os.getuid():
        return Removal(path, why_not="it belongs to another user")
    try:
        over = is_over(path)
    except (DiagError, OSError, KeyError, TypeError, ValueError, OverflowError):
        over = False
    if not over:
        return Removal(path, why_not="its job may still run")
    return Removal(path, _size(path))


def remove(one: Removal) -> str:
    """Why it could not; empty when it is gone. It is looked at again: a person may have thought for long."""
    again = removal(one.path)
    if again.why_not:
        return again.why_not
    try:
        shutil.rmtree(one.path)
    except OSError as error:
        return error.strerror or str(error)
    with contextlib.suppress(OSError):  # the last of them
        if one.path.parent.name == PAST:
            one.path.parent.rmdir()
    return ""


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total
