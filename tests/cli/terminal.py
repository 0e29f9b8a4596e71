"""A command on a terminal, seen as a person sees it: a pseudo-terminal of a given size with a screen behind
it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyte


class Terminal:
    """`text` is the screen with what has scrolled off above it, without empty lines at the end."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=0.1)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.drawn: list[str] = []  # the cursor's line after each piece that was written
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self, words: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            list(words),
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            cwd=cwd,
            env={**environment, "TERM": "xterm", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8", **(env or {})},
            start_new_session=True,
        )
        os.close(self.slave)
        self.slave = -1

    @property
    def lines(self) -> list[str]:
        above = ["".join(row[x].data for x in range(self.screen.columns)) for row in self.screen.history.top]
        # A wide character stands in two cells, of which the second is empty.
        lines = [line.rstrip() for line in [*above, *self.screen.display]]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def take(self, seconds: float) -> bool:
        """Show what came; False when the command has closed the terminal."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        if not data:
            return False
        self.raw += data
        self._stream.feed(data)
        self.drawn.append(self.screen.display[self.screen.cursor.y].rstrip())
        return True

    def until(self, what: Callable[[], object], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, f"not seen in {seconds} s:\n{self.text}"
            assert self.take(0.1) or what(), f"the command ended:\n{self.text}"

    def wait(self, seconds: float = 90.0) -> int:
        end = time.monotonic() + seconds
        while self.take(0.1):
            assert time.monotonic() < end, f"did not end in {seconds} s:\n{self.text}"
        assert self.process is not None
        return self.process.wait(10)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for fd in (self.master, self.slave):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)


@contextlib.contextmanager
def terminal(columns: int = 80, rows: int = 24) -> Iterator[Terminal]:
    made = Terminal(columns, rows)
    try:
        yield made
    finally:
        made.close()
