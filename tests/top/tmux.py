"""A terminal for tests: a pane of a tmux server of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

__all__ = ["Tmux", "needs_tmux", "tmux_pane"]

needs_tmux = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed (make system-packages)"
)


class Tmux:
    """One pane, which stays when its command ends."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), "-f", "/dev/null", *words],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout

    def start(
        self, command: Sequence[str], columns: int, lines: int, env: Mapping[str, str], *, end_file: Path
    ) -> None:
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        script = f"env {words} {shlex.join(command)}; echo $? > {shlex.quote(str(end_file))}; exec sleep 600"
        self.tmux("new-session", "-d", "-x", str(columns), "-y", str(lines), script)

    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def painted(self) -> str:
        """With its escape sequences."""
        return self.tmux("capture-pane", "-p", "-e")

    def keys(self, *names: str) -> None:
        self.tmux("send-keys", *names)

    def resize(self, columns: int, lines: int) -> None:
        self.tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def until(self, condition: Callable[[str], object], seconds: float = 30) -> str:
        """The screen, once it is as wanted; AssertionError shows it where that does not come."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            text = self.text()
            if condition(text):
                return text
            time.sleep(0.1)
        size = self.tmux("display-message", "-p", "#{window_width}x#{window_height}").strip()
        raise AssertionError(f"not within {seconds:g} s, {size}:\n{self.text()}")


@contextlib.contextmanager
def tmux_pane(
    folder: Path,
    command: Sequence[str],
    columns: int = 80,
    lines: int = 24,
    env: Mapping[str, str] | None = None,
) -> Iterator[Tmux]:
    """`folder`/code holds the command's exit code once it ended."""
    pane = Tmux(folder / "tmux")
    try:
        pane.start(command, columns, lines, {"LANG": "C.UTF-8", **(env or {})}, end_file=folder / "code")
        yield pane
    finally:
        if os.path.exists(folder / "tmux"):  # noqa: PTH110 - a socket
            with contextlib.suppress(subprocess.CalledProcessError):
                pane.tmux("kill-server")
