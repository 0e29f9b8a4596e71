"""The one place where a word of the command line becomes a run: `-1` is the last one, an id or a part of it that run, all
else a path. Of every option and argument that takes a run it is the type."""

from __future__ import annotations

import os

from diag.launch.past.folders import meant
from diag.launch.runs import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diag.settings import Settings


def run_word(word: str) -> str:
    """The directory of the run, as text. Raises DiagError."""
    return meant(word, _Roots())


def run_path(word: str) -> Path:
    """The same as a path."""
    from pathlib import Path

    return Path(run_word(word))


def run_root() -> str | None:
    """As `settings.load().run_root`, without 100 ms of pydantic where no diag.toml asks for it."""
    root = os.environ.get("DIAG_RUN_ROOT")
    if root or not os.path.exists("diag.toml"):  # noqa: PTH110 - no pathlib for who waits
        return root or None
    configured = load_settings().run_root
    return str(configured) if configured else None


def load_settings() -> Settings:
    from diag.settings import load, say_once

    settings = load()
    if settings.file is not None:
        say_once(f"diag: settings of {settings.file} are used")
    return settings


class _Roots:
    """Where runs are, looked up only if it is asked."""

    def __iter__(self) -> Iterator[str]:
        return iter(places(run_root()))
