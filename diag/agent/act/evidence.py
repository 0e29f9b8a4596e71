"""The evidence that has to be on disk before anything is ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

DEADLINE_SECONDS = 30.0


class Dumps(Protocol):
    def take(self, deadline: float) -> dict[str, Any]: ...


def evidence_on_disk(run_dir: Path, since: float, dumps: Dumps) -> tuple[str, str]:
    """A bundle of this run that was made since then, a new one where there is none; and why there is none. It is on the
    disk itself when this returns: the machine may go next."""
    try:
        path = _newest(run_dir, since)
        if path is None:
            document = dumps.take(DEADLINE_SECONDS)
            if not document.get("bundle"):
                return "", str(document.get("bundle_error") or "no bundle was written")
            path = Path(document["bundle"])
        _sync(path)
        _sync(path.parent)
        return str(path), ""
    except Exception as error:  # whatever it is: without evidence nothing is done
        return "", f"{type(error).__name__}: {error}"


def _newest(run_dir: Path, since: float) -> Path | None:
    found = [(path.stat().st_mtime, path) for path in (run_dir / "dumps").glob("*.tar.gz")]
    newest = max(found, default=None)
    return newest[1] if newest is not None and newest[0] >= since else None


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
