"""What an agent asks about: the newest live run, a run of a hub, or evidence on disk, which is read once."""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diag.cli.chosen import run_path
from diag.cli.client.endpoint import endpoint
from diag.cli.top import lives
from diag.text.errors import DiagError

if TYPE_CHECKING:
    from diag.cli.tui.source import Source
    from diag.cli.tui.state import State

_MOST_READ = 4  # engines of recorded evidence that are kept in memory


@dataclass(frozen=True, slots=True)
class Seen:
    """A source, and what it showed when it was asked. `word` is LIVE or RECORDED."""

    source: Source
    state: State
    word: str
    notes: tuple[str, ...] = ()


class Sources:
    """`options` are those of `client.endpoint`; `paths` the evidence given on the command line. Where `only_given`,
    nothing else on disk is read: who asks may be another user. For any thread."""

    def __init__(self, options: argparse.Namespace, paths: Sequence[Path], *, only_given: bool) -> None:
        self._options = options
        self._paths = tuple(paths)
        self.only_given = only_given
        self._lock = threading.Lock()
        self._read: OrderedDict[tuple[object, ...], Source] = OrderedDict()

    def look(self, source: str = "") -> Seen:
        """`source`: a path, or "" for what the command line named, else the newest live
        run, else the last run. Raises DiagError."""
        from diag.cli.tui.state import State

        with self._lock:  # evidence is read once, also where two ask at a time
            found = self._find(source.strip())
            state = State()
            document = found.first()
        try:
            state.take_document(document)
        except ValueError as error:
            raise DiagError(
                f"not the state of a run: {error}", hint="the hub runs another version of diag"
            ) from None
        notes = tuple(getattr(found, "notes", ()))
        return Seen(found, state, "RECORDED" if state.head.get("recorded") else "LIVE", notes)

    def _find(self, source: str) -> Source:
        paths = (run_path(source).expanduser(),) if source else self._paths
        if source and self.only_given and not any(_same(paths[0], given) for given in self._paths):
            raise DiagError(
                f"{source} was not given to `diag mcp --http`, which reads nothing else",
                hint="start it with this path: diag mcp --http PATH",
            )
        if len(paths) == 1 and lives(paths[0]):
            return self._live(str(paths[0]))
        return self._recorded(paths) if paths else self._newest()

    def _newest(self) -> Source:
        """The run that lives; where none does and none was named, the last one."""
        try:
            return self._live(self._options.run_dir)
        except DiagError:
            if self._options.run_dir or self._options.endpoint or self.only_given:
                raise
            with contextlib.suppress(DiagError):
                return self._recorded((run_path("-1"),))
            raise

    def _live(self, run_dir: str | None) -> Source:
        from diag.cli.tui.live import Live

        options = argparse.Namespace(**{**vars(self._options), "run_dir": run_dir})
        try:
            return Live(*endpoint(options))
        except DiagError as error:
            raise DiagError(
                str(error),
                hint=f"{error.hint}; or name evidence on disk as source: a run directory, bundle or log",
            ) from None

    def _recorded(self, paths: tuple[Path, ...]) -> Source:
        from diag.cli.tui.source import Recorded

        key = tuple(item for path in paths for item in _version(path))
        if key not in self._read:
            self._read[key] = Recorded(paths)
            if len(self._read) > _MOST_READ:
                self._read.popitem(last=False)
        self._read.move_to_end(key)
        return self._read[key]


def _same(one: Path, other: Path) -> bool:
    try:
        return one.resolve() == other.expanduser().resolve()
    except (OSError, RuntimeError):
        return False


def _version(path: Path) -> tuple[object, ...]:
    """Changes when the evidence does: a log that grows, a run directory with a newer journal."""
    try:
        files = [path, *(sorted(path.iterdir()) if path.is_dir() else ())]
        return (path.resolve(), *((stat.st_mtime_ns, stat.st_size) for stat in (one.stat() for one in files)))
    except OSError:
        return (path, None)  # what is wrong with it, reading it says
