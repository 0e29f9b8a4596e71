"""A line on a terminal's stderr that says how far a long reading is: bytes, speed and what is left of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import IO, TextIO

from diag.text.ticker import bar, columns, is_terminal
from diag.text.units import format_bytes, format_rate, format_seconds

_AFTER_SECONDS = 1.0  # what is done sooner needs no bar
_EACH_SECONDS = 0.2
_BAR = 16  # columns: all of the line fits into 80


class Progress:
    """Told what is read; draws where `stream` is a terminal and says nothing anywhere else."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shows = is_terminal(self._stream)
        self._clock = clock
        self._began = self._drawn_at = clock()
        self._files: list[tuple[IO[bytes], int]] = []
        self._expected = self._passed = 0.0
        self._read = 0
        self._drawn = False

    def add(self, file: IO[bytes], size: int) -> None:
        """One more file will be read: its place in bytes as they lie on disk, whatever comes out of them; 0
        is unknown."""
        self._files.append((file, size))

    def read(self, size: int) -> None:
        """So many bytes came out of the files that were added."""
        self._read += size
        self._draw()

    def expect(self, size: float) -> None:
        """So many bytes more lie on disk, of what has no place to ask for: `passed` says how far it is."""
        self._expected += size

    def passed(self, size: float) -> None:
        self._passed += size
        self._draw()

    def _draw(self) -> None:
        now = self._clock()
        if self._shows and now - self._began >= _AFTER_SECONDS and now - self._drawn_at >= _EACH_SECONDS:
            self._drawn_at, self._drawn = now, True
            self._stream.write("\r" + self.words(now)[: columns() - 1] + "\x1b[K")
            self._stream.flush()

    def words(self, now: float) -> str:
        seconds = max(1e-9, now - self._began)
        total = self._expected + sum(size for _, size in self._files)
        done = self._passed + sum(map(_place, self._files))
        speed = format_rate((self._read or done) / seconds)
        if not total or not all(size for _, size in self._files):
            return f"diag: {format_bytes(self._read)} read, {speed}"
        done = min(done, total)
        left = seconds * (total - done) / done if done else 0.0
        amount = f"{format_bytes(done)} of {format_bytes(total)}"
        return f"diag: {bar(done, total, _BAR)} {amount}, {speed}, {format_seconds(round(left))} left"

    def close(self) -> None:
        if self._drawn:
            self._drawn = False
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _place(item: tuple[IO[bytes], int]) -> int:
    file, size = item
    try:
        return size if file.closed else file.tell()
    except (OSError, ValueError):
        return 0
