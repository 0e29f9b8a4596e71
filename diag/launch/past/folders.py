"""Where run directories of this user are, and which one a word means: `-1`, an id or a part of it, a path."""

# paths are text here: of a thousand runs a `Path` each costs as much as reading them
# ruff: noqa: PTH119
from __future__ import annotations

import os
import re

from diag.launch.runs import is_ours, read_run
from diag.text.errors import DiagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
# Below a root: runs of which only the small files are kept that tell of them.
PAST = "past"
FACTS, FACTS_SCHEMA = "facts.json", "diag.facts/1"
_BACK = re.compile(r"-[1-9]\d{0,5}")
_PART = re.compile(r"[0-9a-f-]{4,22}")
_SHOWN = 3


def run_folders(root: str) -> Iterator[str]:
    """What lies in a root under a run's name and is a directory of its own, no link. Those in `past` too."""
    for place in (root, os.path.join(root, PAST)):
        try:
            with os.scandir(place) as entries:
                found = [
                    entry.path
                    for entry in entries
                    if RUN_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                ]
        except OSError:
            continue
        yield from found


def newest_first(roots: Iterable[str]) -> list[str]:
    """Of several roots, by the time in their names; each run once, where it is while it is moved to `past`."""
    found = {os.path.basename(path): path for root in dict.fromkeys(roots) for path in run_folders(root)}
    return [found[name] for name in sorted(found, reverse=True)]


def meant(word: str, roots: Iterable[str]) -> str:
    """The run directory that a word means. `-1` is this user's newest run on this host, `-2` the one before; else what exists at that
    path; else the run whose id begins or ends so. A word that means none is returned as it is. Raises DiagError."""
    back = _BACK.fullmatch(word)
    if not back and (os.path.lexists(word) or not _PART.fullmatch(word)):
        return word
    folders = newest_first(roots)
    if back:
        return _before(folders, -int(word))
    found = [path for path in folders if _is_of(os.path.basename(path), word) and _run_in(path) is not None]
    if len(found) > 1:
        names = ", ".join(os.path.basename(path) for path in found[:_SHOWN])
        more = ", ..." if len(found) > _SHOWN else ""
        raise DiagError(
            f"{len(found)} runs have {word} in their id: {names}{more}",
            hint="give more of the id; `diag runs` lists them",
            exit_code=2,
        )
    return found[0] if found else word


def _before(folders: list[str], number: int) -> str:
    """Of this host's runs, where it has any: of a job on several nodes each has one, maybe in the same place."""
    own, others = 0, []
    for path in folders:
        run = _run_in(path)
        if run is None:
            continue
        if not is_ours(run):
            others.append(path)
            continue
        own += 1
        if own == number:
            return path
    if not own and number <= len(others):
        return others[number - 1]
    raise DiagError(
        f"there is no run -{number}; diag remembers {own or len(others)} here",
        hint="`diag runs` lists them; runs in another place: DIAG_RUN_ROOT",
        exit_code=2,
    )


def _is_of(name: str, part: str) -> bool:
    return name.startswith(part) or name.endswith(part)


def _run_in(path: str) -> dict[str, Any] | None:
    """Its run.json; None where it is no run of this user."""
    try:
        return read_run(path, ours=True)
    except DiagError:
        return None
