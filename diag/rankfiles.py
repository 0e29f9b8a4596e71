"""The files that ranks print to, beside what the relay reads: found by the finder, and NCCL's own in the run directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from diag.sources.output import FileFollower

__all__ = ["RankFiles"]


class RankFiles:
    """Follows each file once. `put` takes a payload of lines and whose they are, `lost` a file that cannot be read any more."""

    def __init__(
        self, put: Callable[[dict[str, Any] | None, int | None], None], lost: Callable[[Path, OSError], None]
    ) -> None:
        self._put = put
        self._lost = lost
        self._followers: dict[Path, tuple[int | None, FileFollower]] = {}
        self._left_out: set[Path] = set()

    def leave_out(self, paths: Iterable[Path]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                self._left_out.add(path.resolve())

    def follow(self, path: Path, stream: str, rank: int | None, *, from_end: bool = False) -> None:
        real = path.resolve()
        if real in self._left_out:
            return
        if real in self._followers:
            other, follower = self._followers[real]
            if other != rank:
                self._followers[real] = (None, follower)  # several ranks print to it: the lines are nobody's
            return
        with contextlib.suppress(OSError):
            self._followers[real] = (rank, FileFollower(real, stream, from_end=from_end))

    def read_new(self, home: Path | None) -> None:
        """What came since last time; files that NCCL made in the run directory `home` are followed from now on."""
        if home is not None:
            for path in (home / "nccl").glob("*.log"):
                if path not in self._followers:
                    self.follow(path, f"nccl:{path.name}", None)
        for path, (rank, follower) in list(self._followers.items()):
            try:
                self._put(follower.read_new(), rank)
            except OSError as error:
                del self._followers[path]
                self._lost(path, error)

    def read_rest(self) -> None:
        """To their ends: nobody writes any more."""
        for rank, follower in list(self._followers.values()):
            with contextlib.suppress(OSError):
                for payload in follower.read_rest():
                    self._put(payload, rank)
