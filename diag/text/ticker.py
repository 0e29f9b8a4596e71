"""A line on a terminal's stderr while a person waits for one answer: drawn again and again, gone when the
answer is there."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # `diag dump` waits for no import that it can do without
    import threading
    from collections.abc import Callable
    from typing import TextIO

AFTER_SECONDS = 0.5  # what is done sooner needs no line
_EACH_SECONDS = 0.2


class Ticker:
    """`with Ticker(words): ...`: `words` is given the seconds that have passed, on a thread of its own, and
    may take its time. Where `stream` is no terminal nothing is ever written, and no thread is started."""

    def __init__(self, words: Callable[[float], str], stream: TextIO | None = None) -> None:
        self._words = words
        self._stream = sys.stderr if stream is None else stream
        self._drawn = False
        self._over: threading.Condition | None = None  # none where nothing is drawn
        self._ended = False

    def __enter__(self) -> Ticker:
        if is_terminal(self._stream):
            import threading

            self._over = threading.Condition()
            threading.Thread(target=self._run, args=(self._over,), name="ticker", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._over is None:
            return
        with self._over:  # the thread is not joined: `words` may hang
            self._ended = True
            self._over.notify_all()
            if self._drawn:
                self._put("\r\x1b[K")

    def _run(self, over: threading.Condition) -> None:
        began = time.monotonic()
        pause = AFTER_SECONDS
        while True:
            with over:
                if self._ended or over.wait_for(lambda: self._ended, pause):
                    return
            pause = _EACH_SECONDS
            text = self._words(time.monotonic() - began)
            with over:
                if self._ended:
                    return
                self._drawn = True
                self._put("\r" + text[: columns() - 1] + "\x1b[K")

    def _put(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone: whoever waits learns so from what comes next
            pass


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a line may be drawn again there: a terminal that knows how to."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def bar(done: float, total: float, width: int = 24) -> str:
    """
    >>> bar(1, 4, 8)
    '[##      ]'
    """
    return f"[{'#' * round(width * min(1.0, done / total)):<{width}}]"


def columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
