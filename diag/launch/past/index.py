"""All runs of this user, newest first, through an index beside their directories: `runs.sqlite`.

The index is a cache. What is not in it, or has changed, is read from the run's directory; where it is missing, torn or of
another version, all is. It is never changed in place: a writer makes a whole new file and renames it. So there is no lock to
wait for, no journal to roll back and no WAL, which needs memory that the machines of a network file system do not share;
of several writers the last one's file stays, and what it lacks is read again.
"""

# paths are text here: of a thousand runs a `Path` each costs as much as reading them
# ruff: noqa: PTH105, PTH119, PTH120
from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import stat
import time
import urllib.parse
from collections.abc import Iterable, Iterator

from diag.launch.past.folders import PAST, newest_first
from diag.launch.past.reading import PastRun, read_past, stamp, unpacked
from diag.text.errors import DiagError

INDEX = "runs.sqlite"
_VERSION = 1
_MADE_BY = 0x64696167  # "diag", as SQLite's application_id
_MOST_BYTES = 256 << 20
_LEFT_SECONDS = 3600.0
_SCHEMA = f"""
PRAGMA application_id = {_MADE_BY};
PRAGMA user_version = {_VERSION};
CREATE TABLE runs (
  id TEXT PRIMARY KEY, stamp TEXT NOT NULL, host TEXT, state TEXT, began_at REAL, ended_at REAL, run TEXT NOT NULL
) WITHOUT ROWID;
"""

_Known = dict[str, tuple[str, str]]  # id -> stamp, run as JSON


def all_runs(roots: Iterable[str], *, save: bool = True) -> list[PastRun]:
    """Newest first. What is no run directory is left out. `save`: bring the index up to date."""
    roots = [*dict.fromkeys(roots)]
    found: list[PastRun] = []
    kept: dict[str, tuple[_Known, _Known]] = {}  # root -> the index as it was, and as it is to be
    for path in newest_first(roots):
        root = _root_of(path)
        if root not in kept:
            kept[root] = (_load(root), {})
        before, after = kept[root]
        name, now = os.path.basename(path), stamp(path)
        run = _remembered(before.get(name), now, path)
        if run is None:
            try:
                run = read_past(path)
            except (DiagError, OSError):
                continue
            if run.final:
                after[name] = (now, json.dumps(run.packed()))
        else:
            after[name] = before[name]
        found.append(run)
    if not save:
        return found
    for root, (before, after) in kept.items():
        if before != after:
            _save(root, after)
    for root in roots:
        if root not in kept and _is_our_own(root):  # its last run was removed
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(root, INDEX))
    return found


def _root_of(path: str) -> str:
    above = os.path.dirname(path)
    return os.path.dirname(above) if os.path.basename(above) == PAST else above


def _remembered(known: tuple[str, str] | None, now: str, path: str) -> PastRun | None:
    if known is None or not now or known[0] != now:
        return None
    try:
        return unpacked(json.loads(known[1]), path)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _is_our_own(root: str) -> bool:
    """Nobody else can put a file, or a link, under the index's name."""
    try:
        found = os.lstat(root)
    except OSError:
        return False
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not shared


def _load(root: str) -> _Known:
    """Empty where there is no index that can be used."""
    path = os.path.join(root, INDEX)
    try:
        found = os.lstat(path)
        if not _is_our_own(root) or not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= _MOST_BYTES:
            return {}
        # immutable: SQLite then takes no lock and looks for no journal beside it
        with contextlib.closing(sqlite3.connect(f"{_uri(path)}?mode=ro&immutable=1", uri=True)) as index:
            made_by = index.execute("PRAGMA application_id").fetchone()[0]
            version = index.execute("PRAGMA user_version").fetchone()[0]
            if (made_by, version) != (_MADE_BY, _VERSION):
                return {}
            return {
                str(name): (str(at), str(run))
                for name, at, run in index.execute("SELECT id, stamp, run FROM runs")
            }
    except (OSError, sqlite3.Error, UnicodeError, MemoryError):
        return {}


def _uri(path: str) -> str:
    return "file:" + urllib.parse.quote(os.path.abspath(path))  # noqa: PTH100 - as in runs.py


def _save(root: str, rows: _Known) -> None:
    """No trouble with it is raised: the next one reads the directories again."""
    if not _is_our_own(root):
        return
    temporary = os.path.join(root, f".{INDEX}.{secrets.token_hex(6)}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        # a file that nobody else knows needs no lock, which some network file systems do not have
        with contextlib.closing(
            sqlite3.connect(f"{_uri(temporary)}?mode=rw&nolock=1", uri=True, isolation_level=None)
        ) as index:
            index.execute("PRAGMA journal_mode = OFF")
            index.execute("PRAGMA synchronous = OFF")
            index.executescript(_SCHEMA)
            index.execute("BEGIN")
            index.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", _rows(rows))
            index.execute("COMMIT")
        os.replace(temporary, os.path.join(root, INDEX))
    except (OSError, sqlite3.Error, UnicodeError):
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    _remove_left(root)


def _rows(rows: _Known) -> Iterator[tuple[object, ...]]:
    for name, (at, text) in rows.items():
        run = json.loads(text)
        yield name, at, run["host"], run["state"], run["began"], run["ended"], text


def _remove_left(root: str) -> None:
    """Of writers that were killed."""
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if entry.name.startswith(f".{INDEX}."):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > _LEFT_SECONDS:
                        os.unlink(entry.path)
