"""A line on a terminal's stderr that says how far a long reading is: bytes, speed and what is left of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import IO, TextIO

__all__ = ["Progress"]

_AFTER_SECONDS = 1.0  # what is done sooner needs no bar
_EACH_SECONDS = 0.2
_WIDTH = 24


class Progress:
    """Told what is read; draws where `stream` is a terminal and says nothing anywhere else."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shows = self._stream is not None and self._stream.isatty()
        self._clock = clock
        self._began = self._drawn_at = clock()
        self._files: list[tuple[IO[bytes], int]] = []
        self._read = 0
        self._drawn = False

    def add(self, file: IO[bytes], size: int) -> None:
        """One more file will be read: its place in bytes as they lie on disk, whatever comes out of them; 0 is unknown."""
        self._files.append((file, size))

    def read(self, size: int) -> None:
        self._read += size
        now = self._clock()
        if self._shows and now - self._began >= _AFTER_SECONDS and now - self._drawn_at >= _EACH_SECONDS:
            self._drawn_at, self._drawn = now, True
            self._stream.write("\r" + self.words(now)[: _columns() - 1] + "\x1b[K")
            self._stream.flush()

    def words(self, now: float) -> str:
        seconds = max(1e-9, now - self._began)
        speed = f"{self._read / seconds / 1e6:.0f} MB/s"
        total = sum(size for _, size in self._files)
        if not total or not all(size for _, size in self._files):
            return f"diag: {_size(self._read)} read, {speed}"
        done = min(sum(map(_place, self._files)), total)
        left = seconds * (total - done) / done if done else 0.0
        bar = "#" * round(_WIDTH * done / total)
        return f"diag: [{bar:<{_WIDTH}}] {_size(done)} of {_size(total)}, {speed}, {left:.0f} s left"

    def close(self) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _place(item: tuple[IO[bytes], int]) -> int:
    file, size = item
    try:
        return size if file.closed else file.tell()
    except (OSError, ValueError):
        return 0


def _size(count: int) -> str:
    """
    >>> _size(1_200_000_000), _size(3_400_000), _size(12)
    ('1.2 GB', '3.4 MB', '0.0 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _columns() -> int:
    try:
        return max(40, os.get_terminal_size(2).columns)
    except OSError:
        return 80
